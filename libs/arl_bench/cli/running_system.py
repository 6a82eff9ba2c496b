"""The system that is already up, or one that a command starts and stops."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from arl_tangram.cli.local_state import LocalState
from arl_tangram.cli.output import EXIT_FAILED, EXIT_NO_SANDBOX, stderr

__all__ = ["ensure_system_up", "is_system_up", "warn_no_isolation"]


def is_system_up(state: LocalState) -> bool:
    """Return True if TANGRAM_URL names a system or one is up in the state directory."""
    return bool(os.environ.get("TANGRAM_URL")) or state.supervisor_pid() is not None


def warn_no_isolation() -> None:
    """Print that programs run without isolation."""
    stderr.print("[bold red]NO ISOLATION: programs run with the rights of this user (--unsafe-local)[/bold red]")


@contextmanager
def ensure_system_up(state: LocalState, *, unsafe_local: bool = False) -> Iterator[None]:
    """Use the system of TANGRAM_URL or of the state directory. If it is down, start it and stop it at the end."""
    if is_system_up(state):
        yield
        return
    command = [sys.executable, "-m", "arl_tangram.cli"]
    where = ["--dir", str(state.directory)]
    if unsafe_local:
        warn_no_isolation()
    flags = ["--unsafe-local"] if unsafe_local else []
    started = subprocess.run([*command, "up", "-d", *where, *flags], stdout=subprocess.DEVNULL, check=False)
    if started.returncode:
        raise typer.Exit(EXIT_NO_SANDBOX if started.returncode == EXIT_NO_SANDBOX else EXIT_FAILED)
    try:
        yield
    finally:
        subprocess.run([*command, "down", *where], stdout=subprocess.DEVNULL, check=False)

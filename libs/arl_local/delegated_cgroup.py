"""A cgroup of the user's own systemd for the launcher, so that an ordinary user's limits are enforced by the kernel."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

__all__ = ["BUS_VARIABLES", "delegation_command"]

BUS_VARIABLES = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""Variables by which `systemd-run` finds the user's systemd."""

_SCOPE = ("--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", "--")
_LINGERS = ("loginctl", "show-user", "--property=Linger", "--value")
_UNIFIED_HIERARCHY = Path("/sys/fs/cgroup/cgroup.controllers")
_TIMEOUT_S = 10


def delegation_command(
    environment: Mapping[str, str], *, user: int | None = None, unified: Path = _UNIFIED_HIERARCHY
) -> tuple[str, ...]:
    """Return the words before a command that run it in a delegated cgroup. Empty if that is unnecessary or impossible.

    The user must linger (`loginctl enable-linger`): otherwise systemd ends the user's scopes at the last logout.
    `systemd-run --scope` executes the command in its own process, so the process id and signals stay the same.
    """
    uid = os.geteuid() if user is None else user
    program = shutil.which("systemd-run", path=environment.get("PATH"))
    if uid == 0 or program is None or "XDG_RUNTIME_DIR" not in environment or not unified.exists():
        return ()
    command = (program, *_SCOPE)
    if _output_of((*_LINGERS, str(uid)), environment) != "yes" or _output_of((*command, "true"), environment) is None:
        return ()
    return command


def _output_of(command: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
    """Return what a command prints, or None if it fails."""
    variables = {name: environment[name] for name in ("PATH", *BUS_VARIABLES) if name in environment}
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *command[1:]], env=variables, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

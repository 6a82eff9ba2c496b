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
_UNIFIED_HIERARCHY = Path("/sys/fs/cgroup/cgroup.controllers")
_TIMEOUT_S = 10


def delegation_command(
    environment: Mapping[str, str], *, user: int | None = None, unified: Path = _UNIFIED_HIERARCHY
) -> tuple[str, ...]:
    """Return the words before a command that run it in a delegated cgroup. Empty if that is unnecessary or impossible.

    `systemd-run --scope` executes the command in its own process, so the process id and signals stay the same.
    """
    program = shutil.which("systemd-run", path=environment.get("PATH"))
    is_root = (os.geteuid() if user is None else user) == 0
    if is_root or program is None or "XDG_RUNTIME_DIR" not in environment or not unified.exists():
        return ()
    command = (program, *_SCOPE)
    variables = {name: environment[name] for name in ("PATH", *BUS_VARIABLES) if name in environment}
    try:
        tried = subprocess.run([*command, "true"], env=variables, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return command if tried.returncode == 0 else ()

"""Read access to the state directory of the system on this machine."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from arl_tangram.transport.connection import is_up, state_directory

__all__ = ["DirOption", "LocalState"]


DirOption = Annotated[
    Path,
    typer.Option(
        "--dir",
        default_factory=state_directory,
        show_default="$TANGRAM_DIR, else $XDG_STATE_HOME/tangram, else ~/.local/state/tangram",
        help="State directory; one system per directory.",
    ),
]


class LocalState:
    """A read-only view of a state directory. Nothing is cached: each call reads the files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    def supervisor_pid(self) -> int | None:
        """Return the supervisor's pid, or None if the system is down. The lock decides, not the pid file."""
        return self._lock_holder_pid() if is_up(self.directory) else None

    def processes(self) -> dict[str, Any]:
        """Return `processes.json`: supervisor, phase, message, processes. It is stale if the system is down."""
        return _read_json(self.directory / "processes.json")

    def service_urls(self) -> dict[str, str]:
        """Return the address of each service at the last start."""
        return _read_json(self.directory / "endpoints.json")

    def api_key(self) -> str | None:
        """Return the local user's key, or None before the first start and for other users."""
        try:
            return (self.directory / "api_key").read_text().strip()
        except OSError:
            return None

    def logs(self) -> dict[str, Path]:
        """Return the log file of each process by its name."""
        return {path.stem: path for path in sorted((self.directory / "logs").glob("*.log"))}

    def request_stop(self) -> None:
        """Ask the supervisor to drain. The pidfd and a second check ensure that no other process gets the signal."""
        pid = self.supervisor_pid()
        if pid is None:
            return
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if self.supervisor_pid() == pid:
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        finally:
            os.close(pidfd)

    def _lock_holder_pid(self) -> int | None:
        """Return the pid in the lock file. The owner writes it right after it has taken the lock."""
        for _ in range(100):
            written = (self.directory / "lock").read_text()
            if written:
                return int(written)
            time.sleep(0.01)
        return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}

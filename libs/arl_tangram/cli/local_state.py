"""What the system of one machine leaves in its state directory for others to read."""

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
    """A state directory, read only. Nothing here is cached: each question is asked anew."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    def supervisor_pid(self) -> int | None:
        """The pid of whoever keeps the system up; None when it is down. The lock says so, not the pid."""
        return self._lock_holder_pid() if is_up(self.directory) else None

    def processes(self) -> dict[str, Any]:
        """`processes.json`: supervisor, phase, message, processes. Of an earlier run when the system is down."""
        return _read_json(self.directory / "processes.json")

    def service_urls(self) -> dict[str, str]:
        """The address of each service at the last start."""
        return _read_json(self.directory / "endpoints.json")

    def api_key(self) -> str | None:
        """The local user's key; None before the first start, or for another user."""
        try:
            return (self.directory / "api_key").read_text().strip()
        except OSError:
            return None

    def logs(self) -> dict[str, Path]:
        """The log file of each process, by its name."""
        return {path.stem: path for path in sorted((self.directory / "logs").glob("*.log"))}

    def request_stop(self) -> None:
        """Ask the supervisor to drain. It is certain to be the supervisor, however old its pid."""
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
        """The holder writes its pid right after it took the lock."""
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

"""The files of a node of the local engine, from which a restarted controller finds its process again.

Each node has a directory: `node.json` describes it, `process.json` names its process, `state` is the node's own state
directory, and `output.log` has its output.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arl_store.files import replace_file

__all__ = ["NodeRecord", "boot_time_s", "process_start_ticks", "process_writer"]

_ENDED_STATES = frozenset("ZXx")
"""States in /proc of processes that have ended."""


@dataclass(slots=True, kw_only=True)
class NodeRecord:
    """A node. Times are seconds since the start of the machine, so that they outlive the controller."""

    directory: Path
    name: str
    pool: str
    started_s: float | None = None
    """Time of the last start; None before the first."""
    restarts: int = 0
    quick_exits: int = 0
    """Consecutive exits soon after a start; the delay before the next start grows with them."""
    stop_by_s: float | None = None
    """Time at which the released node is killed; None unless it was released."""
    reason: str = ""

    @classmethod
    def read(cls, directory: Path) -> "NodeRecord | None":
        """Return the record in this directory; None if there is no complete one."""
        content = _read_json(directory / "node.json")
        try:
            return cls(directory=directory, **content) if content else None
        except TypeError:
            return None

    def write(self) -> None:
        """Write the record atomically."""
        content = asdict(self)
        del content["directory"]
        replace_file(self.directory / "node.json", json.dumps(content) + "\n")

    @property
    def state_directory(self) -> Path:
        return self.directory / "state"

    @property
    def output(self) -> Path:
        return self.directory / "output.log"

    def live_pid(self) -> int | None:
        """Return the process id of the node; None if its process has ended. A reused id has another start time."""
        content = _read_json(self.directory / "process.json")
        pid, started = content.get("pid"), content.get("start_ticks")
        return pid if isinstance(pid, int) and started is not None and process_start_ticks(pid) == started else None


def process_start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since the start of the machine; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[19]) if fields[0] not in _ENDED_STATES else None


def process_writer(directory: Path) -> Callable[[], None]:
    """Return a function that a child calls between fork and exec, to name itself in `process.json`.

    The child writes it, so that no process exists without a record even if the controller is killed.
    """
    target, unfinished = directory / "process.json", directory / "process.json.unfinished"

    def write() -> None:
        """Write the id and the start time of this process."""
        pid = os.getpid()
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.write(file, json.dumps({"pid": pid, "start_ticks": process_start_ticks(pid)}).encode())
        os.close(file)
        os.replace(unfinished, target)

    return write


def boot_time_s() -> float:
    """Return the seconds since the start of the machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}

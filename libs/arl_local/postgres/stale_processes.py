"""Remains of a killed server: backends and one System V shared memory segment."""

import ctypes
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["kill_processes", "remove_shared_memory", "server_processes"]

_IPC_RMID = 0
_KEY_COLUMN, _SEGMENT_COLUMN, _ATTACHED_COLUMN, _OWNER_COLUMN = 0, 1, 6, 7  # columns of /proc/sysvipc/shm
_libc = ctypes.CDLL(None, use_errno=True)


def server_processes(data: Path) -> list[int]:
    """Return the server processes of a data directory; it is the working directory of each."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(OSError):
                if os.readlink(f"/proc/{entry.name}/cwd") == str(data) and _is_postgres(entry.name):
                    found.append(int(entry.name))
    return found


def kill_processes(pids: Iterable[int]) -> None:
    """Kill processes at once. Processes that have ended meanwhile are ignored."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def remove_shared_memory(data: Path) -> None:
    """Remove the shared memory of a killed server. Its key is the directory's inode; no process may be attached."""
    try:
        directory = data.stat()
        segments = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    except OSError:
        return
    key = str(ctypes.c_int32(directory.st_ino).value)
    for line in segments:
        columns = line.split()
        if (columns[_KEY_COLUMN], columns[_ATTACHED_COLUMN], columns[_OWNER_COLUMN]) == (
            key,
            "0",
            str(directory.st_uid),
        ):
            _libc.shmctl(int(columns[_SEGMENT_COLUMN]), _IPC_RMID, None)


def _is_postgres(pid: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "postgres"

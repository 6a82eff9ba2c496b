"""Access to the files of cgroups, without the cost of `Path`."""

import contextlib
import os
import signal
from pathlib import Path

__all__ = [
    "read_counter",
    "read_file",
    "read_task_ids",
    "remove_directory",
    "send_signal",
    "write_file",
    "write_if_exists",
]


def read_counter(path: str | Path, name: str) -> int:
    """Return the number after `name` in a file of lines, or 0."""
    for line in read_file(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def read_file(path: str | Path) -> str:
    """Return the content of a file of the kernel."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while part := os.read(fd, 1 << 16):
            content += part
    finally:
        os.close(fd)
    return content.decode()


def read_task_ids(path: str | Path, max_bytes: int) -> list[int]:
    """Return the thread ids in the first bytes of a list. A last id that is cut off is left out."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(fd, max_bytes)
    finally:
        os.close(fd)
    return [int(thread) for thread in content[: content.rfind(b"\n") + 1].split()]


def write_file(path: str | Path, value: int | str) -> None:
    """Write a value to a file of the kernel."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def write_if_exists(path: str | Path, value: int) -> None:
    """Write a value to a file that some kernels lack."""
    if os.path.exists(path):
        write_file(path, value)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def remove_directory(path: Path) -> bool:
    """Remove a directory. Return False if it cannot be removed yet."""
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True

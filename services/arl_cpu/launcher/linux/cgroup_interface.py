"""The interface to kernel accounting and limits, and access to the files of cgroups."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = [
    "PERIOD_US",
    "Cgroup",
    "CgroupTree",
    "CgroupUsage",
    "counter",
    "kill_and_remove",
    "quota_us",
    "read",
    "remove_directory",
    "send_signal",
    "wait_until",
    "write",
    "write_if_exists",
]

PERIOD_US = 100_000
_MIN_QUOTA_US = 1_000


@dataclass(frozen=True, slots=True)
class CgroupUsage:
    """Monotonic counters of a cgroup."""

    cpu_us: int = 0
    oom_kills: int = 0
    pids_refused: int = 0


class Cgroup(Protocol):
    """The limits on one environment's processes."""

    @property
    def join_files(self) -> Sequence[str]:
        """Files to which a process writes its pid to join the group with all its later children."""
        ...

    worker_join_files: Sequence[str]
    """Files for a process that joins the accounting but not the freezer."""

    def set_limits(self, *, memory_mib: int, pids: int) -> None: ...
    def set_cpu(self, *, cpu_milli: int, cores: Sequence[int]) -> None: ...
    def freeze(self) -> bool:
        """Freeze the group. Return True once no process of it runs; the caller repeats until then."""
        ...

    def thaw(self) -> None: ...
    def usage(self) -> CgroupUsage: ...
    def reset_peak(self) -> None: ...
    def peak_kib(self) -> int: ...
    def processes(self) -> list[int]: ...
    def kill(self) -> None: ...
    def remove(self) -> bool:
        """Remove the group. Return False while it contains a process."""
        ...


class CgroupTree(Protocol):
    """The parent directory of one launcher's groups."""

    version: str

    def make(self, name: str) -> Cgroup: ...
    def sweep(self) -> None:
        """Kill and remove every group below, including those of earlier launchers."""
        ...

    def remove(self) -> None: ...


def quota_us(cpu_milli: int) -> int:
    return max(_MIN_QUOTA_US, cpu_milli * PERIOD_US // 1000)


def kill_and_remove(group: Cgroup) -> None:
    def gone() -> bool:
        with contextlib.suppress(OSError):  # some of its directories may be removed already
            group.kill()
        return group.remove()

    wait_until(gone, limit_s=2.0)


def wait_until(done: Callable[[], bool], limit_s: float) -> bool:
    """Wait until `done` returns True. Return False after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0002)
    return True


def counter(path: str | Path, name: str) -> int:
    for line in read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def read(path: str | Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while part := os.read(fd, 1 << 16):
            content += part
    finally:
        os.close(fd)
    return content.decode()


def write(path: str | Path, value: int | str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def write_if_exists(path: str | Path, value: int) -> None:
    if os.path.exists(path):
        write(path, value)


def send_signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def remove_directory(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True

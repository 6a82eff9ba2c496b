"""Processes according to /proc. A pid may be reused; with its start time it identifies one process permanently."""

import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "MAX_SWEEPS",
    "ProcessInfo",
    "ProcessMemory",
    "all_processes",
    "descendants",
    "pin_to_cores",
    "resume",
    "signal_each",
    "signal_until_gone",
]

MAX_SWEEPS = 100


class ProcessMemory(NamedTuple):
    """Bytes of a process's memory."""

    anonymous: int
    shared: int
    """Shared memory and mapped files of a file system in memory."""
    page_tables: int


@dataclass(frozen=True, slots=True, order=True)
class ProcessInfo:
    """A process, identified by its pid and its start time."""

    pid: int
    start_time: int
    parent_pid: int

    def resident_memory(self) -> ProcessMemory:
        """Return the resident memory. Shared pages count in full for each process. Zero after its end."""
        found = self._fields("status", "RssAnon", "RssShmem", "VmPTE")
        return ProcessMemory(*found)

    def exact_memory(self) -> ProcessMemory:
        """Return the memory with shared pages divided among their processes. Zero after its end.

        Slow for a large process: the kernel visits each page.
        """
        anonymous, shared = self._fields("smaps_rollup", "Pss_Anon", "Pss_Shmem")
        return ProcessMemory(anonymous, shared, self.resident_memory().page_tables)

    def _fields(self, file: str, *names: str) -> list[int]:
        """Return values in bytes of a file in /proc. If the first thread has ended, another one has them."""
        found = _read_fields(f"/proc/{self.pid}/{file}", names)
        if found:
            return [found.get(name, 0) for name in names]
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                if found := _read_fields(f"/proc/{self.pid}/task/{thread}/{file}", names):
                    return [found.get(name, 0) for name in names]
        return [0] * len(names)


def _read_fields(path: str, names: Collection[str]) -> dict[str, int]:
    found = {}
    with suppress(OSError), open(path) as lines:
        for line in lines:
            name, _, rest = line.partition(":")
            if name in names:
                found[name] = int(rest.split()[0]) << 10
    return found


def all_processes() -> Iterator[ProcessInfo]:
    """Yield living processes. A zombie has no resources except its number."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read_process(int(name))) is not None:
            yield process


def descendants(root: int) -> list[ProcessInfo]:
    """Return every living process below `root`, including orphans that `root` adopts during the scan."""
    children: dict[int, list[ProcessInfo]] = {}
    for process in _with_living_parents({each.pid: each for each in all_processes()}):
        children.setdefault(process.parent_pid, []).append(process)
    found: list[ProcessInfo] = []
    frontier = [root]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += [process.pid for process in below]
    return found


def _with_living_parents(processes: Mapping[int, ProcessInfo]) -> Iterator[ProcessInfo]:
    """Yield the processes, re-read if their parent has died since: they have another parent by now.

    The kernel reassigns children before their parent becomes a zombie.
    """
    for process in processes.values():
        if process.parent_pid in processes or process.parent_pid == 0:
            yield process
        elif (now := _read_process(process.pid)) is not None:
            yield now


def signal_until_gone(list_processes: Callable[[], Iterable[ProcessInfo]], signal_number: int) -> None:
    """Signal all listed processes until no new one appears: a process may fork during a scan."""
    signalled: set[ProcessInfo] = set()
    for _ in range(MAX_SWEEPS):
        fresh = [process for process in list_processes() if process not in signalled]
        if not fresh:
            return
        signal_each(fresh, signal_number)
        signalled.update(fresh)


def pin_to_cores(list_processes: Callable[[], Iterable[ProcessInfo]], cores: Collection[int]) -> None:
    """Restrict every thread of all listed processes to these cores, and repeat until no thread may run elsewhere.

    Processes that fork during a scan pass their cores on. Raises OSError if the kernel refuses.
    """
    allowed = set(cores)
    for _ in range(MAX_SWEEPS):
        threads = [thread for process in list_processes() for thread in _threads(process)]
        elsewhere = [thread for thread in threads if _cores_of(thread) not in (allowed, None)]
        if not elsewhere:
            return
        for thread in elsewhere:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, allowed)
    raise OSError("the program starts processes faster than they can be moved to other cores")


def signal_each(processes: list[ProcessInfo], signal_number: int) -> None:
    """Send a signal to each process; ended ones are ignored."""
    for process in processes:
        try:
            os.kill(process.pid, signal_number)
        except ProcessLookupError:
            continue


def resume(processes: Iterable[ProcessInfo]) -> None:
    """Continue stopped processes, children first: a shell that runs before its jobs do takes them for stopped."""
    children_first = sorted(processes, key=lambda process: (process.start_time, process.pid), reverse=True)
    signal_each(children_first, signal.SIGCONT)


def _threads(process: ProcessInfo) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _cores_of(thread: int) -> set[int] | None:
    """Return the cores of a thread, or None after its end."""
    try:
        return os.sched_getaffinity(thread)
    except ProcessLookupError:
        return None


def _read_process(pid: int) -> ProcessInfo | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            after_name = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state, parent, started, threads = after_name[0], int(after_name[1]), int(after_name[19]), int(after_name[17])
    # The first thread of a process may end before the others and then looks like a zombie.
    is_dead = state == b"X" or (state == b"Z" and threads <= 1)
    return None if is_dead else ProcessInfo(pid, started, parent)

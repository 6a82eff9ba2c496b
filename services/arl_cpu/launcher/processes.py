"""Processes as /proc tells them; a pid alone may be used again, with its start time it names one process for ever."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["MAX_SWEEPS", "Process", "all_processes", "descendants", "pin", "signal_each", "sweep"]

MAX_SWEEPS = 100


@dataclass(frozen=True, slots=True, order=True)
class Process:
    pid: int
    started: int
    parent: int

    def memory(self) -> tuple[int, int]:
        """Bytes of anonymous and of shared memory, each divided by how many share it; zeros once it is gone."""
        found = {"Pss_Anon": 0, "Pss_Shmem": 0}
        try:
            with open(f"/proc/{self.pid}/smaps_rollup") as file:
                for line in file:
                    name, _, rest = line.partition(":")
                    if name in found:
                        found[name] = int(rest.split()[0]) << 10
        except OSError:
            return 0, 0
        return found["Pss_Anon"], found["Pss_Shmem"]


def all_processes() -> Iterator[Process]:
    """Living ones; a zombie holds nothing but its number."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read(int(name))) is not None:
            yield process


def descendants(root: int) -> list[Process]:
    """Every living process below `root`, also those whose parent dies during the look and that `root` takes over."""
    children: dict[int, list[Process]] = {}
    for process in _with_living_parents({each.pid: each for each in all_processes()}):
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    frontier = [root]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += [process.pid for process in below]
    return found


def _with_living_parents(seen: Mapping[int, Process]) -> Iterator[Process]:
    """As they are told, but for one told before its parent died: that has another parent by now.

    The kernel gives children away before their parent is a zombie.
    """
    for process in seen.values():
        if process.parent in seen or process.parent == 0:
            yield process
        elif (now := _read(process.pid)) is not None:
            yield now


def sweep(look: Callable[[], Iterable[Process]], number: int) -> None:
    """Signal all that a look finds, until it finds nobody new: a process may fork while it is being looked for."""
    signalled: set[Process] = set()
    for _ in range(MAX_SWEEPS):
        fresh = [process for process in look() if process not in signalled]
        if not fresh:
            return
        signal_each(fresh, number)
        signalled.update(fresh)


def pin(look: Callable[[], Iterable[Process]], cores: Collection[int]) -> None:
    """Let every thread of all that a look finds run on these cores alone, until it finds none that may run elsewhere.

    What forks while it is being looked for hands its cores down. Raises OSError where the kernel refuses.
    """
    allowed = set(cores)
    for _ in range(MAX_SWEEPS):
        threads = [thread for process in look() for thread in _threads(process)]
        elsewhere = [thread for thread in threads if _cores_of(thread) not in (allowed, None)]
        if not elsewhere:
            return
        for thread in elsewhere:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, allowed)
    raise OSError("it makes processes faster than they can be moved to other cores")


def signal_each(processes: list[Process], number: int) -> None:
    for process in processes:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            continue


def _threads(process: Process) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _cores_of(thread: int) -> set[int] | None:
    """None once it is gone."""
    try:
        return os.sched_getaffinity(thread)
    except ProcessLookupError:
        return None


def _read(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            after_name = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state, parent, started, threads = after_name[0], int(after_name[1]), int(after_name[19]), int(after_name[17])
    # The first thread of a process may end before the others, and looks like a zombie then.
    is_dead = state == b"X" or (state == b"Z" and threads <= 1)
    return None if is_dead else Process(pid, started, parent)

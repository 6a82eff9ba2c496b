"""The memory of an environment's processes, polled where no cgroup limits it."""

import os
import time
from collections.abc import Callable

from arl_cpu.launcher.isolation.isolation import Isolation
from arl_cpu.launcher.linux.processes import ProcessInfo, ProcessMemory

__all__ = ["MemoryWatch"]

_MIN_DELAY_S, _MAX_DELAY_S, _MAX_PAUSE_S = 0.005, 0.1, 1.0
_GROWTH_BYTES_PER_S = 4 << 30
"""Memory that a program fills on one core in a second, about."""
_PAUSE_FACTOR = 4
"""The pause after an exact measurement is at least this many times its duration, so that it takes little of a core."""
_MAX_TABLE_BYTES = 64 << 20
"""Page tables of one process above which its exact measurement takes more than about half a second."""


class MemoryWatch:
    """Measures resident memory. Memory that a program only reserves is free, as in a container.

    The first sum counts a page that several processes share once for each of them. If it is above the limit, an exact
    and slower sum divides shared pages among their processes.
    """

    def __init__(self, isolation: Isolation, limit_bytes: int, is_interrupted: Callable[[], bool]) -> None:
        """Create a watch. `is_interrupted` tells an exact measurement that a message waits, which may be a kill."""
        self._isolation, self._limit_bytes, self._is_interrupted = isolation, limit_bytes, is_interrupted
        self._growth_bytes_per_s = _GROWTH_BYTES_PER_S * len(os.sched_getaffinity(0))
        self.delay_s = 0.0
        """Seconds from one measurement to the next: the time in which a program could reach the limit."""

    def used_bytes(self) -> int:
        """Return the bytes of all processes, of sockets and of the files in memory. It is exact above the limit."""
        processes = self._isolation.other_processes()
        memory = [process.resident_memory() for process in processes]
        area, sockets = self._isolation.write_area_used_bytes(), self._isolation.socket_bytes()
        used, pause_s = _sum(memory, area, sockets), 0.0
        if used > self._limit_bytes:
            began = time.monotonic()
            used = self._exact_sum(processes, memory, area, sockets)
            pause_s = min(_MAX_PAUSE_S, _PAUSE_FACTOR * (time.monotonic() - began))
        left_s = (self._limit_bytes - used) / self._growth_bytes_per_s
        self.delay_s = max(_MIN_DELAY_S, pause_s, min(_MAX_DELAY_S, left_s))
        return used

    def _exact_sum(self, processes: list[ProcessInfo], resident: list[ProcessMemory], area: int, sockets: int) -> int:
        """Return the exact sum, or a part of it that is already above the limit. If interrupted, return the limit."""
        parts = [ProcessMemory(0, 0, each.page_tables) for each in resident]
        for at, process in enumerate(processes):
            if self._is_interrupted():
                return self._limit_bytes
            is_large = resident[at].page_tables > _MAX_TABLE_BYTES
            parts[at] = resident[at] if is_large else process.exact_memory()
            if _sum(parts, area, sockets) > self._limit_bytes:
                break
        return _sum(parts, area, sockets)


def _sum(processes: list[ProcessMemory], area: int, sockets: int) -> int:
    # Mapped files of the write area are also shared memory; count them once.
    shared = max(sum(each.shared for each in processes), area)
    return sum(each.anonymous + each.page_tables for each in processes) + shared + sockets

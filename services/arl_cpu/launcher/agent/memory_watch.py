"""The memory of an environment's processes, polled where no cgroup limits it."""

import os
import time

from arl_cpu.launcher.isolation.isolation import Isolation
from arl_cpu.launcher.linux.processes import ProcessMemory

__all__ = ["MemoryWatch"]

_MIN_DELAY_S, _MAX_DELAY_S = 0.005, 0.1
_GROWTH_BYTES_PER_S = 4 << 30
"""Memory that a program fills on one core in a second, about."""
_PAUSE_FACTOR = 4
"""The pause after a measurement, in multiples of its duration, is at least this."""
_MAX_TABLE_BYTES = 64 << 20
"""Page tables above which an exact measurement takes too long: about half a second."""


class MemoryWatch:
    """Measures resident memory. Memory that a program only reserves is free, as in a container.

    The first sum counts a page that several processes share once for each of them, so it is never too low. If it is
    above the limit, an exact and slower sum divides shared pages among their processes.
    """

    def __init__(self, isolation: Isolation, limit_bytes: int) -> None:
        self._isolation, self._limit_bytes = isolation, limit_bytes
        self._growth_bytes_per_s = _GROWTH_BYTES_PER_S * len(os.sched_getaffinity(0))
        self.delay_s = 0.0
        """Seconds from one measurement to the next: the time in which a program could reach the limit."""

    def used_bytes(self) -> int:
        """Return the bytes of all processes, of sockets and of the files in memory. It is exact above the limit."""
        began = time.monotonic()
        processes = self._isolation.other_processes()
        memory = [process.resident_memory() for process in processes]
        used = self._sum(memory)
        if used > self._limit_bytes and sum(each.page_tables for each in memory) < _MAX_TABLE_BYTES:
            used = self._sum([process.exact_memory() for process in processes])
        left_s = (self._limit_bytes - used) / self._growth_bytes_per_s
        pause_s = _PAUSE_FACTOR * (time.monotonic() - began)
        self.delay_s = max(_MIN_DELAY_S, pause_s, min(_MAX_DELAY_S, left_s))
        return used

    def _sum(self, processes: list[ProcessMemory]) -> int:
        # Mapped files of the write area are also shared memory; count them once.
        shared = max(sum(each.shared for each in processes), self._isolation.write_area_used_bytes())
        own = sum(each.anonymous + each.page_tables for each in processes)
        return own + shared + self._isolation.socket_bytes()

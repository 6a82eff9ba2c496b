"""The memory of an environment's processes, polled where no cgroup limits it."""

from arl_cpu.launcher.isolation.isolation import Isolation

__all__ = ["MAX_DELAY_S", "MemoryWatch"]

MAX_DELAY_S = 0.1
_MIN_DELAY_S = 0.005
_GROWTH_BYTES_PER_S = 4 << 30
"""A program fills memory at most about this fast."""


class MemoryWatch:
    """Measures resident memory. Memory that a program only reserves is free, as in a container.

    Measuring costs little while the memory is below half of the limit, because pages of several processes then count
    for each of them. Above that, their parts are read exactly.
    """

    def __init__(self, isolation: Isolation, limit_bytes: int) -> None:
        self._isolation, self._limit_bytes = isolation, limit_bytes
        self.delay_s = 0.0
        """Seconds until the next measurement: the time in which a program could reach the limit."""

    def used_bytes(self) -> int:
        """Return the bytes of all processes, of sockets and of the files in memory."""
        processes = self._isolation.other_processes()
        used = self._sum([process.resident_bytes() for process in processes])
        if used > self._limit_bytes // 2:
            used = self._sum([process.memory() for process in processes])
        left_s = (self._limit_bytes - used) / _GROWTH_BYTES_PER_S
        self.delay_s = min(MAX_DELAY_S, max(_MIN_DELAY_S, left_s))
        return used

    def _sum(self, processes: list[tuple[int, int]]) -> int:
        # Mapped files of the write area are also shared memory; count them once.
        shared = max(sum(shared for _, shared in processes), self._isolation.write_area_used_bytes())
        return sum(anonymous for anonymous, _ in processes) + shared + self._isolation.socket_bytes()

"""The clock of timeouts of actions that share cores.

Real time would count the waiting for cores that other actions use. This clock counts the processor time of an action,
up to the cores that it is guaranteed and at least one, and the time in which no task of it wants a core.
"""

from dataclasses import dataclass

__all__ = ["CountedTime", "CpuSample"]


@dataclass(frozen=True, slots=True)
class CpuSample:
    """A sample of a running action."""

    at_s: float
    """Monotonic time in seconds."""
    cpu_s: float
    """Processor time that all tasks of the action have used so far, in seconds."""
    is_runnable: bool
    """True if a task of the action runs or waits for a core."""


class CountedTime:
    """The counted time of one action."""

    def __init__(self, *, started_s: float, guarantee_milli: int) -> None:
        """Begin to count at `started_s`, a monotonic time."""
        self._last = CpuSample(started_s, 0.0, is_runnable=True)
        self._cores = max(1.0, guarantee_milli / 1000)
        self.counted_s = 0.0
        """Counted seconds at the last sample. They never exceed the real time if at most one core is guaranteed."""
        self.idle_s = 0.0
        """Counted seconds in which no task wanted a core."""

    def add(self, sample: CpuSample) -> float:
        """Count the time since the last sample and return the counted seconds.

        If no task is runnable at the sample, the time that was not used on a core counts as waiting of the program
        itself, such as for a disk, a child or a timer. Otherwise it counts as waiting for a core.
        """
        elapsed_s = max(0.0, sample.at_s - self._last.at_s)
        used_s = min(max(0.0, sample.cpu_s - self._last.cpu_s), elapsed_s * self._cores)
        idle_s = 0.0 if sample.is_runnable else max(0.0, elapsed_s - used_s)
        self.idle_s += idle_s
        self.counted_s += used_s + idle_s
        self._last = sample
        return self.counted_s

    def rest_s(self, limit_s: float) -> float:
        """Return the shortest real time in which the counted time can reach `limit_s`."""
        return max(0.0, limit_s - self.counted_s) / self._cores

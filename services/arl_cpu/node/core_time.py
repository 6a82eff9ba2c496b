"""Measurement of the core-seconds that each attempt has allocated, through its resizes."""

import time
from collections.abc import Callable

from arl_core.domain.model import Fence

__all__ = ["CoreTimeMeter"]


class CoreTimeMeter:
    """The core-seconds of allocated attempts so far.

    They are read before the allocation is released. An attempt that an earlier process of the manager started begins
    with the time since its grant.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._meters: dict[Fence, tuple[int, float, float]] = {}
        """Milli-cores, the time since when, and the core-seconds before that time."""

    def set_cores(self, fence: Fence, cpu_milli: int, *, held_s: float = 0.0) -> None:
        """Count these cores from now on.

        Args:
            fence: The attempt; one that is unknown begins.
            cpu_milli: Milli-cores that it has allocated from now on.
            held_s: Seconds for which it has had them already, if an earlier process of the manager began to count.
        """
        before_s = self.core_seconds(fence) + cpu_milli * held_s / 1000
        self._meters[fence] = (cpu_milli, self._clock(), before_s)

    def core_seconds(self, fence: Fence) -> float:
        """Return the core-seconds of an attempt until now, or 0 if it is not allocated."""
        cpu_milli, since, before_s = self._meters.get(fence, (0, 0.0, 0.0))
        return before_s + (cpu_milli * (self._clock() - since) / 1000 if cpu_milli else 0.0)

    def remove(self, fence: Fence) -> None:
        """Stop counting an attempt."""
        self._meters.pop(fence, None)

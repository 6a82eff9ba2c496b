"""Which services leave a device so that another one fits. Values in, values out; sizes in bytes, times in seconds.

What the queue shows is certain and comes first: a service that nobody waits for leaves before one that somebody does,
and of these the one that is needed last (Belady's rule, as far as one can see). Beyond the queue stands the guess: what
bringing a service back would cost, times how often it is used, per byte that it holds (as in GreedyDual-Size).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = ["DecayedUseCount", "EvictionCandidate", "EvictionPolicy", "eviction_order", "select_victims"]

HALF_LIFE_S = 10.0
"""A use counts half after so long."""


class EvictionPolicy(StrEnum):
    """Who leaves first. All but `cost` are there to be compared with."""

    COST = "cost"
    LRU = "lru"  # the least recently used, as Ray Serve's multiplexing does it
    FIFO = "fifo"  # whoever has been there the longest


@dataclass(frozen=True, slots=True)
class DecayedUseCount:
    """How often a service is used: a count that halves every `HALF_LIFE_S`."""

    count: float = 0.0
    updated_at: float = 0.0

    def incremented(self, now: float) -> "DecayedUseCount":
        return replace(self, count=self._decayed(now) + 1, updated_at=now)

    def rate(self, now: float) -> float:
        """Uses a second."""
        return self._decayed(now) * math.log(2) / HALF_LIFE_S

    def _decayed(self, now: float) -> float:
        return self.count * 2 ** (-max(0.0, now - self.updated_at) / HALF_LIFE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionCandidate:
    """A service that may leave."""

    name: str
    size: int
    restore_s: float
    """What bringing it back takes."""
    rate: float
    used_at: int
    """The turn of its last use."""
    restored_at: int
    """The turn of its arrival."""

    @property
    def retention_value(self) -> float:
        """Seconds of copying that each second of its stay saves, per byte."""
        return self.restore_s * self.rate / max(1, self.size)


def eviction_order(
    candidates: Sequence[EvictionCandidate], *, queued: Sequence[str] = (), policy: EvictionPolicy = EvictionPolicy.COST
) -> list[EvictionCandidate]:
    """In the order in which they leave. `waiting`: services with work, the one that is needed first at its head."""
    if policy is EvictionPolicy.LRU:
        return sorted(candidates, key=lambda each: (each.used_at, each.name))
    if policy is EvictionPolicy.FIFO:
        return sorted(candidates, key=lambda each: (each.restored_at, each.name))
    needed = {name: at for at, name in reversed(list(enumerate(queued, start=1)))}
    never = len(queued) + 1
    return sorted(
        candidates, key=lambda each: (-needed.get(each.name, never), each.retention_value, each.used_at, each.name)
    )


def select_victims(ordered: Sequence[EvictionCandidate], *, missing_bytes: int) -> tuple[str, ...] | None:
    """Of those, in their order, as many as `missing` bytes need and no more; None where all are too few."""
    chosen: list[EvictionCandidate] = []
    for each in ordered:
        if missing_bytes <= 0:
            break
        chosen.append(each)
        missing_bytes -= each.size
    if missing_bytes > 0:
        return None
    # A large one that came late may make small ones before it needless; the dearest of them stays first.
    for each in reversed(chosen[:-1]):
        if missing_bytes + each.size <= 0:
            chosen.remove(each)
            missing_bytes += each.size
    return tuple(each.name for each in chosen)

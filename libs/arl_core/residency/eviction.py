"""Choice of the services to evict from a device. Values in, values out; sizes in bytes, times in seconds.

The queue is certain knowledge and comes first. A service without queued actions is evicted before one with queued
actions; among the latter, the one needed last goes first (Belady's rule, as far as the queue shows). Beyond the queue,
the value of a service is an estimate: restore cost times use rate, per byte (as in GreedyDual-Size).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = ["DecayedUseCount", "EvictionCandidate", "EvictionPolicy", "eviction_order", "select_victims"]

HALF_LIFE_S = 10.0
"""Half-life of a use in seconds."""


class EvictionPolicy(StrEnum):
    """The order of eviction. All but `cost` exist for comparison."""

    COST = "cost"
    LRU = "lru"  # least recently used first, like the multiplexing of Ray Serve
    FIFO = "fifo"  # the longest resident first


@dataclass(frozen=True, slots=True)
class DecayedUseCount:
    """The use count of a service, which halves every `HALF_LIFE_S`."""

    count: float = 0.0
    updated_at: float = 0.0

    def incremented(self, now: float) -> "DecayedUseCount":
        """Return the count after one more use at `now`, in seconds of any monotonic clock."""
        return replace(self, count=self._decayed(now) + 1, updated_at=now)

    def rate(self, now: float) -> float:
        """Return the uses per second."""
        return self._decayed(now) * math.log(2) / HALF_LIFE_S

    def _decayed(self, now: float) -> float:
        return self.count * 2 ** (-max(0.0, now - self.updated_at) / HALF_LIFE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionCandidate:
    """A service that may be evicted."""

    name: str
    size: int
    restore_s: float
    """Seconds to restore it."""
    rate: float
    used_at: int
    """Use clock at its last use."""
    restored_at: int
    """Use clock at its last restore."""

    @property
    def retention_value(self) -> float:
        """Return the seconds of copying that each second of residency saves, per byte."""
        return self.restore_s * self.rate / max(1, self.size)


def eviction_order(
    candidates: Sequence[EvictionCandidate], *, queued: Sequence[str] = (), policy: EvictionPolicy = EvictionPolicy.COST
) -> list[EvictionCandidate]:
    """Return the candidates in order of eviction; `queued` lists services with work, the most urgent first."""
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
    """Return as few services as needed to free `missing_bytes`, in order; None if all are too few."""
    chosen: list[EvictionCandidate] = []
    for each in ordered:
        if missing_bytes <= 0:
            break
        chosen.append(each)
        missing_bytes -= each.size
    if missing_bytes > 0:
        return None
    # A large late candidate may make earlier small ones unnecessary; the most valuable of them are removed first.
    for each in reversed(chosen[:-1]):
        if missing_bytes + each.size <= 0:
            chosen.remove(each)
            missing_bytes += each.size
    return tuple(each.name for each in chosen)

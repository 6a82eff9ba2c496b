"""Which services leave a device so that another one fits. Values in, values out; sizes in bytes, times in seconds.

What the queue shows is certain and comes first: a service that nobody waits for leaves before one that somebody does,
and of these the one that is needed last (Belady's rule, as far as one can see). Beyond the queue stands the guess: what
bringing a service back would cost, times how often it is used, per byte that it holds (as in GreedyDual-Size).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = ["Candidate", "Eviction", "Use", "leaving", "victims"]

HALF_LIFE_S = 10.0
"""A use counts half after so long."""


class Eviction(StrEnum):
    """Who leaves first. All but `cost` are there to be compared with."""

    COST = "cost"
    LRU = "lru"  # the least recently used, as Ray Serve's multiplexing does it
    FIFO = "fifo"  # whoever has been there the longest


@dataclass(frozen=True, slots=True)
class Use:
    """How often a service is used: a count that halves every `HALF_LIFE_S`."""

    count: float = 0.0
    at: float = 0.0

    def again(self, now: float) -> "Use":
        return replace(self, count=self._faded(now) + 1, at=now)

    def rate(self, now: float) -> float:
        """Uses a second."""
        return self._faded(now) * math.log(2) / HALF_LIFE_S

    def _faded(self, now: float) -> float:
        return self.count * 2 ** (-max(0.0, now - self.at) / HALF_LIFE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
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
    def worth(self) -> float:
        """Seconds of copying that each second of its stay saves, per byte."""
        return self.restore_s * self.rate / max(1, self.size)


def leaving(
    candidates: Sequence[Candidate], *, waiting: Sequence[str] = (), by: Eviction = Eviction.COST
) -> list[Candidate]:
    """In the order in which they leave. `waiting`: services with work, the one that is needed first at its head."""
    if by is Eviction.LRU:
        return sorted(candidates, key=lambda each: (each.used_at, each.name))
    if by is Eviction.FIFO:
        return sorted(candidates, key=lambda each: (each.restored_at, each.name))
    needed = {name: at for at, name in reversed(list(enumerate(waiting, start=1)))}
    never = len(waiting) + 1
    return sorted(candidates, key=lambda each: (-needed.get(each.name, never), each.worth, each.used_at, each.name))


def victims(ordered: Sequence[Candidate], *, missing: int) -> tuple[str, ...] | None:
    """Of those, in their order, as many as `missing` bytes need and no more; None where all are too few."""
    chosen: list[Candidate] = []
    for each in ordered:
        if missing <= 0:
            break
        chosen.append(each)
        missing -= each.size
    if missing > 0:
        return None
    # A large one that came late may make small ones before it needless; the dearest of them stays first.
    for each in reversed(chosen[:-1]):
        if missing + each.size <= 0:
            chosen.remove(each)
            missing += each.size
    return tuple(each.name for each in chosen)

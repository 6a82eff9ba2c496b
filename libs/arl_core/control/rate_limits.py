"""So many calls a second: a quota that refills with time and that no end gives back."""

import math
from dataclasses import dataclass

__all__ = ["ConcurrencyWindow", "RateLimit", "TokenBucket", "rate_at_sender"]


_ROUNDING = 1e-9
_SLOWDOWN = 0.95
"""Where a burst has no room for a margin."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Tokens a second, and how many there are after a pause."""

    per_s: float
    burst: int

    def __post_init__(self) -> None:
        if self.per_s <= 0 or self.burst < 1:
            raise ValueError("a rate is above 0, and its burst at least 1")


def rate_at_sender(rate: RateLimit, *, max_delay_s: float) -> RateLimit:
    """By which to send so that what arrives is within `rate`, each some time later, `late_s` at most.

    Who counts arrivals has a full bucket until the first one, and so fewer tokens later than who counts from its
    sending: as many as come in that time.
    """
    margin = math.ceil(rate.per_s * max_delay_s - _ROUNDING)
    if rate.burst > margin:
        return RateLimit(rate.per_s, rate.burst - margin)
    return RateLimit(_SLOWDOWN * rate.per_s, 1)


class TokenBucket:
    """Full at first. In any `t` seconds no more than `burst + per_s * t` are taken by whoever asks `free` before."""

    def __init__(self, rate: RateLimit, *, now: float) -> None:
        self.rate = rate
        self._tokens = float(rate.burst)
        self._updated_at = now

    def available(self, now: float) -> int:
        """Whole tokens. Below 0 where more was taken than there was."""
        return int((self._level(now) + _ROUNDING) // 1)

    def take(self, amount: int, *, now: float) -> None:
        self._tokens = self._level(now) - amount
        self._updated_at = max(self._updated_at, now)

    def available_at(self, amount: int, *, now: float) -> float:
        """When so many are free, if nobody takes any meanwhile; never where the burst is less."""
        if amount > self.rate.burst:
            return float("inf")
        return max(now, self._updated_at + (amount - self._tokens) / self.rate.per_s)

    def with_rate(self, rate: RateLimit, *, now: float) -> "TokenBucket":
        """Another, of this rate, of which as much is spent as of this one, but no more than all."""
        missing = self.rate.burst - self._level(now)
        other = TokenBucket(rate, now=now)
        other._tokens = max(0.0, rate.burst - missing)
        return other

    def _level(self, now: float) -> float:
        """A clock that goes back brings nothing and takes nothing."""
        passed_s = max(0.0, now - self._updated_at)
        return min(float(self.rate.burst), self._tokens + passed_s * self.rate.per_s)


_GROWTH_PER_S = 1.0


class ConcurrencyWindow:
    """Halved when the endpoint says that it is too much, and one more for each second in which it answers.

    Times are seconds of any clock that does not go back.
    """

    def __init__(self, max_size: int) -> None:
        if max_size < 1:
            raise ValueError("at least one call at once")
        self._max_size = max_size
        self._size = float(max_size)
        self._changed = float("-inf")
        self._halved = float("-inf")

    @property
    def size(self) -> int:
        """From 1 to the most."""
        return int(self._size)

    def throttled(self, *, sent: float, now: float) -> None:
        """A request that was sent then was too much. Those that were under way when it was halved say nothing new."""
        if sent > self._halved:
            self._size = max(1.0, self._size / 2)
            self._halved = self._changed = now

    def responded(self, now: float) -> None:
        """It took a request. After a pause it is no larger than a second of success makes it."""
        if self._size < self._max_size:
            self._size = min(
                float(self._max_size), self._size + _GROWTH_PER_S * min(1.0, max(0.0, now - self._changed))
            )
            self._changed = now

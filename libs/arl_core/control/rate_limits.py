"""Rate limits in calls per second: quotas that refill over time and that finished calls do not release."""

import math
from dataclasses import dataclass

__all__ = ["ConcurrencyWindow", "RateLimit", "TokenBucket", "rate_at_sender"]


_ROUNDING = 1e-9
_SLOWDOWN = 0.95
"""Factor on the rate if the burst is too small for a safety margin."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A rate limit: tokens per second, and the burst that accumulates after a pause."""

    per_s: float
    burst: int

    def __post_init__(self) -> None:
        if self.per_s <= 0 or self.burst < 1:
            raise ValueError("a rate must be above 0 and its burst at least 1")


def rate_at_sender(rate: RateLimit, *, max_delay_s: float) -> RateLimit:
    """Return the rate to send at, so that arrivals stay within `rate` if each is delayed by at most `max_delay_s`.

    The receiver's bucket stays full until the first arrival, while the sender's bucket refills from the first sending
    on. The difference is the number of tokens that refill during the delay; it is subtracted from the burst.
    """
    margin = math.ceil(rate.per_s * max_delay_s - _ROUNDING)
    if rate.burst > margin:
        return RateLimit(rate.per_s, rate.burst - margin)
    return RateLimit(_SLOWDOWN * rate.per_s, 1)


class TokenBucket:
    """A token bucket, full at first.

    If callers check `available` first, any `t` seconds take at most `burst + per_s * t` tokens.
    """

    def __init__(self, rate: RateLimit, *, now: float) -> None:
        self.rate = rate
        self._tokens = float(rate.burst)
        self._updated_at = now

    def available(self, now: float) -> int:
        """Return the number of whole tokens; negative if more were taken than available."""
        return int((self._level(now) + _ROUNDING) // 1)

    def take(self, amount: int, *, now: float) -> None:
        """Take tokens, even more than available. The level then is negative until they refill."""
        self._tokens = self._level(now) - amount
        self._updated_at = max(self._updated_at, now)

    def available_at(self, amount: int, *, now: float) -> float:
        """Return when this many tokens are available if none are taken meanwhile; infinity above the burst."""
        if amount > self.rate.burst:
            return float("inf")
        return max(now, self._updated_at + (amount - self._tokens) / self.rate.per_s)

    def with_rate(self, rate: RateLimit, *, now: float) -> "TokenBucket":
        """Return a bucket with another rate and the same number of spent tokens, but at least 0 tokens left."""
        missing = self.rate.burst - self._level(now)
        other = TokenBucket(rate, now=now)
        other._tokens = max(0.0, rate.burst - missing)
        return other

    def _level(self, now: float) -> float:
        """Return the current tokens. A clock that goes back neither adds nor removes tokens."""
        passed_s = max(0.0, now - self._updated_at)
        return min(float(self.rate.burst), self._tokens + passed_s * self.rate.per_s)


_GROWTH_PER_S = 1.0


class ConcurrencyWindow:
    """A concurrency window: halved when the endpoint throttles, increased by one per second of successful responses.

    Times are seconds of any monotonic clock.
    """

    def __init__(self, max_size: int) -> None:
        if max_size < 1:
            raise ValueError("the concurrency limit must be at least 1")
        self._max_size = max_size
        self._size = float(max_size)
        self._changed = float("-inf")
        self._halved = float("-inf")

    @property
    def size(self) -> int:
        """Return the current window, from 1 to the maximum."""
        return int(self._size)

    def throttled(self, *, sent: float, now: float) -> None:
        """Record a throttled request. Requests sent before the last halving do not halve the window again."""
        if sent > self._halved:
            self._size = max(1.0, self._size / 2)
            self._halved = self._changed = now

    def responded(self, now: float) -> None:
        """Record a successful response. After a pause the window grows by at most one second's worth."""
        if self._size < self._max_size:
            self._size = min(
                float(self._max_size), self._size + _GROWTH_PER_S * min(1.0, max(0.0, now - self._changed))
            )
            self._changed = now

"""So many calls a second: a quota that refills with time and that no end gives back."""

from dataclasses import dataclass

__all__ = ["Rate", "TokenBucket"]

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second, and how many there are after a pause."""

    per_s: float
    burst: int

    def __post_init__(self) -> None:
        if self.per_s <= 0 or self.burst < 1:
            raise ValueError("a rate is above 0, and its burst at least 1")


class TokenBucket:
    """Full at first. In any `t` seconds no more than `burst + per_s * t` are taken by whoever asks `free` before."""

    def __init__(self, rate: Rate, *, now: float) -> None:
        self.rate = rate
        self._tokens = float(rate.burst)
        self._at = now

    def free(self, now: float) -> int:
        """Whole tokens. Below 0 where more was taken than there was."""
        return int((self._level(now) + _ROUNDING) // 1)

    def take(self, amount: int, *, now: float) -> None:
        self._tokens = self._level(now) - amount
        self._at = max(self._at, now)

    def free_at(self, amount: int, *, now: float) -> float:
        """When so many are free, if nobody takes any meanwhile; never where the burst is less."""
        if amount > self.rate.burst:
            return float("inf")
        return max(now, self._at + (amount - self._tokens) / self.rate.per_s)

    def at(self, rate: Rate, *, now: float) -> "TokenBucket":
        """Another, of this rate, of which as much is spent as of this one, but no more than all."""
        missing = self.rate.burst - self._level(now)
        other = TokenBucket(rate, now=now)
        other._tokens = max(0.0, rate.burst - missing)
        return other

    def _level(self, now: float) -> float:
        """A clock that goes back brings nothing and takes nothing."""
        passed_s = max(0.0, now - self._at)
        return min(float(self.rate.burst), self._tokens + passed_s * self.rate.per_s)

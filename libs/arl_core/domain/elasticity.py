"""Duration of an action as a function of the amount of its elastic resource.

Units: amounts as the resource counts them (milli-cores, devices); durations relative to the duration at the smallest
amount the model was made for, unless a table gives seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["AmdahlScaling", "DurationTable", "Elasticity", "NoScaling"]

MAX_RATIO = 1e6
"""Limits of a duration relative to that at another amount, as ratio and inverse; they keep times finite and above 0."""


@dataclass(frozen=True, slots=True)
class NoScaling:
    """A model in which more of the resource has no effect."""

    def relative_duration(self, amount: int, *, base: int) -> float:
        """Return 1: the duration does not depend on the amount."""
        return 1.0


@dataclass(frozen=True, slots=True)
class AmdahlScaling:
    """Amdahl's law relative to one unit: `d(k) = d(1) * ((1 - f) + f / k)` (Amdahl 1967).

    Below one unit, the duration grows in inverse proportion.
    """

    parallel_fraction: float
    unit: int = 1000
    """Amount of one unit: 1000 milli-cores of a core, or 1 device."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.parallel_fraction <= 1.0:
            raise ValueError("parallel_fraction must be from 0 to 1")

    def relative_duration(self, amount: int, *, base: int) -> float:
        """Return the duration with `amount`, relative to the duration with `base`."""
        return self.duration(amount) / self.duration(base)

    def duration(self, amount: int) -> float:
        """Return the duration with `amount`, relative to the duration with one unit."""
        if amount < self.unit:
            return self.unit / amount
        return (1.0 - self.parallel_fraction) + self.parallel_fraction * self.unit / amount


@dataclass(frozen=True, slots=True)
class DurationTable:
    """Measured seconds per amount. Between two entries, the duration of the smaller amount applies."""

    seconds: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        amounts = [amount for amount, _ in self.seconds]
        if not self.seconds or amounts != sorted(set(amounts)) or amounts[0] <= 0:
            raise ValueError("a duration table needs at least one amount; amounts must be distinct and in rising order")
        if any(seconds <= 0 for _, seconds in self.seconds):
            raise ValueError("durations in a table must be above 0")

    @classmethod
    def from_mapping(cls, seconds: Mapping[int, float]) -> "DurationTable":
        """Return a table of these seconds by amount, in any order."""
        return cls(tuple(sorted(seconds.items())))

    def relative_duration(self, amount: int, *, base: int) -> float:
        """Return the duration with `amount`, relative to the duration with `base`, within `MAX_RATIO`."""
        return min(MAX_RATIO, max(1 / MAX_RATIO, self._seconds_at(amount) / self._seconds_at(base)))

    def _seconds_at(self, amount: int) -> float:
        known = [seconds for entry, seconds in self.seconds if entry <= amount]
        return known[-1] if known else self.seconds[0][1]


Elasticity = NoScaling | AmdahlScaling | DurationTable

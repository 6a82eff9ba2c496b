"""Progress of running actions, and their expected ends."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from arl_sim.workload import ActionWork

__all__ = ["SimAttempt", "max_min_shares"]


@dataclass(slots=True)
class SimAttempt:
    """A running action. Its end is known as long as its units do not change."""

    work: ActionWork
    units: float
    """Units on which it runs."""
    work_starts_at: float
    """Time at which work starts; until then the action starts, restores or resizes."""
    speed: float = 1.0
    """Fraction of full speed on these units; below 1 if others share them."""
    remaining_work: float = 1.0
    """Fraction of the work that is left at `work_starts_at`."""
    busy_s: float = 0.0
    """Seconds of work until `work_starts_at`."""
    unit_s: float = 0.0
    """Unit-seconds of work until `work_starts_at`."""
    version: int = 0
    """Version of the end; rises whenever the end changes."""

    @property
    def ends_at(self) -> float:
        return self.work_starts_at + self.remaining_work * self.work.duration_s(self.units) / self.speed

    def used_unit_s(self, now: float) -> float:
        """Return the unit-seconds of work until now."""
        return self.unit_s + max(0.0, now - self.work_starts_at) * self.units

    @property
    def mean_units(self) -> float:
        """Return the mean units while it worked, until the last change."""
        return self.unit_s / self.busy_s if self.busy_s else self.units

    def change(self, units: float, *, now: float, pause_s: float = 0.0, speed: float = 1.0) -> None:
        """Change units and speed from now on, after a pause of `pause_s`."""
        worked_s = max(0.0, now - self.work_starts_at)
        self.remaining_work = max(0.0, self.remaining_work - worked_s * self.speed / self.work.duration_s(self.units))
        self.busy_s += worked_s
        self.unit_s += worked_s * self.units
        self.work_starts_at = max(now, self.work_starts_at) + pause_s
        self.units, self.speed = units, speed
        self.version += 1


def max_min_shares(
    demands: Mapping[UUID, float], capacity: float, weights: Mapping[UUID, float] | None = None
) -> dict[UUID, float]:
    """Return max-min fair shares of cores, like the kernel's between groups; none exceeds its demand.

    Without `weights`, all groups have the same weight.
    """
    shares: dict[UUID, float] = {}
    weight = weights or dict.fromkeys(demands, 1.0)
    left, total = capacity, sum(weight[holder] for holder in demands)
    # The holder whose demand is the smallest part of its weight is satisfied first.
    for holder, most in sorted(demands.items(), key=lambda item: (item[1] / weight[item[0]], item[0])):
        shares[holder] = min(most, left * weight[holder] / total) if total > 0 else 0.0
        left -= shares[holder]
        total -= weight[holder]
    return shares

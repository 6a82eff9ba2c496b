"""How far running actions are, and how soon they end with what they have."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from arl_sim.workload import ActionWork

__all__ = ["SimAttempt", "max_min_shares"]


@dataclass(slots=True)
class SimAttempt:
    """One running action. Its end is known as long as its units stay the same."""

    work: ActionWork
    units: float
    """What it runs on."""
    work_starts_at: float
    """Before that it is being started, restored or resized."""
    speed: float = 1.0
    """The part of its speed on these units that it has, as others run on them too."""
    remaining_work: float = 1.0
    """The part of its work that is left at `works_from`."""
    busy_s: float = 0.0
    """Seconds of work until `works_from`."""
    unit_s: float = 0.0
    """Unit-seconds of work until then."""
    version: int = 0
    """Of its end: rises whenever that changes."""

    @property
    def ends_at(self) -> float:
        return self.work_starts_at + self.remaining_work * self.work.duration_s(self.units) / self.speed

    @property
    def mean_units(self) -> float:
        """While it worked, until its last change."""
        return self.unit_s / self.busy_s if self.busy_s else self.units

    def change(self, units: float, *, now: float, pause_s: float = 0.0, speed: float = 1.0) -> None:
        """From now on it runs on so many units, at this pace; it stands still for `pause_s`."""
        worked_s = max(0.0, now - self.work_starts_at)
        self.remaining_work = max(0.0, self.remaining_work - worked_s * self.speed / self.work.duration_s(self.units))
        self.busy_s += worked_s
        self.unit_s += worked_s * self.units
        self.work_starts_at = max(now, self.work_starts_at) + pause_s
        self.units, self.speed = units, speed
        self.version += 1


def max_min_shares(demands: Mapping[UUID, float], capacity: float) -> dict[UUID, float]:
    """Max-min fair shares of cores, as the kernel gives them between equals: none has more than it wants."""
    shares: dict[UUID, float] = {}
    left = capacity
    for number, (holder, most) in enumerate(sorted(demands.items(), key=lambda item: (item[1], item[0]))):
        shares[holder] = min(most, left / (len(demands) - number))
        left -= shares[holder]
    return shares

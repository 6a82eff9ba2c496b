"""How far running actions are, and how soon they end with what they have."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from arl_sim.workload import Work

__all__ = ["Attempt", "fair_shares"]


@dataclass(slots=True)
class Attempt:
    """One running action. Its end is known as long as its units stay the same."""

    work: Work
    units: float
    """What it runs on."""
    works_from: float
    """Before that it is being started, restored or resized."""
    pace: float = 1.0
    """The part of its speed on these units that it has, as others run on them too."""
    left: float = 1.0
    """The part of its work that is left at `works_from`."""
    busy_s: float = 0.0
    """Seconds of work until `works_from`."""
    unit_s: float = 0.0
    """Unit-seconds of work until then."""
    version: int = 0
    """Of its end: rises whenever that changes."""

    @property
    def ends(self) -> float:
        return self.works_from + self.left * self.work.duration_s(self.units) / self.pace

    @property
    def mean_units(self) -> float:
        """While it worked, until its last change."""
        return self.unit_s / self.busy_s if self.busy_s else self.units

    def change(self, units: float, *, now: float, pause_s: float = 0.0, pace: float = 1.0) -> None:
        """From now on it runs on so many units, at this pace; it stands still for `pause_s`."""
        worked_s = max(0.0, now - self.works_from)
        self.left = max(0.0, self.left - worked_s * self.pace / self.work.duration_s(self.units))
        self.busy_s += worked_s
        self.unit_s += worked_s * self.units
        self.works_from = max(now, self.works_from) + pause_s
        self.units, self.pace = units, pace
        self.version += 1


def fair_shares(wanted: Mapping[UUID, float], capacity: float) -> dict[UUID, float]:
    """Max-min fair shares of cores, as the kernel gives them between equals: none has more than it wants."""
    shares: dict[UUID, float] = {}
    left = capacity
    for number, (holder, most) in enumerate(sorted(wanted.items(), key=lambda item: (item[1], item[0]))):
        shares[holder] = min(most, left / (len(wanted) - number))
        left -= shares[holder]
    return shares

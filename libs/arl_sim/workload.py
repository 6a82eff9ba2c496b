"""What a simulated workload is: trajectories that think, act and think again.

A closed loop: an action is submitted when the thinking after the one before it has ended, so its time of submission
depends on the policy. How long an action takes is known to the simulator alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from arl_core.domain.model import ExclusiveService

__all__ = ["ActionWork", "ResourceKind", "SimTrajectory", "SimWorkload", "TrajectoryAction"]


class ResourceKind(StrEnum):
    """What an action takes a share of; its unit."""

    CPU = "cpu"  # a core
    GPU = "gpu"  # a device, in groups
    API = "api"  # one call at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionWork:
    """One action's work, whoever schedules it."""

    cls: str
    """Actions of one class are learnt from together."""
    resource_kind: ResourceKind
    seconds: float
    """On one unit."""
    parallel_fraction: float = 0.0
    choices: tuple[float, ...] = (1,)
    """How many units it can use, in rising order."""
    fixed_units: float = 1
    """How many it would be given where the number is fixed."""
    service: str | None = None

    def duration_s(self, units: float) -> float:
        """Amdahl's law (1967) on so many units; on a part of one it is slower in proportion."""
        if units < 1.0:
            return self.seconds / units
        return self.seconds * ((1.0 - self.parallel_fraction) + self.parallel_fraction / units)

    @property
    def fastest_s(self) -> float:
        return self.duration_s(self.choices[-1])


@dataclass(frozen=True, slots=True)
class TrajectoryAction:
    think_s: float
    work: ActionWork
    depends_on: tuple[int, ...] | None = None
    """Places of the turns that are over before it thinks; None of one that follows the one before it."""
    is_outside_environment: bool = False
    """In an environment of its own: beside others of its trajectory."""


@dataclass(frozen=True, slots=True)
class SimTrajectory:
    """A trajectory. Its CPU actions run in one environment, one at a time, but for those outside of it."""

    task: str
    actions: tuple[TrajectoryAction, ...]
    starts_s: float = 0.0

    @property
    def has_environment(self) -> bool:
        return any(
            turn.work.resource_kind is ResourceKind.CPU and not turn.is_outside_environment for turn in self.actions
        )

    def dependencies_of(self, position: int) -> tuple[int, ...]:
        """The turns that are over before this one thinks."""
        after = self.actions[position].depends_on
        if after is None:
            return (position - 1,) if position else ()
        return after


@dataclass(frozen=True, slots=True)
class SimWorkload:
    trajectories: tuple[SimTrajectory, ...]
    services: Mapping[str, ExclusiveService] = field(default_factory=dict)

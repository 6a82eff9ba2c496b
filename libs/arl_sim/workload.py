"""Model of simulated workloads: trajectories that alternate thinking and acting.

The loop is closed: an action is submitted after the thinking time that follows the previous action. Its submission time
therefore depends on the policy. Only the simulator knows how long an action takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from arl_core.domain.model import ExclusiveService, ResizeSupport
from arl_core.queue.quotas import TaskQuota

__all__ = ["ActionWork", "ResourceKind", "SimTask", "SimTrajectory", "SimWorkload", "TrajectoryAction"]


class ResourceKind(StrEnum):
    """The resource that an action uses, and its unit."""

    CPU = "cpu"  # a core
    GPU = "gpu"  # a device, in groups
    API = "api"  # one call at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionWork:
    """The work of one action, independent of the scheduler."""

    cls: str
    """Class name; actions of a class share duration estimates."""
    resource_kind: ResourceKind
    seconds: float
    """Seconds on one unit."""
    parallel_fraction: float = 0.0
    choices: tuple[float, ...] = (1,)
    """Allowed numbers of units, in rising order."""
    fixed_units: float = 1
    """Units under a fixed demand."""
    service: str | None = None
    memory_mib: int | None = None
    """Memory of its environment; None for the default of the simulation."""
    resizable: ResizeSupport = ResizeSupport.ANY
    """The resizes that a CPU action supports."""
    slots: tuple[str, ...] = ()
    """Resources of reward services and endpoints that a call uses, which quotas of tasks count."""

    def duration_s(self, units: float) -> float:
        """Return the duration by Amdahl's law (1967); on less than one unit it grows in inverse proportion."""
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
    """Positions of the actions that must end before it thinks; None for an action that follows the previous one."""
    is_outside_environment: bool = False
    """True if it runs in an environment of its own, concurrently with others of its trajectory."""
    priority: int = 0
    deadline_s: float | None = None
    """Seconds from its submission. An action that has not started then settles, and its trajectory goes on."""


@dataclass(frozen=True, slots=True)
class SimTrajectory:
    """A trajectory. Its CPU actions run one at a time in one environment, except those outside of it."""

    task: str
    actions: tuple[TrajectoryAction, ...]
    starts_s: float = 0.0

    @property
    def has_environment(self) -> bool:
        return any(
            turn.work.resource_kind is ResourceKind.CPU and not turn.is_outside_environment for turn in self.actions
        )

    @property
    def memory_mib(self) -> int | None:
        """Memory of its environment, which its first use sets; None for the default."""
        uses = (turn.work.memory_mib for turn in self.actions if turn.work.resource_kind is ResourceKind.CPU)
        return next(uses, None)

    def dependencies_of(self, position: int) -> tuple[int, ...]:
        """Return the positions of the actions that must end before this one thinks."""
        after = self.actions[position].depends_on
        if after is None:
            return (position - 1,) if position else ()
        return after


@dataclass(frozen=True, slots=True)
class SimTask:
    """The settings of a task."""

    weight: float = 1.0
    quota: TaskQuota = field(default_factory=TaskQuota)


@dataclass(frozen=True, slots=True)
class SimWorkload:
    trajectories: tuple[SimTrajectory, ...]
    services: Mapping[str, ExclusiveService] = field(default_factory=dict)
    tasks: Mapping[str, SimTask] = field(default_factory=dict)
    """Settings by task; a task without an entry has the defaults."""

    @property
    def slots(self) -> frozenset[str]:
        return frozenset(name for each in self.trajectories for action in each.actions for name in action.work.slots)

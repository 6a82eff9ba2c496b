"""Progress of trajectories: the finished actions, and those that may begin."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from arl_core.domain.model import QueuedAction, TrajectoryName
from arl_sim.workload import SimTrajectory

__all__ = ["TrajectoryProgress"]


@dataclass(slots=True, eq=False)
class TrajectoryProgress:
    """The progress of a trajectory. Its actions form a graph: several may depend on one, and one on several."""

    number: int
    trajectory: SimTrajectory
    started_at: float | None = None
    is_creating_pod: bool = False
    """True while the action that creates the environment is not done."""
    delayed: list[tuple[int, QueuedAction]] = field(default_factory=list)
    """Actions that wait for the environment."""
    _pending_dependencies: list[int] = field(init=False)
    """Number of unfinished dependencies of each action."""
    _dependents: list[list[int]] = field(init=False)
    _unfinished: int = field(init=False)
    """Number of unfinished actions."""

    def __post_init__(self) -> None:
        self._unfinished = len(self.trajectory.actions)
        self._pending_dependencies = [len(self.trajectory.dependencies_of(at)) for at in range(self._unfinished)]
        self._dependents = [[] for _ in range(self._unfinished)]
        for at in range(self._unfinished):
            for before in self.trajectory.dependencies_of(at):
                self._dependents[before].append(at)

    @property
    def name(self) -> TrajectoryName:
        return 0, str(self.number)

    @property
    def is_finished(self) -> bool:
        return self._unfinished == 0

    def initial_positions(self) -> list[int]:
        """Return the actions without dependencies."""
        return [at for at, missing in enumerate(self._pending_dependencies) if not missing]

    def complete(self, position: int) -> Iterable[int]:
        """Mark an action as finished; return the actions whose last dependency it was."""
        self._unfinished -= 1
        ready = []
        for follower in self._dependents[position]:
            self._pending_dependencies[follower] -= 1
            if not self._pending_dependencies[follower]:
                ready.append(follower)
        return ready

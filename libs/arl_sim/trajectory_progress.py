"""Trajectories on their way: which of their turns are over, and which may begin."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from arl_core.domain.model import QueuedAction, TrajectoryName
from arl_sim.workload import SimTrajectory

__all__ = ["TrajectoryProgress"]


@dataclass(slots=True, eq=False)
class TrajectoryProgress:
    """A trajectory on its way. Its turns branch where several wait for one, and join where one waits for several."""

    number: int
    trajectory: SimTrajectory
    started_at: float | None = None
    is_creating_pod: bool = False
    """Its environment's own action is not over yet."""
    delayed: list[tuple[int, QueuedAction]] = field(default_factory=list)
    """Its turns that wait for that."""
    _pending_dependencies: list[int] = field(init=False)
    """Of each turn, how many that it waits for are not over."""
    _dependents: list[list[int]] = field(init=False)
    _unfinished: int = field(init=False)
    """Turns that are not over."""

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
        """The turns that wait for none."""
        return [at for at, missing in enumerate(self._pending_dependencies) if not missing]

    def complete(self, position: int) -> Iterable[int]:
        """This turn is; those that waited for it alone by now."""
        self._unfinished -= 1
        ready = []
        for follower in self._dependents[position]:
            self._pending_dependencies[follower] -= 1
            if not self._pending_dependencies[follower]:
                ready.append(follower)
        return ready

"""Trajectories on their way: which of their turns are over, and which may begin."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from arl_core.model import TrajectoryName, Waiting
from arl_sim.workload import Rollout

__all__ = ["Life"]


@dataclass(slots=True, eq=False)
class Life:
    """A trajectory on its way. Its turns branch where several wait for one, and join where one waits for several."""

    number: int
    rollout: Rollout
    began: float | None = None
    makes_pod: bool = False
    """Its environment's own action is not over yet."""
    delayed: list[tuple[int, Waiting]] = field(default_factory=list)
    """Its turns that wait for that."""
    _missing: list[int] = field(init=False)
    """Of each turn, how many that it waits for are not over."""
    _followers: list[list[int]] = field(init=False)
    _open: int = field(init=False)
    """Turns that are not over."""

    def __post_init__(self) -> None:
        self._open = len(self.rollout.turns)
        self._missing = [len(self.rollout.waits_for(at)) for at in range(self._open)]
        self._followers = [[] for _ in range(self._open)]
        for at in range(self._open):
            for before in self.rollout.waits_for(at):
                self._followers[before].append(at)

    @property
    def name(self) -> TrajectoryName:
        return 0, str(self.number)

    @property
    def is_over(self) -> bool:
        return self._open == 0

    def first(self) -> list[int]:
        """The turns that wait for none."""
        return [at for at, missing in enumerate(self._missing) if not missing]

    def over(self, at: int) -> Iterable[int]:
        """This turn is; those that waited for it alone by now."""
        self._open -= 1
        ready = []
        for follower in self._followers[at]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                ready.append(follower)
        return ready

"""Step awareness of a simulated scheduler: the trajectories that are expected to end their step last."""

from dataclasses import dataclass, field

from arl_core.domain.model import TrajectoryName
from arl_core.steps.prediction import TrajectoryState
from arl_core.steps.projection import BoostRule, project_step
from arl_core.steps.trajectory_record import TaskPace
from arl_sim.workload import ResourceKind, SimTrajectory

__all__ = ["SimStepAwareness"]

PROJECTION_INTERVAL_S = 0.1
"""Least simulated seconds between two projections, as in the scheduler."""


@dataclass(slots=True)
class _OpenTrajectory:
    task: str
    expected_turns: int
    turns: int = 0
    solo_s: float = 0.0


@dataclass(slots=True)
class SimStepAwareness:
    """The open trajectories of a step, and the critical ones among them. Each gives its number of turns as a hint."""

    cores: float
    """Cores of the cluster; 0 if no trajectory is ever critical."""
    critical: frozenset[TrajectoryName] = frozenset()
    _open: dict[TrajectoryName, _OpenTrajectory] = field(default_factory=dict)
    _paces: dict[str, TaskPace] = field(default_factory=dict)
    _projected_at: float = float("-inf")

    def begin(self, name: TrajectoryName, trajectory: SimTrajectory) -> None:
        """Add a trajectory that begins."""
        self._open[name] = _OpenTrajectory(trajectory.task, len(trajectory.actions))

    def record_turn(self, name: TrajectoryName, trajectory: SimTrajectory, position: int) -> None:
        """Record that the action at `position` has ended."""
        progress, action = self._open.get(name), trajectory.actions[position]
        if progress is None:
            return
        solo_s = action.think_s + action.work.fastest_s
        progress.turns += 1
        progress.solo_s += solo_s
        cpu_s = action.work.seconds if action.work.resource_kind is ResourceKind.CPU else 0.0
        self._paces.setdefault(trajectory.task, TaskPace()).add_turn(solo_s, cpu_s)

    def end(self, name: TrajectoryName) -> None:
        """Remove a trajectory that has ended."""
        self._open.pop(name, None)

    def project(self, now: float) -> bool:
        """Find the critical trajectories. Return True if they have changed."""
        if not self.cores or now < self._projected_at + PROJECTION_INTERVAL_S:
            return False
        self._projected_at = now
        found = frozenset(name for task, pace in self._paces.items() for name in self._critical_of(task, pace, now))
        changed = found != self.critical
        self.critical = found
        return changed

    def _critical_of(self, task: str, pace: TaskPace, now: float) -> list[TrajectoryName]:
        states = {
            name: TrajectoryState(turns=each.turns, solo_s=each.solo_s, expected_turns=each.expected_turns)
            for name, each in self._open.items()
            if each.task == task
        }
        projections = project_step(
            states,
            elapsed_s=now,
            turn_s=pace.turn_s,
            trajectory_s=pace.trajectory_s,
            cpu_fraction=pace.cpu_fraction,
            cores=self.cores,
        )
        return [name for name, each in projections.items() if each.rule is BoostRule.CRITICAL_TRAJECTORY]

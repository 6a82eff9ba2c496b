"""Projection of a step: when each open trajectory ends, and which of them go first."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from arl_core.steps.critical import StepTrajectory, critical_trajectories, is_work_bound, late_trajectories
from arl_core.steps.prediction import RestPrediction, TrajectoryState, predict_rest

__all__ = ["BoostRule", "TrajectoryProjection", "limit_by_node", "project_step"]

NameT = TypeVar("NameT", bound=Hashable)


class BoostRule(StrEnum):
    """The rule that decided about a trajectory when its step was last projected."""

    CRITICAL_TRAJECTORY = "critical_trajectory"  # it is expected to end its step last: its actions go first
    ENDS_EARLIER = "ends_earlier"  # others are expected to end after it
    WORK_BOUND = "work_bound"  # the cores are busy until all work of the step is done, in any order
    NODE_LIMIT = "node_limit"  # enough other trajectories of its node, or of its task's share of the cores, go first
    NO_PREDICTION = "no_prediction"  # neither a hint nor earlier steps tell when it ends
    DISABLED = "disabled"  # it is expected to end its step last, and step awareness is off
    TRAJECTORY_ENDED = "trajectory_ended"  # it has ended


@dataclass(frozen=True, slots=True)
class TrajectoryProjection:
    """The projection of one trajectory."""

    rest: RestPrediction | None
    rule: BoostRule


def project_step(
    states: Mapping[NameT, TrajectoryState],
    *,
    elapsed_s: float,
    turn_s: float,
    trajectory_s: float,
    cpu_fraction: float,
    cores: float,
) -> dict[NameT, TrajectoryProjection]:
    """Predict the rest of each open trajectory of a step, and choose the critical ones.

    Args:
        states: The open trajectories.
        elapsed_s: Seconds since the step began.
        turn_s: Mean solo seconds of a turn of the task.
        trajectory_s: Mean solo seconds of a trajectory of the task, for the work of those without a prediction.
        cpu_fraction: Core-seconds of a solo second of the task.
        cores: Cores that the task may use.
    """
    rests = {name: predict_rest(state, turn_s=turn_s) for name, state in states.items()}
    trajectories: dict[NameT, StepTrajectory] = {}
    for name, rest in rests.items():
        rest_s = rest.rest_s if rest is not None else None
        work_s = rest_s if rest_s is not None else max(0.0, trajectory_s - states[name].solo_s)
        trajectories[name] = StepTrajectory(elapsed_s=elapsed_s, rest_s=rest_s, rest_core_s=work_s * cpu_fraction)
    late = frozenset(late_trajectories(trajectories))
    critical = critical_trajectories(trajectories, cores=cores)
    is_bound = is_work_bound(trajectories, cores=cores)

    def rule(name: NameT) -> BoostRule:
        """Return the rule that applies to a trajectory."""
        if rests[name] is None:
            return BoostRule.NO_PREDICTION
        if name in critical:
            return BoostRule.CRITICAL_TRAJECTORY
        if is_bound:
            return BoostRule.WORK_BOUND
        return BoostRule.NODE_LIMIT if name in late else BoostRule.ENDS_EARLIER

    return {name: TrajectoryProjection(rest, rule(name)) for name, rest in rests.items()}


def limit_by_node(
    critical: Iterable[tuple[NameT, int | None]], room_of: Callable[[int | None], int]
) -> frozenset[NameT]:
    """Return the names that remain if each node has room for a number of critical trajectories.

    Args:
        critical: Names and nodes of critical trajectories, the most important ones first. The node is None for a
            trajectory without a grant.
        room_of: Number of critical trajectories of a node, or of those without a node.
    """
    left: dict[int | None, int] = {}
    kept: set[NameT] = set()
    for name, node in critical:
        left[node] = left.get(node, room_of(node)) - 1
        if left[node] >= 0:
            kept.add(name)
    return frozenset(kept)

"""Test that a simulated scheduler finds the trajectories that end their step last."""

from arl_sim.step_awareness import PROJECTION_INTERVAL_S, SimStepAwareness
from arl_sim.workload import ActionWork, ResourceKind, SimTrajectory, TrajectoryAction

LONG, SHORT = (0, "long"), (0, "short")


def a_trajectory(turns: int, *, think_s: float = 5.0, seconds: float = 1.0) -> SimTrajectory:
    work = ActionWork(cls="shell", resource_kind=ResourceKind.CPU, seconds=seconds)
    return SimTrajectory("t", (TrajectoryAction(think_s, work),) * turns)


def started(cores: float, *, think_s: float = 5.0, short_turns: int = 4) -> SimStepAwareness:
    """Return the awareness of a step in which each of two trajectories has ended one turn."""
    steps = SimStepAwareness(cores)
    for name, turns in ((LONG, 20), (SHORT, short_turns)):
        trajectory = a_trajectory(turns, think_s=think_s)
        steps.begin(name, trajectory)
        steps.record_turn(name, trajectory, 0)
    return steps


def test_trajectory_with_the_most_turns_left_is_critical() -> None:
    steps = started(cores=2)
    assert steps.project(6.0)
    assert steps.critical == {LONG}


def test_none_is_critical_while_the_step_is_bound_by_its_work() -> None:
    steps = started(cores=1, think_s=0.0, short_turns=20)
    assert not steps.project(6.0)
    assert steps.critical == frozenset()


def test_none_is_critical_without_hints() -> None:
    steps = started(cores=0)
    assert not steps.project(6.0)


def test_ended_trajectory_is_not_critical_after_the_next_projection() -> None:
    steps = started(cores=2)
    steps.project(6.0)
    steps.end(LONG)
    assert not steps.project(6.0 + PROJECTION_INTERVAL_S / 2), "the next projection is not due"
    assert steps.project(6.0 + PROJECTION_INTERVAL_S)
    assert steps.critical == {SHORT}

"""Test the record of a trajectory, and the projection of a step."""

from uuid import UUID

import pytest

from arl_core.steps.prediction import TrajectoryState
from arl_core.steps.projection import BoostRule, limit_by_node, project_step
from arl_core.steps.trajectory_record import CPU, TaskPace, TrajectoryRecord, TurnTimes, saving_s, waited_resource

FIRST, SECOND = UUID(int=1), UUID(int=2)


def a_record() -> TrajectoryRecord:
    return TrajectoryRecord(started=100.0, active=100.0)


class TestTrajectoryRecord:
    def test_turn_with_measured_times_fills_each_part(self) -> None:
        record = a_record()
        record.add_queued(FIRST, at=100.0, resource=CPU)
        record.record_granted(FIRST, at=102.0, node=7)
        record.record_ended(FIRST, at=108.0, times=TurnTimes(run_s=3.0, wall_s=5.0, cpu_s=2.5))
        record.add_queued(SECOND, at=118.0, resource="slots:judge")
        record.record_granted(SECOND, at=119.0, node=8)
        assert (record.queue_s, record.run_s, record.core_wait_s, record.overhead_s) == (3.0, 3.0, 2.0, 1.0)
        assert (record.think_s, record.cpu_s, record.turns, record.node) == (10.0, 2.5, 1, 8)
        assert record.waits == {CPU: 4.0, "slots:judge": 1.0}
        assert record.solo_s == 13.0

    def test_requeued_attempt_is_overhead_and_no_turn(self) -> None:
        record = a_record()
        record.add_queued(FIRST, at=100.0, resource=CPU)
        record.record_granted(FIRST, at=100.0, node=7)
        record.record_requeued(FIRST, at=104.0)
        record.record_granted(FIRST, at=106.0, node=8)
        record.record_ended(FIRST, at=109.0, times=None)
        assert (record.turns, record.overhead_s, record.queue_s, record.run_s) == (1, 4.0, 2.0, 3.0)

    def test_repeated_notification_changes_nothing(self) -> None:
        record = a_record()
        for _ in range(2):
            record.add_queued(FIRST, at=100.0, resource=CPU)
            record.record_granted(FIRST, at=101.0, node=7)
        for _ in range(2):
            record.record_ended(FIRST, at=102.0, times=None)
        assert (record.turns, record.queue_s) == (1, 1.0)

    def test_time_while_another_action_runs_is_no_thinking(self) -> None:
        record = a_record()
        record.add_queued(FIRST, at=100.0, resource=CPU)
        record.add_queued(SECOND, at=103.0, resource=CPU)
        record.record_ended(FIRST, at=105.0, times=None)
        record.drop(SECOND, at=106.0)
        record.add_queued(FIRST, at=110.0, resource=CPU)
        assert record.think_s == 4.0

    def test_latest_hint_applies_and_an_absent_one_keeps_the_earlier(self) -> None:
        record = a_record()
        record.set_hints(prompt="p", group=None, expected_turns=5, progress=None)
        record.set_hints(prompt=None, group="g", expected_turns=9, progress=None)
        assert (record.prompt, record.group, record.expected_turns) == ("p", "g", 9)

    def test_hint_of_progress_is_extrapolated(self) -> None:
        record = a_record()
        record.run_s = 10.0
        record.set_hints(prompt=None, group=None, expected_turns=None, progress=0.25)
        record.run_s = 20.0
        assert record.to_state((), now=record.active).progress == pytest.approx(0.5)

    def test_time_since_the_last_action_is_thinking(self) -> None:
        record = a_record()
        record.add_queued(FIRST, at=100.0, resource=CPU)
        assert (record.to_state((), now=101.0).open_turns, record.to_state((), now=101.0).thinking_s) == (1, 0.0)
        record.record_ended(FIRST, at=102.0, times=None)
        assert (record.to_state((), now=105.0).open_turns, record.to_state((), now=105.0).thinking_s) == (0, 3.0)


class TestTaskPace:
    def test_means_follow_the_added_values(self) -> None:
        pace = TaskPace()
        assert (pace.turn_s, pace.cpu_fraction, pace.trajectory_s) == (1.0, 0.3, 0.0)
        pace.add_turn(4.0, 1.0)
        pace.add_trajectory(30.0)
        assert (pace.turn_s, pace.cpu_fraction, pace.trajectory_s) == (4.0, 0.25, 30.0)


def rules(states: dict[str, TrajectoryState], *, cores: float = 2, cpu_fraction: float = 0.1) -> dict[str, BoostRule]:
    found = project_step(states, elapsed_s=10.0, turn_s=1.0, trajectory_s=20.0, cpu_fraction=cpu_fraction, cores=cores)
    return {name: each.rule for name, each in found.items()}


def a_state(expected_turns: int | None) -> TrajectoryState:
    return TrajectoryState(turns=0, solo_s=0.0, expected_turns=expected_turns)


class TestProjection:
    def test_each_trajectory_gets_the_rule_that_applies(self) -> None:
        states = {"late": a_state(50), "early": a_state(5), "unknown": a_state(None)}
        assert rules(states) == {
            "late": BoostRule.CRITICAL_TRAJECTORY,
            "early": BoostRule.ENDS_EARLIER,
            "unknown": BoostRule.NO_PREDICTION,
        }

    def test_more_late_trajectories_than_cores_reach_the_limit(self) -> None:
        found = rules({str(number): a_state(50) for number in range(5)})
        assert sorted(found.values()) == [BoostRule.CRITICAL_TRAJECTORY] * 2 + [BoostRule.NODE_LIMIT] * 3

    def test_work_of_trajectories_without_a_prediction_makes_a_step_work_bound(self) -> None:
        states = {"late": a_state(50)} | {str(number): a_state(None) for number in range(90)}
        assert rules(states)["late"] is BoostRule.WORK_BOUND
        assert rules(states, cores=32)["late"] is BoostRule.CRITICAL_TRAJECTORY

    def test_task_with_less_than_a_core_has_no_critical_trajectory(self) -> None:
        assert rules({"late": a_state(50)}, cores=0.5, cpu_fraction=0.0)["late"] is BoostRule.NODE_LIMIT

    def test_node_keeps_the_first_critical_trajectories_that_it_has_room_for(self) -> None:
        critical = [("a", 1), ("b", 1), ("c", 1), ("d", 2), ("e", None)]
        assert limit_by_node(critical, lambda node: 2 if node == 1 else 1) == {"a", "b", "d", "e"}


def test_saving_falls_with_the_number_of_units() -> None:
    assert saving_s(6.0, units=2) == 2.0
    assert saving_s(6.0, units=0) == 6.0


def test_action_waits_for_its_slots_or_calls_or_for_cores() -> None:
    assert waited_resource({"slots:judge": 1}) == "slots:judge"
    assert waited_resource({"cpu_milli": 500, "memory_mib": 5}) == CPU

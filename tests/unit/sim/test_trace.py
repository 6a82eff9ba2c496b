"""Recorded actions, read as a trace and simulated again."""

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from arl_bench.simulation.action_recording import record_actions
from arl_core.domain.states import ActionOutcome, ActionState
from arl_core.policies.registry import PolicyName
from arl_sim.engine import START_S
from arl_sim.sizing import DoesNotFitError, SimHardware, simulate
from arl_sim.workload import ResourceKind
from arl_sim.workloads.trace import RecordedAction, TraceError, read_trace, to_workload, trace_lines
from arl_wire.actions.action import Action

ONE_NODE = SimHardware(nodes=1, cores=8, gpus=0, calls=4, pod_cores=4)


def a_recorded(submitted_s: float = 1000.0, *, run_s: float = 2.0, trajectory: str | None = "t1") -> RecordedAction:
    """Return a recorded action that ran on one core and could have used 8."""
    return RecordedAction(
        task="ai-coding",
        trajectory=trajectory,
        class_key="suite",
        submitted_s=submitted_s,
        ended_s=submitted_s + run_s,
        run_s=run_s,
        allocation={"cpu_milli": 1000, "memory_mib": 512},
        demand={"cpu_milli": 1000, "memory_mib": 512},
        max_cpu_milli=8000,
        step=1000,
        parallel_fraction=0.9,
    )


def test_written_trace_is_read_back_unchanged() -> None:
    actions = [a_recorded(), a_recorded(1010.0, trajectory=None)]
    assert read_trace(trace_lines(actions)) == actions


def test_trajectory_keeps_its_recorded_thinking_time() -> None:
    (rollout,) = to_workload([a_recorded(1005.0), a_recorded(1000.0)]).trajectories
    assert [turn.think_s for turn in rollout.actions] == [0.0, 3.0]


def test_action_without_trajectory_arrives_at_its_recorded_time() -> None:
    rollouts = to_workload([a_recorded(1000.0, trajectory=None), a_recorded(1004.0, trajectory=None)]).trajectories
    assert [rollout.starts_s for rollout in rollouts] == [0.0, 4.0]


def test_more_cores_speed_action_up_as_declared() -> None:
    (record,) = simulate(to_workload([a_recorded(run_s=8.0)]), "spar", ONE_NODE).records
    assert record.act_s == pytest.approx(START_S + 8.0 * (0.1 + 0.9 / 8))


def test_action_recorded_on_several_cores_is_slower_on_one() -> None:
    on_eight = replace(a_recorded(run_s=1.0), allocation={"cpu_milli": 8000})
    (record,) = simulate(to_workload([on_eight]), "fcfs", ONE_NODE).records
    assert record.act_s == pytest.approx(START_S + 1.0 / (0.1 + 0.9 / 8))


def test_score_is_simulated_as_api_call() -> None:
    score = replace(a_recorded(), allocation={"slots:minilm": 1}, demand={"slots:minilm": 1}, max_cpu_milli=0)
    (rollout,) = to_workload([score]).trajectories
    assert rollout.actions[0].work.resource_kind is ResourceKind.API


def test_action_that_fits_no_node_is_rejected_before_simulation() -> None:
    wide = replace(a_recorded(), demand={"cpu_milli": 16000}, max_cpu_milli=16000)
    with pytest.raises(DoesNotFitError, match="16 cores"):
        simulate(to_workload([wide]), "spar_m", ONE_NODE)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "line 1 is no JSON"),
        (["{}"], "no tangram-trace"),
        ([*trace_lines([]), "[]"], "line 2 is no object"),
        ([*trace_lines([]), "{}"], "line 2"),
    ],
)
def test_invalid_trace_is_refused_with_its_line(lines: list[str], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_trace(lines)


class TestBranches:
    def test_concurrent_actions_outside_environments_run_concurrently_again(self) -> None:
        actions = [outside(1000.0 + 0.01 * number, run_s=10.0) for number in range(16)]
        records = simulate(to_workload(actions), "fcfs", replace(ONE_NODE, cores=64)).records
        assert max(record.ended for record in records) == pytest.approx(10.0 + 0.15 + START_S)

    def test_action_depends_on_all_actions_that_ended_before_its_submission(self) -> None:
        actions = [outside(1000.0, run_s=4.0), outside(1001.0, run_s=1.0), outside(1005.0, run_s=1.0)]
        (rollout,) = to_workload(actions).trajectories
        assert [rollout.dependencies_of(at) for at in range(3)] == [(), (), (0, 1)]
        assert [turn.think_s for turn in rollout.actions] == [0.0, 1.0, 1.0]

    def test_two_branches_of_one_trajectory_continue_independently(self) -> None:
        slow = [outside(1000.0, run_s=20.0)]
        quick = [outside(at, run_s=4.0) for at in (1001.0, 1006.0, 1012.0)]
        (rollout,) = to_workload([*slow, *quick]).trajectories
        assert [rollout.dependencies_of(at) for at in range(4)] == [(), (), (1,), (2,)]
        assert [turn.think_s for turn in rollout.actions] == [0.0, 1.0, 1.0, 2.0]

    def test_actions_in_one_environment_run_one_after_another(self) -> None:
        actions = [a_recorded(at, run_s=5.0) for at in (1000.0, 1000.5)]
        records = simulate(to_workload(actions), "fcfs", ONE_NODE).records
        assert max(record.ended for record in records) == pytest.approx(2 * (5.0 + START_S))

    def test_score_is_independent_of_concurrent_environment_action(self) -> None:
        score = replace(
            outside(1001.0, run_s=1.0), allocation={"slots:minilm": 1}, demand={"slots:minilm": 1}, max_cpu_milli=0
        )
        (rollout,) = to_workload([a_recorded(run_s=5.0), score, a_recorded(1006.0)]).trajectories
        assert [rollout.dependencies_of(at) for at in range(3)] == [(), (), (0, 1)]
        assert rollout.has_environment

    @pytest.mark.parametrize("policy", list(PolicyName))
    def test_every_policy_runs_branches_inside_and_outside_environments(self, policy: PolicyName) -> None:
        actions = [each(1000.0 + at, run_s=5.0) for at in (0.0, 0.5, 7.0) for each in (a_recorded, outside)]
        assert len(simulate(to_workload(actions), policy, ONE_NODE).records) == len(actions)

    def test_trace_without_environment_field_is_read_as_sequential(self) -> None:
        fields = {name: value for name, value in asdict(a_recorded(run_s=5.0)).items() if name != "in_environment"}
        lines = [{"format": "tangram-trace", "version": 1}, fields, fields | {"submitted_s": 1000.5}]
        actions = read_trace(json.dumps(line) for line in lines)
        (rollout,) = to_workload(actions).trajectories
        assert [action.in_environment for action in actions] == [True, True]
        assert [rollout.dependencies_of(at) for at in range(2)] == [(), (0,)]


def outside(submitted_s: float, *, run_s: float) -> RecordedAction:
    """Return an action that ran on one core in its own ephemeral environment."""
    return replace(a_recorded(submitted_s, run_s=run_s), in_environment=False)


@pytest.mark.parametrize("environment", [None, UUID(int=7)])
def test_recording_notes_whether_action_ran_in_persistent_environment(environment: UUID | None) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    action = Action(
        id=UUID(int=1), task="t", trajectory="x", kind="exec", environment=environment, state=ActionState.SETTLED,
        outcome=ActionOutcome.OK, created_at=at, settled_at=at,
    )  # fmt: skip
    (found,) = record_actions([action])
    assert found.in_environment is (environment is not None)

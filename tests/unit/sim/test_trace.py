"""What was recorded, run again."""

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
    """On one core; it could have had 8."""
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


def test_what_was_written_is_read_again() -> None:
    actions = [a_recorded(), a_recorded(1010.0, trajectory=None)]
    assert read_trace(trace_lines(actions)) == actions


def test_a_trajectory_thinks_as_long_as_it_did() -> None:
    (rollout,) = to_workload([a_recorded(1005.0), a_recorded(1000.0)]).trajectories
    assert [turn.think_s for turn in rollout.actions] == [0.0, 3.0]


def test_what_has_no_trajectory_comes_when_it_came() -> None:
    rollouts = to_workload([a_recorded(1000.0, trajectory=None), a_recorded(1004.0, trajectory=None)]).trajectories
    assert [rollout.starts_s for rollout in rollouts] == [0.0, 4.0]


def test_more_cores_make_it_as_fast_as_was_declared() -> None:
    (record,) = simulate(to_workload([a_recorded(run_s=8.0)]), "spar", ONE_NODE).records
    assert record.act_s == pytest.approx(START_S + 8.0 * (0.1 + 0.9 / 8))


def test_what_ran_on_several_cores_is_slower_on_one() -> None:
    on_eight = replace(a_recorded(run_s=1.0), allocation={"cpu_milli": 8000})
    (record,) = simulate(to_workload([on_eight]), "fcfs", ONE_NODE).records
    assert record.act_s == pytest.approx(START_S + 1.0 / (0.1 + 0.9 / 8))


def test_a_score_is_a_call() -> None:
    score = replace(a_recorded(), allocation={"slots:minilm": 1}, demand={"slots:minilm": 1}, max_cpu_milli=0)
    (rollout,) = to_workload([score]).trajectories
    assert rollout.actions[0].work.resource_kind is ResourceKind.API


def test_what_fits_on_no_node_is_said_before_it_waits_for_ever() -> None:
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
def test_what_is_no_trace_is_refused_with_its_line(lines: list[str], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_trace(lines)


class TestBranches:
    def test_what_ran_side_by_side_outside_of_an_environment_does_so_again(self) -> None:
        actions = [outside(1000.0 + 0.01 * number, run_s=10.0) for number in range(16)]
        records = simulate(to_workload(actions), "fcfs", replace(ONE_NODE, cores=64)).records
        assert max(record.ended for record in records) == pytest.approx(10.0 + 0.15 + START_S)

    def test_what_was_submitted_after_several_had_ended_waits_for_all_of_them(self) -> None:
        actions = [outside(1000.0, run_s=4.0), outside(1001.0, run_s=1.0), outside(1005.0, run_s=1.0)]
        (rollout,) = to_workload(actions).trajectories
        assert [rollout.dependencies_of(at) for at in range(3)] == [(), (), (0, 1)]
        assert [turn.think_s for turn in rollout.actions] == [0.0, 1.0, 1.0]

    def test_two_lines_of_one_trajectory_go_on_by_themselves(self) -> None:
        slow = [outside(1000.0, run_s=20.0)]
        quick = [outside(at, run_s=4.0) for at in (1001.0, 1006.0, 1012.0)]
        (rollout,) = to_workload([*slow, *quick]).trajectories
        assert [rollout.dependencies_of(at) for at in range(4)] == [(), (), (1,), (2,)]
        assert [turn.think_s for turn in rollout.actions] == [0.0, 1.0, 1.0, 2.0]

    def test_in_an_environment_they_follow_one_another_however_early_they_were_submitted(self) -> None:
        actions = [a_recorded(at, run_s=5.0) for at in (1000.0, 1000.5)]
        records = simulate(to_workload(actions), "fcfs", ONE_NODE).records
        assert max(record.ended for record in records) == pytest.approx(2 * (5.0 + START_S))

    def test_a_score_beside_an_action_in_the_environment_is_waited_for_by_neither(self) -> None:
        score = replace(
            outside(1001.0, run_s=1.0), allocation={"slots:minilm": 1}, demand={"slots:minilm": 1}, max_cpu_milli=0
        )
        (rollout,) = to_workload([a_recorded(run_s=5.0), score, a_recorded(1006.0)]).trajectories
        assert [rollout.dependencies_of(at) for at in range(3)] == [(), (), (0, 1)]
        assert rollout.has_environment

    @pytest.mark.parametrize("policy", list(PolicyName))
    def test_every_policy_runs_branches_inside_and_outside_of_an_environment(self, policy: PolicyName) -> None:
        actions = [each(1000.0 + at, run_s=5.0) for at in (0.0, 0.5, 7.0) for each in (a_recorded, outside)]
        assert len(simulate(to_workload(actions), policy, ONE_NODE).records) == len(actions)

    def test_what_was_recorded_before_this_was_known_is_read_as_one_after_another(self) -> None:
        fields = {name: value for name, value in asdict(a_recorded(run_s=5.0)).items() if name != "in_environment"}
        lines = [{"format": "tangram-trace", "version": 1}, fields, fields | {"submitted_s": 1000.5}]
        actions = read_trace(json.dumps(line) for line in lines)
        (rollout,) = to_workload(actions).trajectories
        assert [action.in_environment for action in actions] == [True, True]
        assert [rollout.dependencies_of(at) for at in range(2)] == [(), (0,)]


def outside(submitted_s: float, *, run_s: float) -> RecordedAction:
    """On one core, in an environment of its own."""
    return replace(a_recorded(submitted_s, run_s=run_s), in_environment=False)


@pytest.mark.parametrize("environment", [None, UUID(int=7)])
def test_whether_it_ran_in_a_kept_environment_is_recorded(environment: UUID | None) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    action = Action(
        id=UUID(int=1), task="t", trajectory="x", kind="exec", environment=environment, state=ActionState.SETTLED,
        outcome=ActionOutcome.OK, created_at=at, settled_at=at,
    )  # fmt: skip
    (found,) = record_actions([action])
    assert found.in_environment is (environment is not None)

"""Recorded actions, read as a trace and simulated again."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from arl_bench.simulation.action_recording import record_actions, record_tasks
from arl_core.domain.states import ActionOutcome, ActionState
from arl_core.policies.registry import PolicyName
from arl_sim.engine import START_S
from arl_sim.results import compute_statistics
from arl_sim.sizing import DoesNotFitError, SimHardware, simulate
from arl_sim.workload import ResourceKind, SimWorkload
from arl_sim.workloads.trace import (
    RecordedAction,
    RecordedTask,
    RecordedTrace,
    TraceError,
    read_trace,
    to_workload,
    trace_lines,
)
from arl_wire.actions.action import Action, ElasticDemand
from arl_wire.admin.queues import Queue, QueueQuota

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


def workload_of(actions: Sequence[RecordedAction], **tasks: RecordedTask) -> SimWorkload:
    return to_workload(RecordedTrace(actions, tasks))


def starts(actions: Sequence[RecordedAction], hardware: SimHardware, **tasks: RecordedTask) -> list[tuple[str, float]]:
    """Return class name and start of each action under SPAR-M, in order of their starts."""
    records = simulate(workload_of(actions, **tasks), "spar_m", hardware).records
    return sorted(((record.work.cls, round(record.started, 3)) for record in records), key=lambda each: each[1])


def test_written_trace_is_read_back_unchanged() -> None:
    actions = [
        replace(a_recorded(), priority=-3, deadline_s=60.5, resizable="grow"),
        a_recorded(1010.0, trajectory=None),
    ]
    tasks = {"ai-coding": RecordedTask(weight=2.5, running=4, resources={"slots:minilm": 2}), "other": RecordedTask()}
    trace = RecordedTrace(actions, tasks)
    assert read_trace(trace_lines(trace)) == trace


class TestSettings:
    """What an action and its task declared counts in the simulation."""

    ONE_CORE = replace(ONE_NODE, cores=1)

    def test_higher_priority_goes_first(self) -> None:
        first = replace(outside(1000.0, run_s=5.0, trajectory=None), class_key="first")
        low = replace(outside(1001.0, run_s=1.0, trajectory=None), class_key="low")
        high = replace(outside(1002.0, run_s=1.0, trajectory=None), class_key="high", priority=5)
        assert [name for name, _ in starts([first, low, high], self.ONE_CORE)] == ["first", "high", "low"]

    def test_action_queued_at_its_deadline_is_missed_and_its_trajectory_goes_on(self) -> None:
        busy = outside(1000.0, run_s=10.0, trajectory=None)
        late = replace(outside(1001.0, run_s=1.0, trajectory="t"), class_key="late", deadline_s=3.0)
        next_one = replace(outside(1003.0, run_s=1.0, trajectory="t"), class_key="next")
        result = simulate(workload_of([busy, late, next_one]), "spar_m", self.ONE_CORE)
        assert (result.missed, compute_statistics(result).missed) == (1, 1)
        assert [record.work.cls for record in result.records] == ["suite", "next"]
        submitted = next(record.submitted for record in result.records if record.work.cls == "next")
        assert submitted == pytest.approx(1.0 + 3.0 + 1.0), "it thinks from the deadline on"

    def test_quota_of_a_task_limits_its_running_actions(self) -> None:
        actions = [outside(1000.0, run_s=5.0, trajectory=None) for _ in range(3)]
        actions = [replace(each, max_cpu_milli=1000) for each in actions]
        begun = [at for _, at in starts(actions, ONE_NODE, **{"ai-coding": RecordedTask(running=1)})]
        assert begun == pytest.approx([0.0, 5.0 + START_S, 2 * (5.0 + START_S)])

    def test_quota_of_a_reward_service_limits_its_scores(self) -> None:
        slots = {"allocation": {"slots:minilm": 1}, "demand": {"slots:minilm": 1}, "max_cpu_milli": 0}
        scores = [replace(outside(1000.0, run_s=5.0, trajectory=None), **slots) for _ in range(2)]
        other = replace(scores[0], allocation={"slots:quality": 1}, demand={"slots:quality": 1}, class_key="other")
        limited = RecordedTask(resources={"slots:minilm": 1})
        begun = starts([*scores, other], ONE_NODE, **{"ai-coding": limited})
        assert sorted(begun) == [("other", 0.0), ("suite", 0.0), ("suite", pytest.approx(5.0 + START_S))]

    def test_weight_of_a_task_gives_it_a_larger_share(self) -> None:
        both = [
            replace(
                outside(1000.0 + 0.001 * n, run_s=1.0, trajectory=None), task=task, class_key=task, max_cpu_milli=1000
            )
            for n in range(40)
            for task in ("heavy", "light")
        ]
        begun = starts(both, self.ONE_CORE, heavy=RecordedTask(weight=3.0), light=RecordedTask(weight=1.0))
        assert 13 <= [name for name, _ in begun[:20]].count("heavy") <= 17

    def test_memory_limits_the_actions_of_a_node(self) -> None:
        actions = [
            replace(outside(1000.0, run_s=5.0, trajectory=None), demand={"cpu_milli": 1000, "memory_mib": 600},
                    max_cpu_milli=1000)
            for _ in range(2)
        ]  # fmt: skip
        assert [at for _, at in starts(actions, ONE_NODE)] == [0.0, 0.0]
        begun = [at for _, at in starts(actions, replace(ONE_NODE, memory_mib=1000))]
        assert begun == pytest.approx([0.0, 5.0 + START_S])
        with pytest.raises(DoesNotFitError, match="600 MiB"):
            simulate(workload_of(actions), "spar_m", replace(ONE_NODE, memory_mib=500))

    @pytest.mark.parametrize(("resizable", "seconds"), [("none", 8.0), ("any", None)])
    def test_action_is_resized_only_if_it_supports_it(self, resizable: str, seconds: float | None) -> None:
        """It starts on one core, and the other seven are free after a second."""
        others = [replace(outside(1000.0, run_s=1.0, trajectory=None), demand={"cpu_milli": 7000}, max_cpu_milli=7000)]
        wide = replace(
            outside(1000.1, run_s=8.0, trajectory=None), class_key="wide", parallel_fraction=1.0, resizable=resizable
        )
        records = simulate(workload_of([*others, wide]), "spar_m", ONE_NODE).records
        (ran,) = [record.ended - record.started for record in records if record.work.cls == "wide"]
        assert (ran == pytest.approx(8.0 + START_S)) == (seconds is not None)

    def test_recording_notes_what_the_action_and_the_task_declared(self) -> None:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        elastic = ElasticDemand(resource="cpu_milli", min=1000, max=4000, step=1000, elasticity={}, resizable="grow")
        action = Action(
            id=UUID(int=1), task="t", kind="exec", state=ActionState.SETTLED, outcome=ActionOutcome.OK, created_at=at,
            settled_at=at, deadline_at=at + timedelta(seconds=90), priority=7, elastic=elastic,
        )  # fmt: skip
        (found,) = record_actions([action])
        assert (found.priority, found.deadline_s, found.resizable) == (7, 90.0, "grow")
        quota = QueueQuota(running=3, reward_services={"minilm": 2}, endpoints={"search": 1})
        queues = [Queue(id=1, task="t", queued=0, running=0, weight=4.0, quota=quota)]
        expected = RecordedTask(weight=4.0, running=3, resources={"slots:minilm": 2, "calls:search": 1})
        assert record_tasks([*queues, Queue(id=2, task="u", queued=0, running=0)]) == {
            "t": expected,
            "u": RecordedTask(),
        }


def test_trajectory_keeps_its_recorded_thinking_time() -> None:
    (rollout,) = workload_of([a_recorded(1005.0), a_recorded(1000.0)]).trajectories
    assert [turn.think_s for turn in rollout.actions] == [0.0, 3.0]


def test_action_without_trajectory_arrives_at_its_recorded_time() -> None:
    rollouts = workload_of([a_recorded(1000.0, trajectory=None), a_recorded(1004.0, trajectory=None)]).trajectories
    assert [rollout.starts_s for rollout in rollouts] == [0.0, 4.0]


def test_more_cores_speed_action_up_as_declared() -> None:
    (record,) = simulate(workload_of([a_recorded(run_s=8.0)]), "spar", ONE_NODE).records
    assert record.act_s == pytest.approx(START_S + 8.0 * (0.1 + 0.9 / 8))


def test_action_recorded_on_several_cores_is_slower_on_one() -> None:
    on_eight = replace(a_recorded(run_s=1.0), allocation={"cpu_milli": 8000})
    (record,) = simulate(workload_of([on_eight]), "fcfs", ONE_NODE).records
    assert record.act_s == pytest.approx(START_S + 1.0 / (0.1 + 0.9 / 8))


def test_score_is_simulated_as_api_call() -> None:
    score = replace(a_recorded(), allocation={"slots:minilm": 1}, demand={"slots:minilm": 1}, max_cpu_milli=0)
    (rollout,) = workload_of([score]).trajectories
    assert rollout.actions[0].work.resource_kind is ResourceKind.API


def test_action_that_fits_no_node_is_rejected_before_simulation() -> None:
    wide = replace(a_recorded(), demand={"cpu_milli": 16000}, max_cpu_milli=16000)
    with pytest.raises(DoesNotFitError, match="16 cores"):
        simulate(workload_of([wide]), "spar_m", ONE_NODE)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "line 1 is no JSON"),
        (["{}"], "no tangram-trace"),
        ([*trace_lines(RecordedTrace([])), "[]"], "line 2 is no object"),
        ([*trace_lines(RecordedTrace([])), "{}"], "line 2"),
        (['{"format": "tangram-trace", "version": 3, "tasks": {"t": {"weight": 0}}}'], "line 1: a weight"),
        (
            ['{"format": "tangram-trace", "version": 3, "tasks": {"t": {"weight": 1, "running": 0}}}'],
            "line 1: a weight",
        ),
        (['{"format": "tangram-trace", "version": 3, "tasks": {"t": {"wait": 1}}}'], "line 1"),
    ],
)
def test_invalid_trace_is_refused_with_its_line(lines: list[str], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_trace(lines)


class TestBranches:
    def test_concurrent_actions_outside_environments_run_concurrently_again(self) -> None:
        actions = [outside(1000.0 + 0.01 * number, run_s=10.0) for number in range(16)]
        records = simulate(workload_of(actions), "fcfs", replace(ONE_NODE, cores=64)).records
        assert max(record.ended for record in records) == pytest.approx(10.0 + 0.15 + START_S)

    def test_action_depends_on_all_actions_that_ended_before_its_submission(self) -> None:
        actions = [outside(1000.0, run_s=4.0), outside(1001.0, run_s=1.0), outside(1005.0, run_s=1.0)]
        (rollout,) = workload_of(actions).trajectories
        assert [rollout.dependencies_of(at) for at in range(3)] == [(), (), (0, 1)]
        assert [turn.think_s for turn in rollout.actions] == [0.0, 1.0, 1.0]

    def test_two_branches_of_one_trajectory_continue_independently(self) -> None:
        slow = [outside(1000.0, run_s=20.0)]
        quick = [outside(at, run_s=4.0) for at in (1001.0, 1006.0, 1012.0)]
        (rollout,) = workload_of([*slow, *quick]).trajectories
        assert [rollout.dependencies_of(at) for at in range(4)] == [(), (), (1,), (2,)]
        assert [turn.think_s for turn in rollout.actions] == [0.0, 1.0, 1.0, 2.0]

    def test_actions_in_one_environment_run_one_after_another(self) -> None:
        actions = [a_recorded(at, run_s=5.0) for at in (1000.0, 1000.5)]
        records = simulate(workload_of(actions), "fcfs", ONE_NODE).records
        assert max(record.ended for record in records) == pytest.approx(2 * (5.0 + START_S))

    def test_score_is_independent_of_concurrent_environment_action(self) -> None:
        score = replace(
            outside(1001.0, run_s=1.0), allocation={"slots:minilm": 1}, demand={"slots:minilm": 1}, max_cpu_milli=0
        )
        (rollout,) = workload_of([a_recorded(run_s=5.0), score, a_recorded(1006.0)]).trajectories
        assert [rollout.dependencies_of(at) for at in range(3)] == [(), (), (0, 1)]
        assert rollout.has_environment

    @pytest.mark.parametrize("policy", list(PolicyName))
    def test_every_policy_runs_branches_inside_and_outside_environments(self, policy: PolicyName) -> None:
        actions = [each(1000.0 + at, run_s=5.0) for at in (0.0, 0.5, 7.0) for each in (a_recorded, outside)]
        assert len(simulate(workload_of(actions), policy, ONE_NODE).records) == len(actions)

    def test_trace_without_environment_field_is_read_as_sequential(self) -> None:
        fields = {name: value for name, value in asdict(a_recorded(run_s=5.0)).items() if name != "in_environment"}
        lines = [{"format": "tangram-trace", "version": 1}, fields, fields | {"submitted_s": 1000.5}]
        actions = read_trace(json.dumps(line) for line in lines).actions
        (rollout,) = workload_of(actions).trajectories
        assert [action.in_environment for action in actions] == [True, True]
        assert [rollout.dependencies_of(at) for at in range(2)] == [(), (0,)]


def outside(submitted_s: float, *, run_s: float, trajectory: str | None = "t1") -> RecordedAction:
    """Return an action that ran on one core in its own ephemeral environment."""
    return replace(a_recorded(submitted_s, run_s=run_s, trajectory=trajectory), in_environment=False)


@pytest.mark.parametrize("environment", [None, UUID(int=7)])
def test_recording_notes_whether_action_ran_in_persistent_environment(environment: UUID | None) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    action = Action(
        id=UUID(int=1), task="t", trajectory="x", kind="exec", environment=environment, state=ActionState.SETTLED,
        outcome=ActionOutcome.OK, created_at=at, settled_at=at,
    )  # fmt: skip
    (found,) = record_actions([action])
    assert found.in_environment is (environment is not None)

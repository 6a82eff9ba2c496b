"""Quotas of tasks, in the leader's memory and under every policy."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arl_core.domain.model import Fence, Grant, slot_resource
from arl_core.domain.states import WaitReason
from arl_core.inquiry.explain import explain
from arl_core.policies.registry import CORE_SHARING_POLICIES, PolicyName, create_policy
from arl_core.queue.quotas import TaskQuota
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.queries.poll_result import PollResult
from arl_wire.internal.scheduler import GangMembership, QueuedActionRow
from support.builders import a_held_action, a_node_row, a_poll, a_queued_row, numbered

NOW = 1000.0
CORE = {"cpu_milli": 1000}
CAPPED, FREE = 1, 2
SCORE = {"kind": "score", "shape": "quota", "class_key": 2, "demand": {slot_resource("judge"): 1}}
POLICY = create_policy(PolicyName.SPAR_M, pod_cpu_milli=1000, limit=1000)
TOGETHER = [PolicyName.FCFS, PolicyName.REFERENCE, PolicyName.SPAR, PolicyName.SPAR_M]


def two_nodes() -> list[object]:
    cpu = a_node_row(capacity={"cpu_milli": 8000, "memory_mib": 8000, "disk_mib": 8000})
    return [cpu, a_node_row(2, kind="gpu", capacity={slot_resource("judge"): 64})]


def known(*queued: QueuedActionRow, quota: TaskQuota | None) -> PollResult:
    poll = a_poll(queued=queued, nodes=two_nodes())  # type: ignore[arg-type]
    return replace(poll, quotas={CAPPED: quota} if quota is not None else {})


def an_index(name: PolicyName, *queued: QueuedActionRow, quota: TaskQuota | None) -> SchedulerIndex:
    """Return an index of a cell with eight cores and 64 judge slots."""
    index = SchedulerIndex(create_policy(name, pod_cpu_milli=1000, limit=1000))
    index.reconcile(known(*queued, quota=quota))
    return index


def granted(index: SchedulerIndex) -> list[Grant]:
    """Return the grants of rounds until a round grants nothing; Postgres confirms every grant."""
    found: list[Grant] = []
    while grants := index.plan(now=NOW, silent_after_s=10, watching_since=NOW).grants:
        index.apply_grants(grants, now=NOW)
        found += grants
    return found


def a_round(index: SchedulerIndex) -> None:
    index.apply_grants(index.plan(now=NOW, silent_after_s=10, watching_since=NOW).grants, now=NOW)


def running(index: SchedulerIndex, task: int) -> int:
    return sum(hold.task == task for hold in index.allocations)


def some(count: int, *, task: int = CAPPED, first: int = 1, **changed: object) -> list[QueuedActionRow]:
    return [a_queued_row(number, queue_id=task, **changed) for number in range(first, first + count)]


@pytest.mark.parametrize("name", PolicyName)
def test_task_runs_at_most_its_quota_and_others_get_rest(name: PolicyName) -> None:
    index = an_index(name, *some(20), *some(20, task=FREE, first=101), quota=TaskQuota(actions=2))
    granted(index)
    assert running(index, CAPPED) == 2
    assert running(index, FREE) == (20 if name in CORE_SHARING_POLICIES else 6)


@pytest.mark.parametrize("name", PolicyName)
def test_ended_action_lets_queued_action_of_its_task_start(name: PolicyName) -> None:
    index = an_index(name, *some(4), quota=TaskQuota(actions=2))
    first = granted(index)
    index.release_attempts([first[0].fence])
    assert len(granted(index)) == 1
    assert running(index, CAPPED) == 2


@pytest.mark.parametrize("name", PolicyName)
def test_reward_service_quota_limits_only_scores_of_that_service(name: PolicyName) -> None:
    scores = some(30, first=201, **SCORE)
    index = an_index(name, *some(3), *scores, quota=TaskQuota(resources={slot_resource("judge"): 4}))
    granted(index)
    assert sum(slot_resource("judge") in hold.resources for hold in index.allocations) == 4
    assert running(index, CAPPED) == 7


@pytest.mark.parametrize("name", TOGETHER)
def test_gang_above_quota_waits_whole_without_blocking_other_actions(name: PolicyName) -> None:
    gang = some(3, first=301, gang=GangMembership(id=numbered(999), size=3))
    index = an_index(name, *some(2), *gang, *some(9, task=FREE, first=101), quota=TaskQuota(actions=4))
    before = granted(index)
    assert (running(index, CAPPED), running(index, FREE)) == (2, 6)
    index.release_attempts([grant.fence for grant in before])
    granted(index)
    assert {hold.fence.action_id for hold in index.allocations} >= {row.id for row in gang}
    assert (running(index, CAPPED), running(index, FREE)) == (3, 3)


def test_lower_quota_keeps_running_actions_and_can_be_removed() -> None:
    rows = some(6)
    index = an_index(PolicyName.SPAR_M, *rows, quota=TaskQuota(actions=4))
    first = granted(index)
    held = [a_held_action(grant.fence) for grant in first]
    index.reconcile(replace(known(quota=TaskQuota(actions=1)), allocations=tuple(held)))
    assert (running(index, CAPPED), granted(index)) == (4, [])
    index.release_attempts([grant.fence for grant in first])
    assert len(granted(index)) == 1
    index.reconcile(
        replace(known(quota=None), allocations=tuple(map(a_held_action, (hold.fence for hold in index.allocations))))
    )
    assert len(granted(index)) == 1


def test_new_leader_counts_existing_allocations_towards_quota() -> None:
    index = SchedulerIndex()
    held = tuple(a_held_action(Fence(numbered(number), 1)) for number in (501, 502))
    index.reconcile(replace(known(*some(4), quota=TaskQuota(actions=3)), allocations=held))
    assert len(granted(index)) == 1


def test_only_actions_beyond_quota_report_task_at_quota() -> None:
    index = an_index(PolicyName.SPAR_M, *some(3), quota=TaskQuota(actions=2))

    def rules() -> list[WaitReason]:
        snapshot = index.snapshot(now=NOW, silent_after_s=10, watching_since=NOW)
        standings = [index.queue_position(numbered(number)) for number in (1, 2, 3)]
        return [explain(snapshot, each.action, POLICY).reason for each in standings if each is not None]

    assert rules() == [WaitReason.STARTS_NEXT_ROUND, WaitReason.STARTS_NEXT_ROUND, WaitReason.TASK_AT_QUOTA]
    granted(index)
    assert rules() == [WaitReason.TASK_AT_QUOTA]


@pytest.mark.parametrize("name", PolicyName)
def test_task_at_quota_leaves_remaining_capacity_to_others(name: PolicyName) -> None:
    index = an_index(name, *some(200), *some(200, task=FREE, first=1001), quota=TaskQuota(actions=2))
    for number in range(12):
        capped = [hold.fence for hold in index.allocations if hold.task == CAPPED]
        index.release_attempts(capped[:1])
        a_round(index)
        if number:
            assert running(index, CAPPED) == 2
            assert running(index, FREE) >= 6


@pytest.mark.parametrize("name", [PolicyName.SPAR, PolicyName.SPAR_M])
def test_actions_beyond_quota_do_not_reduce_parallelism(name: PolicyName) -> None:
    amdahl = {"model": "amdahl", "parallel_fraction": 0.95}
    elastic = {"resource": "cpu_milli", "min": 1000, "max": 8000, "step": 1000, "elasticity": amdahl}
    widths = []
    for waiting in (1, 500):
        index = an_index(name, *some(waiting, elastic=elastic), quota=TaskQuota(actions=1))
        granted(index)
        (hold,) = index.allocations
        widths.append(hold.resources["cpu_milli"])
    assert widths[1] == widths[0] > 1000


@pytest.mark.parametrize("name", PolicyName)
def test_gang_at_quota_starts_after_running_actions_end(name: PolicyName) -> None:
    gang = [a_queued_row(number, gang=GangMembership(id=numbered(999), size=3)) for number in (11, 12, 13)]
    index = an_index(name, *some(3), quota=TaskQuota(actions=3))
    granted(index)
    index.admit([*gang, *some(100, first=101)])
    for _ in range(3):
        index.release_attempts([next(iter(index.allocations)).fence])
        a_round(index)
    assert {hold.fence.action_id for hold in index.allocations} == {row.id for row in gang}


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(PolicyName))
def test_grants_never_exceed_quota_under_random_changes(data: st.DataObject, name: PolicyName) -> None:
    quotas = st.builds(
        TaskQuota, actions=st.none() | st.integers(1, 6), resources=st.just({}) | st.just({slot_resource("judge"): 2})
    )
    quota = data.draw(quotas)
    index = an_index(name, *some(30), *some(10, first=201, **SCORE), quota=quota)
    for _ in range(data.draw(st.integers(1, 8))):
        before, of_judge = (
            running(index, CAPPED),
            sum(slot_resource("judge") in hold.resources for hold in index.allocations),
        )
        new = index.plan(now=NOW, silent_after_s=10, watching_since=NOW).grants
        index.apply_grants(new, now=NOW)
        scores = sum(slot_resource("judge") in grant.resources for grant in new)
        assert not new or quota.actions is None or before + len(new) <= quota.actions
        assert not scores or not quota.resources or of_judge + scores <= 2
        held = [hold.fence for hold in index.allocations]
        index.release_attempts(data.draw(st.lists(st.sampled_from(held), unique=True)) if held else [])
        if data.draw(st.booleans()):
            quota = data.draw(quotas)
            index.allocations.set_quotas({CAPPED: quota})

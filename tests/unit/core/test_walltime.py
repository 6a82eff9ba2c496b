"""An action starts only on a node that ends after its time limit, under every policy and on every path."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest

from arl_core.capacity.feasibility import FeasibilityCheck
from arl_core.capacity.node_fitting import NodeFitter
from arl_core.capacity.walltime import END_GRACE_S, can_end_on, rounded_time_limit_s, time_left_s
from arl_core.domain.model import ActionClass, Gang, NodeResources, PinnedEnvironment, QueuedAction, ResourceDemand
from arl_core.domain.states import WaitReason
from arl_core.inquiry.explain import explain
from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.reference import ReferencePolicy
from arl_core.policies.spar import SparPolicy
from arl_core.policies.static_pods import StaticPods
from arl_scheduler.index.node_table import ENDING_INTERVAL_S
from arl_scheduler.index.scheduler_index import SchedulerIndex
from support.builders import a_class, a_node_row, a_poll, a_pool, a_queued_row, a_snapshot, an_action, numbered

POLICIES: Sequence[SchedulingPolicy] = (
    FirstComeFirstServed(),
    ReferencePolicy(),
    StaticPods(1000),
    SparPolicy(),
    SparPolicy(is_resizing=True),
)
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
NOW = 1000.0


def limited(seconds: float, key: int = 1) -> ActionClass:
    return replace(a_class(key), demand=ResourceDemand({"cpu_milli": 1000}), time_limit_s=seconds)


def ending(left_s: float, node: int = 1) -> NodeResources:
    return replace(a_pool(node, cpu_milli=8000), time_left_s=left_s)


def started(policy: SchedulingPolicy, actions: Sequence[QueuedAction], *nodes: NodeResources) -> dict[int, int]:
    """Return the node of each granted action, by number."""
    grants = policy.plan(a_snapshot(queued=actions, pools=nodes)).grants
    return {grant.fence.action_id.int: grant.node for grant in grants}


@pytest.mark.parametrize("timeout_s", [1e-6, 1.0, 2.0, 10.0, 59.9, 60.0, 300.0, 3600.0, 86_400.0])
def test_time_limit_is_rounded_up_by_at_most_an_eighth(timeout_s: float) -> None:
    rounded = rounded_time_limit_s(timeout_s)
    assert timeout_s <= rounded <= max(1.0, 1.125 * timeout_s)
    assert rounded_time_limit_s(rounded) == rounded


def test_few_time_limits_remain() -> None:
    assert len({rounded_time_limit_s(seconds) for seconds in range(1, 86_401)}) < 150


def test_time_left_ends_a_grace_before_the_node() -> None:
    assert time_left_s(NOW + 100, NOW) == 100 - END_GRACE_S
    assert time_left_s(None, NOW) == inf
    assert not can_end_on(limited(0.0), ending(time_left_s(NOW - 1, NOW)))


@every_policy
def test_action_starts_only_on_a_node_that_ends_later(policy: SchedulingPolicy) -> None:
    action = an_action(1, cls=limited(320))
    assert started(policy, [action], ending(319)) == {}
    assert started(policy, [action], ending(320)) == {1: 1}
    assert started(policy, [action], ending(319), ending(inf, node=2)) == {1: 2}


@every_policy
def test_long_action_of_a_class_does_not_block_short_ones(policy: SchedulingPolicy) -> None:
    actions = [an_action(1, cls=limited(320)), an_action(2, cls=limited(64))]
    assert started(policy, actions, ending(100)) == {2: 1}


@every_policy
@pytest.mark.parametrize("node", [1, None])
def test_action_of_an_environment_starts_only_if_it_ends_in_time(policy: SchedulingPolicy, node: int | None) -> None:
    cls = replace(limited(320), demand=ResourceDemand({"cpu_milli": 1000, "memory_mib": 1}))
    action = an_action(1, cls=cls, environment=PinnedEnvironment(numbered(9), node))
    pool = a_pool(1, cpu_milli=8000, memory_mib=100, disk_mib=100)
    assert started(policy, [action], replace(pool, time_left_s=319)) == {}
    assert started(policy, [action], replace(pool, time_left_s=320)) == {1: 1}


@every_policy
def test_gang_starts_only_where_its_longest_action_ends_in_time(policy: SchedulingPolicy) -> None:
    gang = Gang(numbered(7), 2)
    short, long = (an_action(number, cls=limited(limit))._replace(gang=gang) for number, limit in ((1, 64), (2, 320)))
    head = short._replace(gang_members=(long,))
    assert started(policy, [head], ending(100)) == {}
    assert started(policy, [head], ending(100), ending(inf, node=2))[2] == 2


def test_node_that_ends_too_soon_is_not_reserved() -> None:
    nodes = {1: ending(319), 2: ending(320, node=2)}
    action = an_action(1, cls=limited(320))
    found = NodeFitter.from_nodes(nodes).find_reservation_nodes(action, outside=lambda _: {}, first=1, excluded=())
    assert found == [2]


def test_node_that_ends_too_soon_is_not_used_for_backfill() -> None:
    nodes = {1: ending(319), 2: ending(320, node=2)}
    fitter, action = NodeFitter.from_nodes(nodes), an_action(1, cls=limited(320))
    assert [fitter.fits_with_reserved(node, action, {}) for node in nodes] == [False, True]


def test_class_is_infeasible_if_all_nodes_end_too_soon() -> None:
    check = FeasibilityCheck([ending(100), ending(200, node=2)])
    assert [check.is_feasible(limited(seconds)) for seconds in (64, 192, 320)] == [True, True, False]


class TestExplanation:
    def test_action_that_no_node_can_end_waits_for_another_node(self) -> None:
        action = an_action(1, cls=limited(320))
        found = explain(a_snapshot(queued=[action], pools=[ending(100), ending(200, node=2)]), action, SparPolicy())
        assert (found.reason, found.node) == (WaitReason.NODES_END_TOO_SOON, 2)
        assert (found.time_limit_s, found.time_left_s) == (320, 200)

    def test_cordoned_node_is_reported_before_its_end(self) -> None:
        action = an_action(1, cls=limited(320))
        closed = replace(ending(100), is_schedulable=False)
        found = explain(a_snapshot(queued=[action], pools=[closed]), action, SparPolicy())
        assert found.reason is WaitReason.NO_SCHEDULABLE_NODE


class TestIndex:
    def grants(self, index: SchedulerIndex, *, now: float) -> int:
        return len(index.plan(now=now, silent_after_s=1e6, watching_since=0.0).grants)

    def test_time_left_decreases_between_polls(self) -> None:
        index = SchedulerIndex()
        row = a_queued_row(1, timeout_s=64.0)
        index.reconcile(a_poll(queued=[row], nodes=[a_node_row(ends_at=NOW + END_GRACE_S + 64.0)]))
        assert self.grants(index, now=NOW) == 1
        assert self.grants(index, now=NOW + 2 * ENDING_INTERVAL_S) == 0

    def test_actions_of_one_class_with_different_timeouts_share_estimates(self) -> None:
        index = SchedulerIndex()
        rows = [a_queued_row(1, timeout_s=64.0), a_queued_row(2, timeout_s=640.0)]
        index.reconcile(a_poll(queued=rows, nodes=[a_node_row(ends_at=NOW + 200.0)]))
        assert self.grants(index, now=NOW) == 1
        assert {bucket.cls.key for bucket in index.candidates.queue.buckets()} == {1}

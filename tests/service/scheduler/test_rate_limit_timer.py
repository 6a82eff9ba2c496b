"""Test the leader's rate-limit tokens: how many are available, and when to wake for the next ones."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from arl_core.control.rate_limits import RateLimit
from arl_core.domain.model import Fence
from arl_core.domain.states import WaitReason
from arl_core.inquiry.explain import explain
from arl_core.inquiry.forecast import ForecastSimulator
from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.spar import SparPolicy
from arl_core.policies.static_pods import StaticPods
from arl_core.queue.fairness import total_resources
from arl_scheduler.index.rate_limit_timer import REFILL_INTERVAL_S
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.inquiry.capacity_planner import build_forecast_input
from arl_scheduler.queries.poll_result import AllocationRow, NodeRow
from arl_wire.internal.scheduler import GangMembership, QueuedActionRow
from support.builders import a_held_action, a_node_row, a_poll, a_queued_row, numbered

NOW = 1000.0
SEARCH = "calls:search"
ONE = {SEARCH: 1}
policies = pytest.mark.parametrize(
    "policy", [FirstComeFirstServed(), SparPolicy(), SparPolicy(is_resizing=True), StaticPods(cpu_milli=1000)], ids=repr
)


def a_broker(number: int = 1, *, calls: int = 10, per_s: float = 2.0, burst: int = 4, **changed: Any) -> NodeRow:
    rates = {SEARCH: RateLimit(per_s, burst)}
    return a_node_row(number, kind="api", capacity={SEARCH: calls}, **({"rate_limits": rates} | changed))


def calls(count: int, *, first: int = 1, **changed: Any) -> list[QueuedActionRow]:
    row = {"kind": "call", "shape": "quota", "demand": ONE, "class_key": 7} | changed
    return [a_queued_row(number, **row) for number in range(first, first + count)]


def in_flight(count: int) -> list[AllocationRow]:
    """Build allocations that an earlier leader granted."""
    return [a_held_action(Fence(numbered(100 + number), 1), resources=ONE) for number in range(count)]


class Leading:
    """A scheduler index with its own clock."""

    def __init__(
        self,
        *nodes: NodeRow,
        policy: SchedulingPolicy | None = None,
        queued: Sequence[QueuedActionRow] = (),
        held: Sequence[AllocationRow] = (),
    ) -> None:
        self.index, self.nodes = SchedulerIndex(policy), nodes or (a_broker(),)
        self.now = 50.0
        self.index.rate_limit_timer.refill(self.now)
        self.index.reconcile(a_poll(nodes=self.nodes, queued=queued, held=held))

    def poll(self, *nodes: NodeRow, **changed: Any) -> None:
        """Poll these nodes; the current allocations stay."""
        held = [a_held_action(hold.fence, resources=hold.resources) for hold in self.index.allocations]
        self.index.reconcile(replace(a_poll(nodes=nodes or self.nodes, held=held), **changed))

    def after(self, seconds: float) -> "Leading":
        self.now += seconds
        self.index.rate_limit_timer.refill(self.now)
        return self

    def round(self, *, commits_in: float = 0.0) -> list[tuple[UUID, int]]:
        """Run one round and return each granted action with its node."""
        grants = self.index.plan(now=NOW, silent_after_s=10.0, watching_since=0.0).grants
        self.now += commits_in
        self.index.rate_limit_timer.mark_committed(self.now)
        self.index.apply_grants(grants, now=NOW)
        return [(grant.fence.action_id, grant.node) for grant in grants]

    def wakes_after(self) -> float | None:
        at = self.index.rate_limit_timer.next_refill_at()
        return round(at - self.now, 6) if at is not None else None

    def end(self, number: int) -> None:
        self.index.release_attempts([Fence(numbered(number), 1)])


class TestRounds:
    @policies
    def test_rounds_spend_the_burst_and_then_refilled_tokens(self, policy: SchedulingPolicy) -> None:
        leading = Leading(policy=policy, queued=calls(9))
        assert [len(leading.round()), len(leading.round())] == [4, 0]
        assert [len(leading.after(0.5).round()), len(leading.after(1.0).round())] == [1, 2]

    def test_refill_during_a_slow_commit_is_limited_to_a_burst(self) -> None:
        leading = Leading(queued=calls(9))
        assert len(leading.round(commits_in=60.0)) == 4
        assert [len(leading.after(0.25).round()), len(leading.after(0.25).round())] == [0, 1]

    def test_ended_call_frees_concurrency_but_no_token(self) -> None:
        leading = Leading(a_broker(calls=4, per_s=2.0, burst=4), queued=calls(9))
        leading.round()
        assert leading.after(5.0).round() == []
        leading.end(1)
        leading.end(2)
        assert [len(leading.round()), len(leading.after(5.0).round())] == [2, 0]

    def test_call_goes_to_the_node_with_most_available_tokens(self) -> None:
        leading = Leading(a_broker(1, burst=2), a_broker(2, burst=4), a_broker(3, burst=9, calls=1), queued=calls(9))
        assert [node for _, node in leading.round()] == [2, 2, 1, 2, 1, 2, 3]

    def test_without_a_rate_only_concurrency_limits_grants(self) -> None:
        leading = Leading(a_broker(calls=5, rate_limits={}), queued=calls(9))
        assert (len(leading.round()), leading.wakes_after()) == (5, None)

    def test_fair_share_is_computed_from_the_concurrency_limit(self) -> None:
        leading = Leading(a_broker(calls=40, burst=4), queued=calls(1))
        snapshot = leading.index.snapshot(now=NOW, silent_after_s=10.0, watching_since=0.0)
        assert snapshot.total == total_resources([{SEARCH: 40}])

    def test_gang_waits_until_all_members_have_tokens(self) -> None:
        gang = GangMembership(id=UUID(int=5), size=3)
        leading = Leading(queued=[*calls(3), *calls(3, first=4, gang=gang)])
        assert len(leading.round()) == 3
        assert leading.wakes_after() == 1.0
        assert [len(leading.after(0.5).round()), len(leading.after(0.5).round())] == [0, 3]


class TestNewLeader:
    def test_new_leader_counts_running_calls_as_spent_tokens_without_debt(self) -> None:
        assert len(Leading(queued=calls(9), held=in_flight(3)).round()) == 1
        leading = Leading(queued=calls(9), held=in_flight(8))
        assert [len(leading.round()), len(leading.after(0.5).round())] == [0, 1]

    def test_repeated_polls_count_running_calls_once(self) -> None:
        leading = Leading(queued=calls(9), held=in_flight(1))
        for _ in range(5):
            leading.poll()
        assert len(leading.round()) == 3


class TestNextRefill:
    def test_next_refill_is_when_a_queued_call_gets_a_token(self) -> None:
        leading = Leading(queued=calls(9))
        leading.round()
        assert leading.wakes_after() == 0.5
        assert leading.after(0.25).wakes_after() == 0.25

    def test_tokens_of_a_fast_rate_are_collected_per_interval(self) -> None:
        leading = Leading(a_broker(per_s=1000.0, burst=50, calls=500), queued=calls(99))
        assert (len(leading.round()), leading.wakes_after()) == (50, REFILL_INTERVAL_S)
        assert len(leading.after(REFILL_INTERVAL_S).round()) == 20

    def test_tokens_refilled_during_a_commit_start_no_immediate_round(self) -> None:
        leading = Leading(a_broker(per_s=1000.0, burst=50, calls=500), queued=calls(99))
        leading.round()
        assert len(leading.after(REFILL_INTERVAL_S).round(commits_in=0.005)) == 20
        assert [len(leading.after(0.001).round()), leading.wakes_after()] == [0, REFILL_INTERVAL_S - 0.006]
        assert len(leading.after(REFILL_INTERVAL_S - 0.0055).round()) == 20

    def test_no_refill_is_scheduled_without_queued_calls(self) -> None:
        commands = [a_queued_row(100 + number) for number in range(9)]
        leading = Leading(a_broker(1), a_node_row(2), queued=[*calls(4), *commands])
        assert (len(leading.round()), leading.index.queued_count) == (6, 7)
        assert leading.wakes_after() is None

    def test_no_refill_is_scheduled_for_a_paused_queue(self) -> None:
        leading = Leading(queued=calls(9))
        leading.round()
        leading.poll(paused=frozenset({1}))
        assert (leading.round(), leading.wakes_after()) == ([], None)

    def test_no_refill_is_scheduled_at_the_concurrency_limit(self) -> None:
        leading = Leading(a_broker(calls=4), queued=calls(9))
        leading.round()
        assert leading.wakes_after() is None
        leading.end(1)
        assert (leading.round(), leading.wakes_after()) == ([], 0.5)

    @pytest.mark.parametrize("changed", [{"is_cordoned": True}, {"last_heartbeat": 0.0}], ids=repr)
    def test_no_refill_is_scheduled_for_an_unschedulable_node(self, changed: dict[str, Any]) -> None:
        leading = Leading(queued=calls(9))
        leading.round()
        leading.poll(a_broker(**changed))
        assert (leading.round(), leading.wakes_after()) == ([], None)

    def test_no_refill_is_scheduled_for_calls_the_node_cannot_run(self) -> None:
        picky = calls(1, first=9, environment={"scope": "ephemeral", "require": ["memory"]}, class_key=8)
        leading = Leading(queued=[*calls(4), *picky])
        assert (len(leading.round()), leading.wakes_after()) == (4, None)

    def test_next_refill_is_the_earliest_of_several_nodes(self) -> None:
        leading = Leading(a_broker(1, per_s=2.0), a_broker(2, per_s=5.0), queued=calls(9))
        leading.round()
        assert leading.wakes_after() == 0.2


class TestReconcile:
    def test_changed_rate_gives_no_new_burst(self) -> None:
        leading = Leading(queued=calls(9))
        leading.round()
        leading.poll(a_broker(per_s=10.0, burst=4))
        assert (leading.round(), leading.wakes_after()) == ([], 0.1)

    def test_removed_rate_no_longer_limits_grants(self) -> None:
        leading = Leading(queued=calls(9))
        leading.round()
        leading.poll(a_broker(rate_limits={}))
        assert len(leading.round()) == 5


class TestExplain:
    @policies
    def test_call_without_token_is_explained_as_waits_for_capacity(self, policy: SchedulingPolicy) -> None:
        leading = Leading(a_broker(1), a_node_row(2), policy=policy, queued=calls(5))
        leading.round()
        standing = leading.index.queue_position(numbered(5))
        assert standing is not None
        snapshot = leading.index.snapshot(now=NOW, silent_after_s=10.0, watching_since=0.0)
        found = explain(snapshot, standing.action, policy)
        assert (found.reason, found.node) == (WaitReason.WAITS_FOR_CAPACITY, 1)
        assert [(lack.resource, lack.needed, lack.available) for lack in found.shortages] == [(SEARCH, 1, 0)]

    def test_gang_larger_than_the_burst_fits_no_node(self) -> None:
        gang = GangMembership(id=UUID(int=5), size=5)
        leading = Leading(a_broker(calls=10, burst=4), queued=calls(5, gang=gang))
        standing = leading.index.queue_position(numbered(1))
        assert standing is not None
        snapshot = leading.index.snapshot(now=NOW, silent_after_s=10.0, watching_since=0.0)
        assert explain(snapshot, standing.action, SparPolicy()).reason is WaitReason.NO_NODE_FITS


class TestForecast:
    def test_forecast_spends_no_tokens_and_ignores_the_rate(self) -> None:
        policy = SparPolicy(is_resizing=True)
        leading = Leading(policy=policy, queued=calls(20))
        leading.round()
        snapshot = leading.index.snapshot(now=NOW, silent_after_s=10.0, watching_since=0.0)
        forecasting = ForecastSimulator(build_forecast_input(leading.index, snapshot), policy, limit=100)
        while forecasting.step():
            pass
        assert (forecasting.forecast().starts_now, forecasting.forecast().started) == (6, 16)
        assert [leading.round(), len(leading.after(0.5).round())] == [[], 1]

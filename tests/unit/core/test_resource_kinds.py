"""Rules that hold for every kind of resource. Add a new kind in `support.resource_kinds`."""

from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from arl_core.capacity.rate_limited_ledger import RateLimitedLedger
from arl_core.domain.model import ENVIRONMENT_RESOURCES, Fence, NodeResources, Resources
from arl_core.domain.states import WaitReason
from arl_core.durations.curves import CurveCache
from arl_core.inquiry.explain import ResourceShortage, explain
from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.spar import SparPolicy
from arl_cpu.node.allocations import AttemptAllocation, NodeAllocations
from arl_wire.validation import RESERVED_NAMES
from support.builders import a_pool, a_snapshot, a_submission, an_action
from support.resource_kinds import KINDS, ResourceKind

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
HELD = [kind for kind in KINDS if kind.rate is None]
held_kinds = pytest.mark.parametrize("kind", HELD, ids=lambda kind: kind.name)
RESIZING = SparPolicy(is_resizing=True)
NOW = 1000.0
PAUSE_S = 3
"""Seconds after which every rate of these kinds has refilled its burst."""


def a_ledger(kind: ResourceKind) -> RateLimitedLedger:
    ledger = RateLimitedLedger()
    ledger.set_capacity(1, kind.node())
    ledger.set_rates(1, {kind.name: kind.rate} if kind.rate is not None else {})
    return ledger


def a_node(kind: ResourceKind, ledger: RateLimitedLedger) -> NodeResources:
    return replace(a_pool(1, shape=kind.shape, **ledger.capacity(1)), available=ledger.available_view(1))


class ResourceKindMachine(RuleBasedStateMachine):
    """State machine: policy rounds against the ledger's free resources, while actions end and time passes."""

    @initialize(kind=st.sampled_from(KINDS), policy=st.sampled_from([FirstComeFirstServed(), SparPolicy(), RESIZING]))
    def begin(self, kind: ResourceKind, policy: SchedulingPolicy) -> None:
        self.kind, self.policy, self.ledger = kind, policy, a_ledger(kind)
        self.queued = self.now = 0
        self.held: dict[UUID, Resources] = {}
        self.taken: list[tuple[int, int]] = []
        self.number = 0

    @rule(count=st.integers(1, 8))
    def submit(self, count: int) -> None:
        self.queued += count

    @rule()
    def run_round(self) -> None:
        actions = [an_action(self.number + n, cls=self.kind.demand()) for n in range(1, self.queued + 1)]
        self.number += self.queued
        snapshot = a_snapshot(queued=actions, pools=[a_node(self.kind, self.ledger)])
        for grant in self.policy.plan(replace(snapshot, curves=CurveCache())).grants:
            assert grant.resources[self.kind.name] in self.kind.widths
            self.ledger.allocate(grant.fence.action_id, 1, grant.resources)
            self.ledger.allocate(grant.fence.action_id, 1, grant.resources)
            self.held[grant.fence.action_id] = grant.resources
            self.taken.append((self.now, grant.resources[self.kind.name]))
            self.queued -= 1

    @rule(seconds=st.integers(1, 3))
    def advance_time(self, seconds: int) -> None:
        self.now += seconds
        self.ledger.refill(float(self.now))

    @rule(which=st.integers(0, 20))
    def end_action_and_release_twice(self, which: int) -> None:
        if self.held:
            ended = sorted(self.held)[which % len(self.held)]
            del self.held[ended]
            assert [self.ledger.release(ended), self.ledger.release(ended)] == [True, False]

    @invariant()
    def allocated_plus_available_is_capacity(self) -> None:
        if not hasattr(self, "kind"):
            return
        free, name = self.ledger.available(1), self.kind.name
        assert min(free.values()) >= 0
        if self.kind.is_held:
            not_held = self.kind.node_has - sum(amounts[name] for amounts in self.held.values())
            assert free[name] == not_held if self.kind.rate is None else free[name] <= not_held

    @invariant()
    def everything_is_available_after_all_actions_ended(self) -> None:
        if hasattr(self, "kind") and not self.held and not self.taken_within(PAUSE_S):
            assert self.ledger.available(1)[self.kind.name] == self.kind.node_has

    def taken_within(self, seconds: int) -> bool:
        return any(at > self.now - seconds for at, _ in self.taken)

    @invariant()
    def allocations_never_exceed_the_rate(self) -> None:
        rate = self.kind.rate if hasattr(self, "kind") else None
        if rate is None:
            return
        for began, _ in self.taken:
            spent = sum(amount for at, amount in self.taken if at >= began)
            assert spent <= rate.burst + rate.per_s * (self.now - began)


TestEveryKind = ResourceKindMachine.TestCase
TestEveryKind.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@every_kind
def test_demand_above_every_node_fits_no_node_and_names_resource(kind: ResourceKind) -> None:
    cls = replace(kind, widths=(kind.node_has + 1,)).demand()
    action = an_action(1, cls=cls)
    found = explain(a_snapshot(queued=[action], pools=[a_node(kind, a_ledger(kind))]), action, SparPolicy())
    assert (found.reason, found.shortages) == (
        WaitReason.NO_NODE_FITS,
        (ResourceShortage(kind.name, needed=kind.node_has + 1, available=kind.node_has, capacity=kind.node_has),),
    )


@every_kind
def test_waiting_action_names_missing_resource(kind: ResourceKind) -> None:
    action = an_action(1, cls=kind.demand())
    node = a_node(kind, a_ledger(kind))
    full = replace(node, available={**node.available, kind.name: 0})
    found = explain(a_snapshot(queued=[action], pools=[full]), action, SparPolicy())
    assert (found.reason, [lack.resource for lack in found.shortages]) == (WaitReason.WAITS_FOR_CAPACITY, [kind.name])


@every_kind
def test_node_without_the_resource_is_skipped(kind: ResourceKind) -> None:
    other = a_pool(1, shape=kind.shape, **{name: amount for name, amount in kind.node().items() if name != kind.name})
    has = replace(a_node(kind, a_ledger(kind)), node=2)
    (grant,) = SparPolicy().plan(a_snapshot(queued=[an_action(1, cls=kind.demand())], pools=[other, has])).grants
    assert grant.node == 2


@held_kinds
def test_single_action_gets_its_highest_degree_of_parallelism(kind: ResourceKind) -> None:
    pool = a_node(kind, a_ledger(kind))
    (grant,) = SparPolicy().plan(a_snapshot(queued=[an_action(1, cls=kind.demand())], pools=[pool])).grants
    assert grant.resources[kind.name] == kind.widths[-1]


@pytest.mark.parametrize(
    "kind", [kind for kind in HELD if kind.name not in ENVIRONMENT_RESOURCES], ids=lambda kind: kind.name
)
def test_long_waiting_large_action_is_not_overtaken_by_small_actions(kind: ResourceKind) -> None:
    long_ago = NOW - SparPolicy().constants.size_penalty_limit_s - 1
    all_of_it = an_action(1, cls=replace(kind, widths=(kind.node_has,)).demand(key=2), submitted=long_ago)
    little = an_action(2, cls=replace(kind, widths=kind.widths[:1]).demand(), submitted=NOW)
    node = a_node(kind, a_ledger(kind))
    half = replace(node, available={**node.available, kind.name: kind.node_has // 2})
    for policy in (SparPolicy(), RESIZING):
        assert policy.plan(a_snapshot(queued=[all_of_it, little], pools=[half])).grants == ()
        young = all_of_it._replace(submitted=NOW)
        assert len(policy.plan(a_snapshot(queued=[young, little], pools=[half])).grants) == 1


@held_kinds
def test_manager_rejects_allocation_beyond_free_resources(kind: ResourceKind) -> None:
    holdings = NodeAllocations(kind.node(), tuple(range(8)))
    amounts = {"cpu_milli": 0, kind.name: kind.node_has}
    first, second = (AttemptAllocation(Fence(uuid4(), 1), amounts, None) for _ in range(2))
    assert [holdings.allocate(first), holdings.allocate(second)] == [True, False]
    holdings.release(first.fence)
    holdings.release(first.fence)
    assert holdings.allocate(second)


@pytest.mark.parametrize("kind", [kind for kind in HELD if kind.name not in RESERVED_NAMES], ids=lambda kind: kind.name)
def test_submission_demand_accepts_resource_by_name(kind: ResourceKind) -> None:
    asked = a_submission(demand={"resources": {kind.name: kind.widths[0]}})
    assert asked.demand.resources == {kind.name: kind.widths[0]}


@pytest.mark.parametrize("resources", [{"gpu": 1}, {"cpu_milli": 1}, {"npu": 0}, {"slots:minilm": 1}, {"N": 1}])
def test_demand_rejects_reserved_name_or_zero_amount(resources: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"demand\.resources"):
        a_submission(demand={"resources": resources})

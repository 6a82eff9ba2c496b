"""A gang starts in one round or not at all under every policy, and blocks no other actions for ever."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arl_core.capacity.gangs import can_gang_fit, limit_grants
from arl_core.domain.elasticity import AmdahlScaling
from arl_core.domain.model import (
    ActionClass,
    ElasticResource,
    Fence,
    Gang,
    Grant,
    NodeResources,
    QueuedAction,
    ResizeSupport,
    ResourceDemand,
    ResourceShape,
    RunningAction,
    SchedulingPlan,
)
from arl_core.domain.states import ActionOutcome, WaitReason
from arl_core.durations.curves import CurveCache
from arl_core.inquiry.explain import explain
from arl_core.inquiry.forecast import ForecastInput, ForecastSimulator
from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.reference import ReferencePolicy
from arl_core.policies.spar import SparPolicy
from arl_core.policies.static_pods import StaticPods
from arl_core.queue.fairness import FairShares
from arl_scheduler.index.candidates import CandidateQueue
from support.builders import a_pool, a_snapshot, an_action, numbered

NOW = 1000.0
LONG_AGO = NOW - SparPolicy().constants.size_penalty_limit_s - 100
POLICIES: Sequence[SchedulingPolicy] = (
    FirstComeFirstServed(),
    ReferencePolicy(),
    StaticPods(1000),
    SparPolicy(),
    SparPolicy(is_resizing=True),
)
AMOUNTS = st.fixed_dictionaries({"cpu_milli": st.integers(0, 4), "memory_mib": st.integers(0, 4)})
"""Resources of a node or demands of an action."""
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)


def fixed(cores: int = 1) -> ActionClass:
    return ActionClass(
        key=cores, kind="exec", shape=ResourceShape.DIVISIBLE, demand=ResourceDemand({"cpu_milli": 1000 * cores})
    )


def members(first: int, size: int, *, cores: int = 1, submitted: float = NOW) -> list[QueuedAction]:
    gang = Gang(numbered(1000 + first), size)
    return [
        an_action(number, cls=fixed(cores), submitted=submitted)._replace(gang=gang)
        for number in range(first, first + size)
    ]


def a_gang(first: int, size: int, *, cores: int = 1, submitted: float = NOW) -> QueuedAction:
    """Return a gang as rounds receive it: its first member with the others attached."""
    head, *others = members(first, size, cores=cores, submitted=submitted)
    return head._replace(gang_members=tuple(others))


def planned(policy: SchedulingPolicy, queued: Sequence[QueuedAction], *pools: NodeResources) -> SchedulingPlan:
    curves = CurveCache()
    curves.now = NOW
    return policy.plan(replace(a_snapshot(queued=queued, pools=pools), now=NOW, curves=curves))


def numbers(plan: SchedulingPlan) -> list[int]:
    return sorted(grant.fence.action_id.int for grant in plan.grants)


class TestGangStart:
    @every_policy
    def test_all_members_start_if_all_fit(self, policy: SchedulingPolicy) -> None:
        pools = [a_pool(1, cpu_milli=2000), a_pool(2, cpu_milli=1000)]
        plan = planned(policy, [a_gang(1, 3)], *pools)
        assert numbers(plan) == [1, 2, 3]
        assert {grant.gang for grant in plan.grants} == {numbered(1001)}

    @every_policy
    def test_gang_without_room_starts_no_member_and_others_start(self, policy: SchedulingPolicy) -> None:
        later = an_action(9, cls=fixed(), submitted=NOW + 1)
        assert numbers(planned(policy, [a_gang(1, 3), later], a_pool(cpu_milli=2000))) == [9]

    @every_policy
    def test_other_actions_of_same_class_are_not_gang_members(self, policy: SchedulingPolicy) -> None:
        queued = [a_gang(1, 3), *(an_action(n, cls=fixed(), submitted=NOW + n) for n in (8, 9))]
        assert numbers(planned(policy, queued, a_pool(cpu_milli=2000))) == [8, 9]

    def test_largest_member_is_placed_first(self) -> None:
        small, large = members(1, 2)
        gang = small._replace(gang_members=(large._replace(cls=fixed(2)),))
        pools = [a_pool(1, cpu_milli=2000), a_pool(2, cpu_milli=1000)]
        plan = planned(SparPolicy(), [gang], *pools)
        assert {grant.fence.action_id.int: grant.node for grant in plan.grants} == {1: 2, 2: 1}


class TestGangWaiting:
    def test_long_waiting_gang_reserves_resources_for_its_members(self) -> None:
        gang = a_gang(1, 3, submitted=LONG_AGO)
        young = [an_action(n, cls=fixed(), submitted=NOW) for n in range(10, 20)]
        pool = a_pool(cpu_milli=4000, free={"cpu_milli": 2000})
        for policy in (SparPolicy(), SparPolicy(is_resizing=True)):
            plan = planned(policy, [gang, *young], pool)
            assert numbers(plan) == []
        assert plan.watched_nodes == {1}
        assert numbers(planned(SparPolicy(), [gang, *young], a_pool(cpu_milli=4000, free={"cpu_milli": 3000}))) == [
            1,
            2,
            3,
        ]

    def test_gang_that_cannot_start_reserves_nothing(self) -> None:
        """The node is lost or environments occupy the memory, so other actions may use the cores."""
        one = {"cpu_milli": 1000, "memory_mib": 100}
        cls = ActionClass(key=5, kind="exec", shape=ResourceShape.DIVISIBLE, demand=ResourceDemand(one))
        head, *others = [each._replace(cls=cls) for each in members(1, 3, submitted=LONG_AGO)]
        gang = head._replace(gang_members=tuple(others))
        young = [an_action(n, cls=fixed(), submitted=NOW) for n in (10, 11)]
        full = a_pool(cpu_milli=4000, memory_mib=400, free={"cpu_milli": 2000, "memory_mib": 200})
        gone = replace(a_pool(2, cpu_milli=4000, memory_mib=400), is_schedulable=False, is_serving=False)
        small = a_pool(cpu_milli=2000, memory_mib=400)
        for policy in (SparPolicy(), SparPolicy(is_resizing=True)):
            assert numbers(planned(policy, [gang, *young], full)) == [10, 11]
            assert numbers(planned(policy, [gang, *young], small, gone)) == [10, 11]

    @pytest.mark.parametrize(("memory_mib", "give_way"), [(400, True), (100, False)])
    def test_elastic_action_shrinks_only_if_memory_lets_gang_start(self, memory_mib: int, give_way: bool) -> None:
        one = {"cpu_milli": 1000, "memory_mib": 100}
        cls = ActionClass(key=5, kind="exec", shape=ResourceShape.DIVISIBLE, demand=ResourceDemand(one))
        head, *others = [each._replace(cls=cls) for each in members(1, 3)]
        elastic = ElasticResource("cpu_milli", (1000, 2000, 4000), AmdahlScaling(0.9), ResizeSupport.ANY)
        wide = ActionClass(
            key=6, kind="exec", shape=ResourceShape.DIVISIBLE, demand=ResourceDemand({"cpu_milli": 1000}, elastic)
        )
        running = RunningAction(
            fence=Fence(numbered(50), 1), cls=wide, node=1, resources={"cpu_milli": 4000}, granted=NOW - 9,
                task=1,
            started=NOW - 9, allocated_since=NOW - 9,
        )  # fmt: skip
        pool = a_pool(cpu_milli=4000, memory_mib=400, free={"cpu_milli": 0, "memory_mib": memory_mib})
        curves = CurveCache()
        curves.now = NOW
        gang = head._replace(gang_members=tuple(others))
        snapshot = replace(a_snapshot(queued=[gang], pools=[pool], running=[running]), now=NOW, curves=curves)
        plan = SparPolicy(is_resizing=True).plan(snapshot)
        assert [resize.resources["cpu_milli"] for resize in plan.resizes] == ([1000] if give_way else [])

    def test_elastic_action_keeps_cores_if_gang_still_cannot_start(self) -> None:
        elastic = ElasticResource("cpu_milli", (1000, 2000, 4000), AmdahlScaling(0.9), ResizeSupport.ANY)
        wide = ActionClass(
            key=6, kind="exec", shape=ResourceShape.DIVISIBLE, demand=ResourceDemand({"cpu_milli": 1000}, elastic)
        )
        running = [
            RunningAction(
                fence=Fence(numbered(50 + n), 1), cls=cls, node=1, resources={"cpu_milli": 4000}, granted=NOW - 9,
                task=1,
                started=NOW - 9, allocated_since=NOW - 9,
            )
            for n, cls in enumerate((wide, fixed(4)))
        ]  # fmt: skip
        pool, curves = a_pool(cpu_milli=8000, free={"cpu_milli": 0}), CurveCache()
        curves.now = NOW
        for size, give_way in ((3, True), (4, False)):
            snapshot = a_snapshot(queued=[a_gang(1, size)], pools=[pool], running=running)
            plan = SparPolicy(is_resizing=True).plan(replace(snapshot, now=NOW, curves=curves))
            assert [resize.resources["cpu_milli"] for resize in plan.resizes] == ([1000] if give_way else [])

    def test_gang_with_special_member_starts_in_any_member_order(self) -> None:
        needs = ActionClass(
            key=8, kind="exec", shape=ResourceShape.DIVISIBLE, demand=ResourceDemand({"cpu_milli": 4000, "npu": 4})
        )
        first, second = members(1, 2, cores=4)
        has = {"cpu_milli": 4000, "npu": 4}
        pools = [replace(a_pool(1, cpu_milli=4000), capacity=has, available=has), a_pool(2, cpu_milli=4000)]
        gang = first._replace(gang_members=(second._replace(cls=needs),))
        other = first._replace(cls=needs, gang_members=(second,))
        for policy in POLICIES:
            if not isinstance(policy, StaticPods):
                assert numbers(planned(policy, [gang], *pools)) == [1, 2]
                assert numbers(planned(policy, [other], *pools)) == [1, 2]

    def test_one_of_two_long_waiting_gangs_starts(self) -> None:
        gangs = [a_gang(1, 3, submitted=LONG_AGO), a_gang(11, 3, submitted=LONG_AGO + 1)]
        assert numbers(planned(SparPolicy(), gangs, a_pool(cpu_milli=4000))) == [1, 2, 3]

    @pytest.mark.parametrize(("cores", "rule"), [(4, WaitReason.STARTS_NEXT_ROUND), (2, WaitReason.NO_NODE_FITS)])
    def test_explanation_considers_whole_gang(self, cores: int, rule: WaitReason) -> None:
        gang, pool = a_gang(1, 3), a_pool(cpu_milli=1000 * cores)
        assert explain(a_snapshot(queued=[gang], pools=[pool]), gang, SparPolicy()).reason is rule

    def test_partially_fitting_gang_reports_waits_for_gang(self) -> None:
        gang, pool = a_gang(1, 3), a_pool(cpu_milli=4000, free={"cpu_milli": 2000})
        assert explain(a_snapshot(queued=[gang], pools=[pool]), gang, SparPolicy()).reason is WaitReason.WAITS_FOR_GANG

    def test_forecast_starts_whole_gang_at_once(self) -> None:
        shares = FairShares()
        for _ in range(4):
            shares.add_action(1)
        queued = (an_action(1, cls=fixed(), submitted=0.0), a_gang(2, 3, submitted=1.0))
        present = ForecastInput(
            now=NOW, nodes={1: a_pool(cpu_milli=3000)}, active=(), queued=queued, shares=shares,
            durations=CurveCache().durations,
        )  # fmt: skip
        forecasting = ForecastSimulator(present, FirstComeFirstServed(), limit=100)
        while forecasting.step():
            pass
        found = forecasting.forecast()
        assert (found.simulated, found.starts_now, found.started, found.drained_s) == (4, 1, 4, 1.0)


class TestCandidateQueue:
    def test_gang_is_queued_only_while_all_members_are_present(self) -> None:
        offers, (first, second) = CandidateQueue(), members(1, 2)
        offers.add(first)
        assert len(offers.queue) == 0
        offers.add(second)
        (head,) = offers.queue.in_order()
        assert (head.id, [each.id for each in head.gang_members]) == (first.id, [second.id])
        assert offers.with_gang(second) == head
        offers.discard(second.id)
        assert (len(offers.queue), offers.with_gang(first)) == (0, first)
        offers.add(second)
        offers.add(second)
        assert len(offers.queue) == 1

    def test_discarded_member_remains_in_gang_until_forgotten(self) -> None:
        offers, (first, second) = CandidateQueue(), members(1, 2)
        for each in (first, second):
            offers.add(each)
            offers.discard(each.id)
        assert set(offers.gang_failures({first.id: (ActionOutcome.CANCELLED, None)})) == {second.id}
        assert offers.incomplete_gangs() == {}
        offers.forget(first.id)
        assert offers.incomplete_gangs() == {second.id: (ActionOutcome.CANCELLED, "gang_cancelled")}
        offers.forget(second.id)
        assert offers.incomplete_gangs() == {}

    def test_member_settled_in_queue_settles_its_gang(self) -> None:
        offers, (first, second, third) = CandidateQueue(), members(1, 3)
        for each in (first, second, third):
            offers.add(each)
        reasons = {ActionOutcome.CANCELLED: "gang_cancelled", ActionOutcome.DEADLINE_IN_QUEUE: "gang_deadline"}
        for outcome, reason in reasons.items():
            found = offers.gang_failures({first.id: (outcome, None), third.id: (outcome, None)})
            assert found == {second.id: (outcome, reason)}


class TestGangFitting:
    def test_gang_fits_if_nodes_have_room_for_all_members(self) -> None:
        one, both = {"cpu_milli": 1000}, [1, 2]
        capacities = {1: {"cpu_milli": 2000}, 2: {"cpu_milli": 1000}}
        assert can_gang_fit([(one, both)] * 3, capacities)
        assert not can_gang_fit([(one, both)] * 4, capacities)
        assert not can_gang_fit([(one, [2])] * 2, capacities)
        assert can_gang_fit([(one, both), ({"cpu_milli": 2000}, both)], capacities)

    @pytest.mark.parametrize("first", [0, 1])
    def test_member_that_needs_special_node_is_not_crowded_out(self, first: int) -> None:
        plain, special = {"cpu_milli": 4000}, {"cpu_milli": 4000, "npu": 4}
        capacities = {1 + first: plain, 2 - first: special}
        assert can_gang_fit([(plain, [1, 2]), (special, [1, 2])], capacities)
        assert can_gang_fit([(special, [1, 2]), (plain, [1, 2])], capacities)
        assert can_gang_fit([(plain, [1, 2]), (plain, [1])], {1: plain, 2: plain})

    def test_fitting_tries_another_node_if_tightest_fails(self) -> None:
        names = ("cpu_milli", "memory_mib")
        demands = [(dict(zip(names, amounts, strict=True)), [1, 2]) for amounts in ((1, 2), (4, 1), (2, 1))]
        capacities = {1: dict(zip(names, (6, 2), strict=True)), 2: dict(zip(names, (5, 3), strict=True))}
        assert can_gang_fit(demands, capacities)

    @settings(max_examples=200, deadline=None)
    @given(
        nodes=st.lists(AMOUNTS, min_size=1, max_size=3),
        demands=st.lists(st.tuples(AMOUNTS, st.sets(st.integers(0, 2))), min_size=1, max_size=4),
    )
    def test_gang_fits_exactly_if_an_assignment_exists(
        self, nodes: list[dict[str, int]], demands: list[tuple[dict[str, int], set[int]]]
    ) -> None:
        wanted = [(amounts, [node for node in sorted(on) if node < len(nodes)]) for amounts, on in demands]
        possible = any(
            all(
                sum(amounts[name] for (amounts, _), at in zip(wanted, places, strict=True) if at == node) <= has
                for node, capacity in enumerate(nodes)
                for name, has in capacity.items()
            )
            for places in product(*(on for _, on in wanted))
        )
        assert can_gang_fit(wanted, dict(enumerate(nodes))) is possible

    def test_round_limit_never_splits_a_gang(self) -> None:
        def grants(*gangs: int | None) -> list[Grant]:
            return [
                Grant(fence=Fence(numbered(n), 1), node=1, resources={}, gang=numbered(gang) if gang else None)
                for n, gang in enumerate(gangs)
            ]

        assert len(limit_grants(grants(None, 7, 7, 7), 2)) == 1
        assert len(limit_grants(grants(7, 7, 7, None), 2)) == 3
        assert len(limit_grants(grants(None, 7, 7, 8, 8), 3)) == 3
        assert len(limit_grants(grants(None, None, None), 2)) == 2


class Cell:
    """Nodes whose resources are taken by grants and released by ended actions."""

    def __init__(self, cores: Iterable[int]) -> None:
        self.capacity = {node: 1000 * size for node, size in enumerate(cores, 1)}
        self.running: dict[UUID, Grant] = {}

    def pools(self) -> list[NodeResources]:
        held = dict.fromkeys(self.capacity, 0)
        for grant in self.running.values():
            held[grant.node] += grant.resources["cpu_milli"]
        free = {node: self.capacity[node] - held[node] for node in held}
        assert min(free.values()) >= 0, "a node is overallocated"
        return [a_pool(node, cpu_milli=all_, free={"cpu_milli": free[node]}) for node, all_ in self.capacity.items()]


@settings(max_examples=60, deadline=None)
@given(
    cores=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    wanted=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=8),
    ends=st.lists(st.integers(0, 20), max_size=20),
    policy=st.sampled_from([policy for policy in POLICIES if not isinstance(policy, StaticPods)]),
)
def test_gangs_start_whole_without_overallocation_and_all_eventually_start(
    cores: list[int], wanted: list[tuple[int, int]], ends: list[int], policy: SchedulingPolicy
) -> None:
    cell = Cell(cores)
    queued: dict[UUID, QueuedAction] = {}
    for place, (size, width) in enumerate(wanted):
        one = {"cpu_milli": 1000 * width}
        if can_gang_fit([(one, list(cell.capacity))] * size, {n: {"cpu_milli": m} for n, m in cell.capacity.items()}):
            first = a_gang(10 * place, size, cores=width, submitted=LONG_AGO + place)
            queued[first.id] = first if size > 1 else first._replace(gang=None)
    for turn in range(200):
        plan = planned(policy, list(queued.values()), *cell.pools())
        started = {grant.fence.action_id for grant in plan.grants}
        for first in list(queued.values()):
            all_ids = {first.id, *(each.id for each in first.gang_members)}
            assert all_ids <= started or not all_ids & started, "only a part of a gang was granted"
            if first.id in started:
                del queued[first.id]
        cell.running |= {grant.fence.action_id: grant for grant in plan.grants}
        if not queued:
            break
        assert cell.running, "an action that fits an empty cell never starts"
        ending = sorted(cell.running)
        del cell.running[ending[ends[turn % len(ends)] % len(ending) if ends else 0]]
    assert not queued

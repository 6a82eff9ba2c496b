"""Shortest priced area first: the order of grants, degrees of parallelism and resizes."""

from collections import Counter
from dataclasses import replace
from itertools import count
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.elasticity import AmdahlScaling
from arl_core.domain.model import (
    ActionClass,
    ElasticResource,
    Fence,
    Grant,
    NodeResources,
    QueuedAction,
    ResizeSupport,
    ResourceDemand,
    ResourceShape,
    RunningAction,
    SchedulingPlan,
)
from arl_core.durations.curves import REFRESH_AFTER_RUN_S, CurveCache
from arl_core.policies.spar import SparConstants, SparPolicy
from arl_core.queue.fairness import FairShares, QueueWeight
from arl_core.queue.queue_index import QueueIndex
from support.builders import a_class, a_pool, a_snapshot, an_action, numbered

NOW = 1000.0
SPAR, SPAR_M = SparPolicy(), SparPolicy(is_resizing=True)


class Known:
    """Durations by class at the smallest amount; larger amounts scale as declared."""

    def __init__(self, **seconds: float) -> None:
        self._seconds = {int(name.removeprefix("c")): value for name, value in seconds.items()}

    def seconds(self, cls: ActionClass, amount: int) -> float:
        elastic = cls.demand.elastic
        base = self._seconds.get(cls.key, 1.0)
        return base if elastic is None else base * elastic.elasticity.relative_duration(amount, base=elastic.amounts[0])


def expecting(**known: float) -> CurveCache:
    curves = CurveCache(Known(**known))
    curves.now = NOW
    return curves


def fixed(key: int, cores: int = 1) -> ActionClass:
    return ActionClass(
        key=key, kind="exec", shape=ResourceShape.DIVISIBLE, demand=ResourceDemand({"cpu_milli": 1000 * cores})
    )


def elastic(
    key: int, *, most: int, fraction: float = 0.9, resizable: ResizeSupport = ResizeSupport.NONE
) -> ActionClass:
    amounts = tuple(range(1000, 1000 * most + 1, 1000))
    demand = ResourceDemand(
        {"cpu_milli": 1000}, ElasticResource("cpu_milli", amounts, AmdahlScaling(fraction), resizable)
    )
    return ActionClass(key=key, kind="exec", shape=ResourceShape.DIVISIBLE, demand=demand)


def running(number: int, cls: ActionClass, cores: int, *, node: int = 1, since: float = NOW - 1) -> RunningAction:
    amounts = {"cpu_milli": 1000 * cores}
    return RunningAction(
        fence=Fence(numbered(number), 1), cls=cls, node=node, resources=amounts, granted=since, task=1, started=since,
        allocated_since=since,
    )  # fmt: skip


def planned(policy: SparPolicy, snapshot: CellSnapshot, **known: float) -> SchedulingPlan:
    return policy.plan(replace(snapshot, now=NOW, curves=expecting(**known)))


def granted(plan: SchedulingPlan) -> dict[int, int]:
    """Return granted cores by action number."""
    return {grant.fence.action_id.int: grant.resources["cpu_milli"] // 1000 for grant in plan.grants}


class TestGrantOrder:
    def test_short_actions_overtake_long_actions(self) -> None:
        queued = [an_action(1, cls=fixed(1), submitted=NOW - 2), an_action(2, cls=fixed(2), submitted=NOW)]
        plan = planned(SPAR, a_snapshot(queued=queued, pools=[a_pool(cpu_milli=1000)]), c1=100.0, c2=1.0)
        assert granted(plan) == {2: 1}

    def test_long_waiting_action_is_not_overtaken(self) -> None:
        limit = SPAR.constants.size_penalty_limit_s
        queued = [an_action(1, cls=fixed(1), submitted=NOW - limit - 1), an_action(2, cls=fixed(2), submitted=NOW)]
        plan = planned(SPAR, a_snapshot(queued=queued, pools=[a_pool(cpu_milli=1000)]), c1=1e6, c2=0.001)
        assert granted(plan) == {1: 1}

    def test_higher_priority_action_precedes_shorter_actions(self) -> None:
        queued = [an_action(number, cls=fixed(1), submitted=0.0) for number in range(1, 10_001)]
        queued.append(an_action(20_000, cls=fixed(2), submitted=NOW, priority=1))
        plan = planned(SPAR, a_snapshot(queued=queued, pools=[a_pool(cpu_milli=1000)]), c2=500.0)
        assert granted(plan) == {20_000: 1}


class TestStarvation:
    @settings(deadline=None, max_examples=30)
    @given(ends=st.lists(st.floats(0.1, 20.0), min_size=4, max_size=4), resizing=st.booleans())
    def test_large_action_starts_despite_continuous_small_actions(self, ends: list[float], resizing: bool) -> None:
        """Small actions take each freed core until the large action starves; then cores are reserved for it."""
        policy, limit = SparPolicy(is_resizing=resizing), SPAR.constants.size_penalty_limit_s
        wide, now = an_action(1, cls=fixed(1, cores=4), submitted=0.0), limit - 5.0
        narrow = {each: now + end for each, end in enumerate(ends, 100)}
        began = dict.fromkeys(narrow, now)
        number, reserved = 200, SchedulingPlan().reserved
        while now <= limit + 21.0:
            now = min(narrow.values(), default=now)
            narrow = {each: end for each, end in narrow.items() if end > now}
            following = [an_action(number + each, cls=fixed(2), submitted=now) for each in range(4)]
            number += 4
            snapshot = a_snapshot(
                queued=[wide, *following],
                pools=[a_pool(cpu_milli=4000, free={"cpu_milli": 4000 - 1000 * len(narrow)})],
                running=[running(each, fixed(2), 1, since=began[each]) for each in narrow],
            )
            snapshot.running.mark_clean(reserved=reserved)
            curves = expecting(c1=50.0, c2=10.0)
            curves.now = now
            plan = policy.plan(replace(snapshot, now=now, curves=curves))
            started, reserved = granted(plan), plan.reserved
            if 1 in started:
                return
            began |= dict.fromkeys(started, now)
            narrow |= {each: now + ends[each % 4] for each in started}
        raise AssertionError("the large action never started")


class TestParallelism:
    def test_single_action_gets_all_useful_cores(self) -> None:
        plan = planned(SPAR, a_snapshot(queued=[an_action(1, cls=elastic(1, most=4))], pools=[a_pool(cpu_milli=8000)]))
        assert granted(plan) == {1: 4}

    def test_serial_action_gets_only_its_minimum(self) -> None:
        cls = elastic(1, most=4, fraction=0.0)
        plan = planned(SPAR, a_snapshot(queued=[an_action(1, cls=cls)], pools=[a_pool(cpu_milli=8000)]))
        assert granted(plan) == {1: 1}

    def test_many_queued_actions_each_get_minimum_parallelism(self) -> None:
        cls = elastic(1, most=8)
        queued = [an_action(number, cls=cls) for number in range(1, 101)]
        plan = planned(SPAR, a_snapshot(queued=queued, pools=[a_pool(cpu_milli=8000)]), c1=10.0)
        assert granted(plan) == dict.fromkeys(range(1, 9), 1)

    def test_action_waits_for_nearly_free_cores_if_it_ends_sooner(self) -> None:
        cls = elastic(1, most=4, fraction=1.0)
        snapshot = a_snapshot(
            queued=[an_action(9, cls=cls, submitted=NOW)],
            pools=[a_pool(cpu_milli=4000, free={"cpu_milli": 1000})],
            running=[running(1, fixed(2, 3), 3, since=NOW - 9.5)],
        )
        assert granted(planned(SPAR, snapshot, c1=40.0, c2=10.0)) == {}
        assert granted(planned(SPAR, snapshot, c1=40.0, c2=100.0)) == {9: 1}


class TestResizing:
    cls = elastic(1, most=4, resizable=ResizeSupport.ANY)

    def test_single_running_action_grows_into_free_cores(self) -> None:
        snapshot = a_snapshot(
            pools=[a_pool(cpu_milli=4000, free={"cpu_milli": 3000})], running=[running(1, self.cls, 1)]
        )
        (resize,) = planned(SPAR_M, snapshot, c1=20.0).resizes
        assert resize.resources == {"cpu_milli": 4000}

    @pytest.mark.parametrize("waiting", [cls, fixed(2)], ids=["elastic", "fixed"])
    def test_cores_of_shrinking_action_are_not_granted_before_confirmation(self, waiting: ActionClass) -> None:
        snapshot = a_snapshot(
            queued=[an_action(9, cls=waiting, submitted=NOW)],
            pools=[a_pool(cpu_milli=4000, free={"cpu_milli": 0})],
            running=[running(1, self.cls, 4)],
        )
        plan = planned(SPAR_M, snapshot, c1=20.0)
        assert plan.grants == ()
        assert [resize.resources["cpu_milli"] < 4000 for resize in plan.resizes] == [True]

    def test_grow_only_action_is_never_shrunk(self) -> None:
        cls = elastic(1, most=4, resizable=ResizeSupport.GROW)
        snapshot = a_snapshot(
            queued=[an_action(9, cls=cls)], pools=[a_pool(cpu_milli=4000, free={"cpu_milli": 0})],
            running=[running(1, cls, 4)],
        )  # fmt: skip
        assert planned(SPAR_M, snapshot, c1=20.0).resizes == ()

    def test_non_resizable_action_is_not_resized(self) -> None:
        snapshot = a_snapshot(
            pools=[a_pool(cpu_milli=4000, free={"cpu_milli": 3000})], running=[running(1, elastic(1, most=4), 1)]
        )
        assert planned(SPAR_M, snapshot, c1=20.0).resizes == ()

    def test_action_with_pending_resize_is_not_resized_again(self) -> None:
        busy = running(1, self.cls, 1)._replace(resizing_to={"cpu_milli": 2000})
        snapshot = a_snapshot(pools=[a_pool(cpu_milli=4000, free={"cpu_milli": 2000})], running=[busy])
        assert planned(SPAR_M, snapshot, c1=20.0).resizes == ()


class TestFairShares:
    def test_task_weights_determine_shares_of_grants(self) -> None:
        shares = FairShares()
        shares.set_weights({1: QueueWeight(1, project_weight=3.0), 2: QueueWeight(2)})
        given_to: Counter[int] = Counter()
        queued = [
            an_action(number, cls=fixed(number % 2), submitted=0.0)._replace(task=1 + number % 2)
            for number in range(1, 2001)
        ]
        for action in queued:
            shares.add_action(action.task)
        plan = SPAR.plan(
            replace(a_snapshot(queued=queued, pools=[a_pool(cpu_milli=400_000)]), shares=shares, curves=expecting())
        )
        for grant in plan.grants:
            given_to[1 + grant.fence.action_id.int % 2] += 1
        assert given_to[1] / given_to[2] == 3.0

    def test_tasks_of_a_project_share_its_weight(self) -> None:
        shares = FairShares()
        shares.set_weights({1: QueueWeight(1), 2: QueueWeight(1, weight=3.0), 3: QueueWeight(2)})
        for task in (1, 2, 3):
            shares.add_action(task)
        assert [shares.effective_weight(task) for task in (1, 2, 3)] == [0.25, 0.75, 1.0]
        shares.remove_action(2)
        assert shares.effective_weight(1) == 1.0

    def test_idle_task_accumulates_no_credit(self) -> None:
        shares = FairShares()
        for task in (1, 2):
            shares.add_action(task)
        shares.remove_action(2)
        shares.settle(1, shares.charge_expected(1, 100.0), 100.0)
        shares.add_action(2)
        assert shares.virtual_s(2) == 100.0


classes = st.builds(
    elastic,
    st.integers(1, 5),
    most=st.integers(1, 6),
    fraction=st.floats(0, 1),
    resizable=st.sampled_from(ResizeSupport),
)


@given(
    queued=st.lists(st.tuples(classes, st.floats(0, 1000), st.integers(0, 2)), max_size=25),
    busy=st.lists(st.tuples(classes, st.integers(1, 6), st.integers(1, 2), st.floats(0, 999)), max_size=8),
    free=st.lists(st.integers(0, 12), min_size=2, max_size=2),
    resizing=st.booleans(),
)
def test_plan_stays_within_free_cores_and_uses_declared_amounts(
    queued: list[tuple[ActionClass, float, int]],
    busy: list[tuple[ActionClass, int, int, float]],
    free: list[int],
    resizing: bool,
) -> None:
    held = [
        running(
            100 + number,
            replace(cls, key=100 + number),
            min(cores, len(cls.demand.elastic.amounts)),
            node=node,
            since=since,
        )
        for number, (cls, cores, node, since) in enumerate(busy)
        if cls.demand.elastic is not None
    ]
    actions = [
        an_action(number, cls=replace(cls, key=number), submitted=submitted, priority=priority)
        for number, (cls, submitted, priority) in enumerate(queued, 1)
    ]
    pools = [_pool(node, spare, held) for node, spare in zip((1, 2), free, strict=True)]
    plan = planned(
        SparPolicy(is_resizing=resizing), a_snapshot(queued=actions, pools=pools, running=held), c1=5.0, c2=50.0
    )
    left = Counter({pool.node: pool.available["cpu_milli"] for pool in pools})
    before = {each.fence: each for each in held}
    for grant in plan.grants:
        left[grant.node] -= grant.resources["cpu_milli"]
        assert _elastic(_class(grant, actions)).amounts.count(grant.resources["cpu_milli"]) == 1
    for resize in plan.resizes:
        was = before[resize.fence]
        kind = _elastic(was.cls).resizable
        grows = resize.resources["cpu_milli"] > was.resources["cpu_milli"]
        assert resize.resources != was.resources
        assert kind is ResizeSupport.ANY or (kind is ResizeSupport.GROW and grows)
        left[was.node] -= max(0, resize.resources["cpu_milli"] - was.resources["cpu_milli"])
    assert min(left.values()) >= 0
    assert len({grant.fence for grant in plan.grants}) == len(plan.grants)


def _pool(node: int, spare: int, held: list[RunningAction]) -> NodeResources:
    used = sum(each.resources["cpu_milli"] for each in held if each.node == node)
    return a_pool(node, cpu_milli=used + spare * 1000, free={"cpu_milli": spare * 1000})


def _class(grant: Grant, actions: list[QueuedAction]) -> ActionClass:
    return next(action.cls for action in actions if action.id == grant.fence.action_id)


def _elastic(cls: ActionClass | None) -> ElasticResource:
    assert cls is not None
    assert cls.demand.elastic is not None
    return cls.demand.elastic


@given(st.permutations(range(1, 13)))
def test_insertion_order_does_not_change_plan(order: list[int]) -> None:
    def plan(numbers: list[int]) -> SchedulingPlan:
        actions = [an_action(number, cls=a_class(number % 3), submitted=float(number // 4)) for number in numbers]
        return planned(SPAR, a_snapshot(queued=actions, pools=[a_pool(1, cpu_milli=3000), a_pool(2, cpu_milli=2000)]))

    assert plan(order) == plan(sorted(order))


def test_round_grants_at_most_its_limit() -> None:
    queued = [an_action(number, cls=fixed(1)) for number in range(1, 101)]
    plan = SparPolicy(limit=10, constants=SparConstants()).plan(
        a_snapshot(queued=queued, pools=[a_pool(cpu_milli=100_000)])
    )
    assert len(plan.grants) == 10


class Learning(Known):
    def learn(self, key: int, seconds: float) -> None:
        self._seconds[key] = seconds


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 1)), min_size=2, max_size=6),
            st.lists(st.integers(0, 60), max_size=3),
            st.dictionaries(st.integers(0, 3), st.sampled_from((0.5, 5.0, 50.0)), max_size=2),
        ),
        min_size=2,
        max_size=8,
    ),
    st.booleans(),
)
def test_cached_round_state_does_not_change_plan(
    rounds: list[tuple[list[tuple[int, int, int]], list[int], dict[int, float]]], resizing: bool
) -> None:
    """The expected plan comes from a round that starts without caches."""
    classes = [fixed(0), fixed(1, cores=2), elastic(2, most=4), elastic(3, most=4, resizable=ResizeSupport.ANY)]
    policy, pools = SparPolicy(is_resizing=resizing), [a_pool(cpu_milli=2000)]
    durations, kept, there = Learning(), QueueIndex(), dict[UUID, QueuedAction]()
    curves = CurveCache(durations)
    numbers = count(1)
    for at, (came, left, learnt) in enumerate(rounds):
        for key, seconds in learnt.items():
            durations.learn(key, seconds)
            curves.invalidate(key)
        curves.now = now = NOW + at * 2 * REFRESH_AFTER_RUN_S
        for key, earlier_s, priority in came:
            action = an_action(next(numbers), cls=classes[key], submitted=now - earlier_s, priority=priority)
            there[action.id] = action
            kept.add(action)
        snapshot = a_snapshot(queued=list(there.values()), pools=pools)
        snapshot = replace(snapshot, now=now, curves=CurveCache(durations))
        plan = policy.plan(replace(snapshot, queue=kept, curves=curves))
        assert plan == policy.plan(snapshot)
        for id in [grant.fence.action_id for grant in plan.grants] + [numbered(number) for number in left]:
            there.pop(id, None)
            kept.discard(id)

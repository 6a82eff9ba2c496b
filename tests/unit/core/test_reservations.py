"""Reservations for starving actions, and backfill by actions that end before the reservation starts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arl_core.capacity.running_index import RunningIndex
from arl_core.domain.elasticity import AmdahlScaling
from arl_core.domain.model import (
    ActionClass,
    ElasticResource,
    Fence,
    Gang,
    NodeResources,
    PinnedEnvironment,
    QueuedAction,
    ResizeSupport,
    ResourceDemand,
    ResourceShape,
    RunningAction,
    SchedulingPlan,
)
from arl_core.durations.curves import CurveCache, DurationModel
from arl_core.policies.spar import SparPolicy
from support.builders import a_pool, a_snapshot, an_action, numbered

NOW = 10_000.0
SPAR, SPAR_M = SparPolicy(), SparPolicy(is_resizing=True)
LIMIT_S = SPAR.constants.size_penalty_limit_s
LONG_AGO = NOW - LIMIT_S - 100
LONG, WIDE, SHORT = 1, 2, 3


class Known:
    """Durations by class; one run in ten takes `tail` times as long."""

    def __init__(self, seconds: dict[int, float], tail: float = 1.0) -> None:
        self._seconds, self._tail = seconds, tail

    def seconds(self, cls: ActionClass, amount: int) -> float:
        elastic = cls.demand.elastic
        base = self._seconds.get(cls.key, 1.0)
        return base if elastic is None else base * elastic.elasticity.relative_duration(amount, base=elastic.amounts[0])

    def quantile(self, cls: ActionClass, q: float, amount: int) -> float:
        return self._tail * self.seconds(cls, amount)


def a_kind(key: int, *, cores: int = 1, memory_mib: int = 0) -> ActionClass:
    demand = ResourceDemand({"cpu_milli": 1000 * cores, "memory_mib": memory_mib})
    return ActionClass(key=key, kind="exec", shape=ResourceShape.DIVISIBLE, demand=demand)


def an_elastic_kind(key: int, *, most: int, resizable: ResizeSupport = ResizeSupport.NONE) -> ActionClass:
    elastic = ElasticResource("cpu_milli", tuple(range(1000, 1000 * most + 1, 1000)), AmdahlScaling(1.0), resizable)
    return ActionClass(
        key=key, kind="exec", shape=ResourceShape.DIVISIBLE, demand=ResourceDemand({"cpu_milli": 1000}, elastic)
    )


def running(number: int, cls: ActionClass, *, node: int = 1, granted: float = NOW - 10) -> RunningAction:
    return RunningAction(
        fence=Fence(numbered(number), 1), cls=cls, node=node, resources=cls.demand.minimum, granted=granted, task=1,
        started=granted, allocated_since=granted,
    )  # fmt: skip


def many(cls: ActionClass, count: int, *, first: int = 100) -> list[QueuedAction]:
    return [an_action(number, cls=cls, submitted=NOW) for number in range(first, first + count)]


def planned(
    policy: SparPolicy, queued: Sequence[QueuedAction], runs: Sequence[RunningAction], *pools: NodeResources,
    durations: DurationModel | None = None, before: SchedulingPlan | None = None, now: float = NOW,
) -> SchedulingPlan:  # fmt: skip
    snapshot = a_snapshot(queued=queued, pools=pools, running=runs)
    if before is not None:
        snapshot.running.mark_clean(except_nodes=before.watched_nodes, reserved=before.reserved)
    curves = CurveCache(durations or Known({LONG: 3600.0, WIDE: 10.0, SHORT: 0.1}))
    curves.now = now
    return policy.plan(replace(snapshot, now=now, curves=curves))


def numbers(plan: SchedulingPlan) -> list[int]:
    return [grant.fence.action_id.int for grant in plan.grants]


def a_node(cores: int, *runs: RunningAction, node: int = 1, memory_mib: int = 0) -> NodeResources:
    held = {name: sum(each.resources.get(name, 0) for each in runs) for name in ("cpu_milli", "memory_mib")}
    free = {"cpu_milli": 1000 * cores - held["cpu_milli"], "memory_mib": memory_mib - held["memory_mib"]}
    return a_pool(node, cpu_milli=1000 * cores, memory_mib=memory_mib, free=free)


@pytest.mark.parametrize("policy", [SPAR, SPAR_M], ids=["spar", "spar_m"])
class TestBackfill:
    wide = an_action(1, cls=a_kind(WIDE, cores=64), submitted=LONG_AGO)
    runs = running(50, a_kind(LONG))

    def test_short_actions_backfill_reservation(self, policy: SparPolicy) -> None:
        plan = planned(policy, [self.wide, *many(a_kind(SHORT), 590)], [self.runs], a_node(64, self.runs))
        assert numbers(plan) == list(range(100, 163))
        assert plan.reserved == {self.wide.id: (1, NOW)}

    def test_action_that_would_delay_reservation_is_not_backfilled(self, policy: SparPolicy) -> None:
        durations = Known({LONG: 3600.0, SHORT: 3600.0})
        queued = [self.wide, *many(a_kind(SHORT), 590)]
        assert numbers(planned(policy, queued, [self.runs], a_node(64, self.runs), durations=durations)) == []

    def test_action_with_long_duration_tail_is_not_backfilled(self, policy: SparPolicy) -> None:
        queued = [self.wide, *many(a_kind(SHORT), 1)]
        for tail, starts in ((10.0, []), (5.0, [100])):
            durations = Known({LONG: 3600.0, SHORT: 500.0}, tail)
            assert numbers(planned(policy, queued, [self.runs], a_node(64, self.runs), durations=durations)) == starts

    def test_untracked_allocation_prevents_backfill(self, policy: SparPolicy) -> None:
        assert numbers(planned(policy, [self.wide, *many(a_kind(SHORT), 1)], [], a_node(64, self.runs))) == []

    def test_new_environment_does_not_backfill_reserved_memory(self, policy: SparPolicy) -> None:
        wide = an_action(1, cls=a_kind(WIDE, cores=64, memory_mib=1000), submitted=LONG_AGO)
        home = an_action(
            2,
            cls=a_kind(SHORT, memory_mib=200),
            submitted=NOW,
            environment=PinnedEnvironment(id=numbered(9), node=None),
        )
        for memory_mib, starts in ((1100, []), (1200, [2])):
            pool = a_node(64, self.runs, memory_mib=memory_mib)
            assert numbers(planned(policy, [wide, home], [self.runs], pool)) == starts

    def test_reserved_action_starts_as_soon_as_it_fits(self, policy: SparPolicy) -> None:
        plan = planned(policy, [self.wide, *many(a_kind(SHORT), 590)], [], a_node(64))
        assert numbers(plan) == [1]


def test_backfilled_elastic_action_gets_full_parallelism() -> None:
    wide, runs = an_action(1, cls=a_kind(WIDE, cores=64), submitted=LONG_AGO), running(50, a_kind(LONG))
    short = an_action(2, cls=an_elastic_kind(SHORT, most=16), submitted=NOW)
    plan = planned(SPAR, [wide, short], [runs], a_node(64, runs))
    assert [grant.resources["cpu_milli"] for grant in plan.grants] == [16_000]


def test_cores_freed_by_resize_for_reservation_are_not_backfilled() -> None:
    resizable = an_elastic_kind(LONG, most=8, resizable=ResizeSupport.ANY)
    runs = running(50, resizable)._replace(resources={"cpu_milli": 4000})
    wide = an_action(1, cls=a_kind(WIDE, cores=63), submitted=LONG_AGO)
    plan = planned(SPAR_M, [wide, *many(a_kind(SHORT), 9)], [runs], a_node(64, runs))
    assert (numbers(plan), [each.resources["cpu_milli"] for each in plan.resizes]) == ([], [1000])


class TestReservationAcrossRounds:
    wide = an_action(1, cls=a_kind(WIDE, cores=8), submitted=LONG_AGO)
    queued = (wide, *many(a_kind(SHORT), 1))

    def test_reservation_keeps_its_node_while_backfilled_actions_run(self) -> None:
        """The other node is slightly better now, but not enough to move the reservation."""
        long = running(50, a_kind(4))
        lent = [running(60 + each, a_kind(5), granted=NOW + 1) for each in range(7)]
        others = [running(70 + each, a_kind(6), node=2, granted=NOW + 1) for each in range(7)]
        durations = Known({4: 30.0, 5: 15.0, 6: 18.0})
        pools = [a_node(8, long), a_node(8, node=2)]
        before = planned(SPAR, self.queued, [long], pools[0], durations=durations)
        pools = [a_node(8, long, *lent), a_node(8, *others, node=2)]
        after = planned(SPAR, self.queued, [long, *lent, *others], *pools, durations=durations, before=before,
                        now=NOW + 2)  # fmt: skip
        assert after.reserved == before.reserved == {self.wide.id: (1, NOW)}

    def test_reservation_moves_to_node_that_frees_much_sooner(self) -> None:
        long, soon = running(50, a_kind(4)), running(70, a_kind(5), node=2, granted=NOW)
        durations = Known({4: 300.0, 5: 15.0})
        before = planned(SPAR, self.queued, [long], a_node(8, long), durations=durations)
        pools = [a_node(8, long), a_node(8, soon, node=2)]
        after = planned(SPAR, self.queued, [long, soon], *pools, durations=durations, before=before, now=NOW + 2)
        assert after.reserved == {self.wide.id: (2, NOW + 2)}

    def test_reservation_is_kept_when_no_resources_are_free(self) -> None:
        long, lent = running(50, a_kind(LONG)), [running(60 + each, a_kind(SHORT)) for each in range(7)]
        before = planned(SPAR, self.queued, [long], a_node(8, long))
        runs = [long, *lent]
        after = planned(SPAR, self.queued, runs, a_node(8, *runs), before=before, now=NOW + 2)
        assert after.reserved == before.reserved != {}

    def test_reservation_ends_when_action_starts_or_leaves_queue(self) -> None:
        long = running(50, a_kind(LONG))
        before = planned(SPAR, self.queued, [long], a_node(8, long))
        assert planned(SPAR, self.queued, [], a_node(8), before=before).reserved == {}
        assert planned(SPAR, self.queued[1:], [long], a_node(8, long), before=before).reserved == {}

    def test_late_backfilled_action_does_not_extend_reservation(self) -> None:
        """Otherwise a chain of late backfilled actions could delay the reservation for ever."""
        late = running(60, a_kind(SHORT), granted=NOW + 1)
        long = running(50, a_kind(4))
        before = planned(SPAR, self.queued, [long], a_node(8, long), durations=Known({4: 20.0}))
        queued = [self.wide, *many(a_kind(5), 1)]
        for now, runs, starts in ((NOW + 5, [long, late], [100]), (NOW + 60, [late], [])):
            durations = Known({4: 20.0, SHORT: 0.1, 5: 0.5})
            plan = planned(SPAR, queued, runs, a_node(8, *runs), durations=durations, before=before, now=now)
            assert numbers(plan) == starts


@settings(deadline=None, max_examples=40)
@given(
    first=st.lists(st.floats(1.0, 60.0), min_size=4, max_size=4),
    takes=st.lists(st.floats(0.05, 30.0), min_size=1, max_size=12),
    resizing=st.booleans(),
)
def test_reserved_action_starts_in_time_despite_wrong_estimates(
    first: list[float], takes: list[float], resizing: bool
) -> None:
    """It starts once the actions that ran at its limit and the last backfilled actions have ended."""
    policy, overdue = SparPolicy(is_resizing=resizing), NOW + LIMIT_S
    wide, number = an_action(1, cls=a_kind(WIDE, cores=4), submitted=NOW), 1000
    runs = {each: running(each, a_kind(LONG), granted=overdue - 1) for each in range(10, 14)}
    ends = {each: overdue + after for each, after in zip(runs, first, strict=True)}
    index, now = RunningIndex(), overdue
    latest = overdue + max(first) + max(takes) + 1.0
    while now < latest:
        now = max(now, min(ends.values())) + 1e-3
        for each in [each for each, end in ends.items() if end <= now]:
            del ends[each], runs[each]
        queued = [wide, *(an_action(number + each, cls=a_kind(SHORT), submitted=now) for each in range(4))]
        snapshot = a_snapshot(queued=queued, pools=[a_node(4, *runs.values())], running=list(runs.values()))
        snapshot.running.mark_clean(reserved=index.reserved)
        curves = CurveCache(Known({LONG: 10.0, SHORT: 0.1}))
        curves.now = now
        plan = policy.plan(replace(snapshot, now=now, curves=curves))
        index.mark_clean(reserved=plan.reserved)
        if 1 in numbers(plan):
            return
        for started in numbers(plan):
            runs[started] = running(started, a_kind(SHORT), granted=now + 1e-4)
            ends[started] = now + takes[started % len(takes)]
        number += 4
    raise AssertionError("the reserved action never started")


class TestMemoryReservation:
    """An action outside an environment frees its memory when it ends."""

    large = an_action(1, cls=a_kind(WIDE, memory_mib=48), submitted=LONG_AGO)
    queued = (large, *many(a_kind(SHORT, memory_mib=8), 4))

    def held(self, count: int, *, at_home: bool = False) -> list[RunningAction]:
        kind = a_kind(SHORT, memory_mib=8)
        return [running(50 + each, kind, granted=NOW - 0.05)._replace(in_environment=at_home) for each in range(count)]

    @pytest.mark.parametrize("policy", [SPAR, SPAR_M], ids=["spar", "spar_m"])
    def test_memory_is_reserved_only_if_running_actions_free_it(self, policy: SparPolicy) -> None:
        for at_home, starts in ((False, []), (True, [100, 101])):
            runs = self.held(6, at_home=at_home)
            plan = planned(policy, self.queued, runs, a_node(16, *runs, memory_mib=64))
            assert numbers(plan) == starts
            assert set(plan.reserved) == ({self.large.id} if not at_home else set())

    def test_memory_is_reserved_on_node_that_frees_it_first(self) -> None:
        late = [each._replace(granted=NOW - 1, allocated_since=NOW - 1, node=2) for each in self.held(6)]
        runs = [each._replace(cls=a_kind(LONG)) for each in self.held(6)]
        pools = [a_node(16, *runs, memory_mib=64), replace(a_node(16, *late, memory_mib=64), node=2)]
        assert planned(SPAR, self.queued, [*runs, *late], *pools).reserved == {self.large.id: (2, NOW)}

    def test_environment_memory_is_not_expected_when_its_action_ends(self) -> None:
        soon, late = a_kind(4, memory_mib=16), a_kind(LONG, memory_mib=16)
        runs = [running(40, soon)._replace(in_environment=True), running(41, soon), running(42, late)]
        queued = [self.large, *many(a_kind(5, memory_mib=8), 1)]
        durations = Known({LONG: 3600.0, 4: 20.0, 5: 100.0})
        plan = planned(SPAR, queued, runs, a_node(16, *runs, memory_mib=64), durations=durations)
        assert numbers(plan) == [100], "the action ends long before the reservation can start"

    def test_new_environment_reserves_memory_only_within_headroom(self) -> None:
        large = an_action(
            1,
            cls=a_kind(WIDE, memory_mib=40),
            submitted=LONG_AGO,
            environment=PinnedEnvironment(id=numbered(9), node=None),
        )
        for count, reserved in ((2, {}), (3, {large.id: (1, NOW)})):
            homes, runs = [running(40, a_kind(LONG), granted=NOW)], self.held(count)
            capacity = {"cpu_milli": 16_000, "memory_mib": 64}
            free = {"cpu_milli": 9000, "memory_mib": 24}
            pool = a_pool(1, free=free, environments=1, **capacity)
            plan = planned(SPAR, [large, *self.queued[1:]], [*homes, *runs], pool)
            assert plan.reserved == reserved

    def test_memory_is_reserved_for_gang_members(self) -> None:
        first, second = (
            an_action(each, cls=a_kind(WIDE, memory_mib=24), submitted=LONG_AGO)._replace(gang=Gang(numbered(8), 2))
            for each in (1, 2)
        )
        runs = self.held(5)
        pool = a_node(16, *runs, memory_mib=64)
        queued = [first._replace(gang_members=(second,)), *self.queued[1:]]
        assert numbers(planned(SPAR, queued, runs, pool)) == []


def test_large_action_starts_despite_continuous_small_actions() -> None:
    """Without a reservation, the memory of each ended action would go to the next small action."""
    large, number = an_action(1, cls=a_kind(WIDE, memory_mib=48), submitted=NOW), 1000
    kind, index, now = a_kind(SHORT, memory_mib=8), RunningIndex(), NOW + LIMIT_S - 20
    runs = {each: running(each, kind, granted=now + each - 100) for each in range(100, 108)}
    while now < NOW + LIMIT_S + 10:
        now = max(now, min(each.granted + 5.0 for each in runs.values())) + 0.01
        runs = {id: each for id, each in runs.items() if each.granted + 5.0 > now}
        queued = [large, *(an_action(number + each, cls=kind, submitted=now) for each in range(4))]
        pool = a_node(16, *runs.values(), memory_mib=64)
        snapshot = a_snapshot(queued=queued, pools=[pool], running=list(runs.values()))
        snapshot.running.mark_clean(reserved=index.reserved)
        curves = CurveCache(Known({WIDE: 5.0, SHORT: 5.0}))
        curves.now = now
        plan = SPAR.plan(replace(snapshot, now=now, curves=curves))
        index.mark_clean(reserved=plan.reserved)
        if 1 in numbers(plan):
            return
        runs |= {each: running(each, kind, granted=now) for each in numbers(plan)}
        number += 4
    raise AssertionError("the reserved action never started")


@settings(deadline=None, max_examples=150)
@given(
    queued=st.lists(
        st.tuples(st.integers(1, 8), st.integers(0, 16), st.booleans(), st.booleans(), st.integers(0, 3)), max_size=20
    ),
    runs=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8), st.integers(1, 2), st.booleans()), max_size=8),
    resizing=st.booleans(),
)
def test_backfill_never_overallocates_a_node(
    queued: list[tuple[int, int, bool, bool, int]], runs: list[tuple[int, int, int, bool]], resizing: bool
) -> None:
    waiting = [
        an_action(
            number,
            cls=an_elastic_kind(number, most=8) if kind == 3 else a_kind(number, cores=cores, memory_mib=memory_mib),
            submitted=LONG_AGO if is_overdue else NOW,
            environment=PinnedEnvironment(id=numbered(5000 + number), node=None) if makes_home else None,
        )
        for number, (cores, memory_mib, is_overdue, makes_home, kind) in enumerate(queued, 1)
    ]
    held = [
        running(100 + number, a_kind(100 + number, cores=cores, memory_mib=memory_mib), node=node)._replace(
            in_environment=home
        )
        for number, (cores, memory_mib, node, home) in enumerate(runs)
    ]
    by_node = {node: [each for each in held if each.node == node] for node in (1, 2)}
    pools = [replace(a_node(32, *there, memory_mib=64), node=node, environments=1) for node, there in by_node.items()]
    durations = Known({key: 0.5 * (key % 7) + (50.0 if key >= 100 else 0.0) for key in range(1, 120)})
    left = {pool.node: dict(pool.available) for pool in pools}
    plan = planned(SparPolicy(is_resizing=resizing), waiting, held, *pools, durations=durations)
    for grant in plan.grants:
        for name, amount in grant.resources.items():
            left[grant.node][name] -= amount
    assert min(min(each.values()) for each in left.values()) >= 0
    assert len({grant.fence for grant in plan.grants}) == len(plan.grants)

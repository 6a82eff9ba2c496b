"""Bounds of SPAR: no action waits for ever or blocks resources that it cannot use."""

from dataclasses import replace
from typing import Any

import pytest

from arl_core.domain.elasticity import AmdahlScaling
from arl_core.domain.model import (
    ActionClass,
    ElasticResource,
    Fence,
    PinnedEnvironment,
    ResizeSupport,
    ResourceDemand,
    ResourceShape,
    RunningAction,
    SchedulingPlan,
)
from arl_core.durations.curves import CurveCache
from arl_core.policies.spar import SparPolicy
from arl_core.queue.fairness import MAX_CREDIT_S, FairShares
from support.builders import a_pool, a_snapshot, an_action, numbered

NOW = 1000.0
SPAR, SPAR_M = SparPolicy(), SparPolicy(is_resizing=True)
LONG_AGO = NOW - SPAR.constants.size_penalty_limit_s - 100


def a_kind(key: int, *, cores: int = 1, memory_mib: int = 0, requires: tuple[str, ...] = ()) -> ActionClass:
    demand = ResourceDemand({"cpu_milli": 1000 * cores, "memory_mib": memory_mib})
    return ActionClass(key=key, kind="exec", shape=ResourceShape.DIVISIBLE, demand=demand, requires=frozenset(requires))


def a_wide_one(number: int, *, cores: int, node: int = 1, changing_to: int | None = None) -> RunningAction:
    """Return a running, resizable action with the given number of cores."""
    amounts = tuple(range(1000, 9000, 1000))
    demand = ResourceDemand(
        {"cpu_milli": 1000}, ElasticResource("cpu_milli", amounts, AmdahlScaling(0.9), ResizeSupport.ANY)
    )
    cls = ActionClass(key=900, kind="exec", shape=ResourceShape.DIVISIBLE, demand=demand)
    held = {"cpu_milli": 1000 * cores}
    to = {"cpu_milli": 1000 * changing_to} if changing_to is not None else None
    return RunningAction(
        fence=Fence(numbered(number), 1), cls=cls, node=node, resources=held, granted=NOW - 5, task=1, started=NOW - 5,
        allocated_since=NOW - 5, resizing_to=to,
    )  # fmt: skip


def planned(policy: SparPolicy, **given: Any) -> SchedulingPlan:
    curves = CurveCache()
    curves.now = NOW
    return policy.plan(replace(a_snapshot(**given), now=NOW, curves=curves))


def numbers(plan: SchedulingPlan) -> list[int]:
    return [grant.fence.action_id.int for grant in plan.grants]


class TestReservedResources:
    def test_long_waiting_environment_does_not_reserve_memory_headroom(self) -> None:
        """Only the headroom is left; reserving it for a new environment would block scoring actions for ever."""
        home = an_action(
            1,
            cls=a_kind(1, memory_mib=4096),
            submitted=LONG_AGO,
            environment=PinnedEnvironment(id=numbered(50), node=None),
        )
        small = an_action(2, cls=a_kind(2, memory_mib=512), submitted=NOW)
        pool = a_pool(cpu_milli=8000, memory_mib=32_768, free={"cpu_milli": 8000, "memory_mib": 4096}, environments=7)
        assert numbers(planned(SPAR, queued=[home, small], pools=[pool])) == [2]

    def test_action_that_lacks_memory_reserves_no_cores(self) -> None:
        large = an_action(1, cls=a_kind(1, cores=8, memory_mib=8192), submitted=LONG_AGO)
        lives_here = an_action(2, cls=a_kind(2), environment=PinnedEnvironment(id=numbered(50), node=1))
        pool = a_pool(cpu_milli=8000, memory_mib=32_768, free={"cpu_milli": 8000, "memory_mib": 6144})
        assert numbers(planned(SPAR, queued=[large, lives_here], pools=[pool])) == [2]

    def test_reservation_uses_node_whose_cores_free_first(self) -> None:
        wide = an_action(1, cls=a_kind(1, cores=8), submitted=LONG_AGO)
        pools = [a_pool(node, cpu_milli=8000, free={"cpu_milli": 7000}) for node in (1, 2)]
        fixed = a_kind(7)
        ends = {1: 0.9, 2: 0.1}
        running = [
            RunningAction(
                fence=Fence(numbered(60 + node), 1), cls=fixed, node=node, resources={"cpu_milli": 1000},
                granted=NOW - 1 + ends[node], task=1, started=NOW - 1 + ends[node],
                allocated_since=NOW - 1 + ends[node],
            )
            for node in (1, 2)
        ]  # fmt: skip
        others = [an_action(number, cls=a_kind(2), submitted=NOW) for number in range(10, 20)]
        plan = planned(SPAR, queued=[wide, *others], pools=pools, running=running)
        assert {grant.node for grant in plan.grants} == {1}, "node 2 frees its core sooner, so node 2 is reserved"

    def test_overdue_action_blocks_newer_actions_of_another_task(self) -> None:
        wide = an_action(1, cls=a_kind(1, cores=4), submitted=LONG_AGO)._replace(task=1)
        fresh = [an_action(number, cls=a_kind(2), submitted=NOW)._replace(task=2) for number in range(10, 14)]
        pool = a_pool(cpu_milli=4000, free={"cpu_milli": 1000})
        assert numbers(planned(SPAR, queued=[wide, *fresh], pools=[pool])) == []


class TestShrinking:
    def test_unusable_node_does_not_prevent_shrinking(self) -> None:
        for other in (
            a_pool(2, accepting=False, cpu_milli=64_000),
            a_pool(2, cpu_milli=64_000, memory_mib=0),
        ):
            plan = planned(
                SPAR_M,
                queued=[an_action(9, cls=a_kind(3, memory_mib=100), submitted=NOW)],
                pools=[a_pool(1, cpu_milli=8000, memory_mib=999, free={"cpu_milli": 0, "memory_mib": 999}), other],
                running=[a_wide_one(1, cores=8)],
            )
            assert [resize.fence.action_id.int for resize in plan.resizes] == [1]

    @pytest.mark.parametrize(("free_mib", "give_way"), [(8192, 0), (9215, 0), (9216, 1), (11_264, 3)])
    def test_no_action_shrinks_for_environment_beyond_memory_headroom(self, free_mib: int, give_way: int) -> None:
        """One eighth of the memory is for actions outside environments; each environment needs 1 GiB."""
        homes = [
            an_action(
                number,
                cls=a_kind(number, memory_mib=1024),
                submitted=NOW,
                environment=PinnedEnvironment(id=numbered(1000 + number), node=None),
            )
            for number in range(100, 160)
        ]
        free = {"cpu_milli": 0, "memory_mib": free_mib}
        pool = a_pool(cpu_milli=32_000, memory_mib=65_536, free=free, environments=56)
        running = [a_wide_one(number, cores=8) for number in range(1, 5)]
        plan = planned(SPAR_M, queued=homes, pools=[pool], running=running)
        given_up = sum(8000 - resize.resources["cpu_milli"] for resize in plan.resizes)
        assert (plan.grants, given_up) == ((), 1000 * give_way)

    def test_pending_shrink_is_not_requested_from_another_action(self) -> None:
        plan = planned(
            SPAR_M,
            queued=[an_action(9, cls=a_kind(3, cores=2), submitted=NOW)],
            pools=[a_pool(cpu_milli=16_000, free={"cpu_milli": 0})],
            running=[a_wide_one(1, cores=8, changing_to=6), a_wide_one(2, cores=8)],
        )
        assert plan.resizes == ()

    def test_node_is_reconsidered_after_its_waiting_action_leaves(self) -> None:
        runs = a_wide_one(1, cores=1)
        waits = an_action(9, cls=a_kind(3, cores=4), submitted=LONG_AGO)
        lacks_memory = an_action(10, cls=a_kind(4, memory_mib=100), submitted=NOW)
        pool = a_pool(cpu_milli=4000, free={"cpu_milli": 3000})
        snapshot = a_snapshot(queued=[waits, lacks_memory], pools=[pool], running=[runs])
        curves = CurveCache()
        curves.now = NOW
        snapshot = replace(snapshot, now=NOW, curves=curves)
        plan = SPAR_M.plan(snapshot)
        assert (plan.resizes, plan.watched_nodes) == ((), {1})
        snapshot.running.mark_clean(except_nodes=plan.watched_nodes)
        snapshot.queue.discard(waits.id)
        (resize,) = SPAR_M.plan(snapshot).resizes
        assert resize.resources == {"cpu_milli": 4000}


class TestFairShareCredit:
    def test_credit_of_underserved_task_is_bounded(self) -> None:
        shares = FairShares()
        for task in (1, 2):
            shares.add_action(task)
        for _ in range(100):
            shares.settle(1, shares.charge_expected(1, 60.0), 60.0)
        shares.settle(2, shares.charge_expected(2, 1.0), 1.0)
        shares.charge_expected(1, 0.0)
        assert shares.virtual_s(1) - shares.virtual_s(2) <= MAX_CREDIT_S

    def test_new_task_does_not_inherit_credit_of_another(self) -> None:
        shares = FairShares()
        for task in (1, 2):
            shares.add_action(task)
        for _ in range(100):
            shares.settle(1, shares.charge_expected(1, 60.0), 60.0)
        shares.add_action(3)
        assert shares.virtual_s(1) - shares.virtual_s(3) <= 60.0


class TestCorePrice:
    """An action that fits on no schedulable node does not affect the price of cores."""

    wide = ActionClass(
        key=5,
        kind="exec",
        shape=ResourceShape.DIVISIBLE,
        demand=ResourceDemand(
            {"cpu_milli": 1000}, ElasticResource("cpu_milli", tuple(range(1000, 17_000, 1000)), AmdahlScaling(0.95))
        ),
    )
    closed = replace(
        a_pool(2, cpu_milli=64_000, memory_mib=4096), is_schedulable=False, enforced=frozenset({"template:x"})
    )
    other = replace(a_pool(3, cpu_milli=1000, memory_mib=1024), enforced=frozenset({"npu"}))

    @pytest.mark.parametrize(
        ("waits", "cores"),
        [
            (a_kind(6, requires=("template:x",)), 16),
            (a_kind(6, memory_mib=2048), 16),
            (a_kind(6, cores=65), 16),
            (a_kind(6, cores=2, requires=("npu",)), 16),
            (a_kind(6, memory_mib=1024), 1),
        ],
        ids=["template", "memory", "cores", "requirements on different nodes", "possible"],
    )
    def test_action_that_fits_nowhere_does_not_reduce_parallelism(self, waits: ActionClass, cores: int) -> None:
        queued = [an_action(number, cls=waits, submitted=NOW + 1) for number in range(100, 1100)]
        pools = [a_pool(1, cpu_milli=64_000, memory_mib=1024), self.closed, self.other]
        plan = planned(SPAR, queued=[an_action(1, cls=self.wide, submitted=0.0), *queued], pools=pools)
        assert plan.grants[0].resources["cpu_milli"] == 1000 * cores

    def test_actions_pinned_to_cordoned_node_count_towards_its_price(self) -> None:
        """No schedulable node accepts new actions of this kind."""
        kind = replace(self.wide, requires=frozenset({"template:x"}))
        queued = [
            an_action(
                number, cls=kind, submitted=NOW, environment=PinnedEnvironment(id=numbered(2000 + number), node=2)
            )
            for number in range(100, 1100)
        ]
        plan = planned(SPAR, queued=queued, pools=[a_pool(1, cpu_milli=64_000), self.closed])
        assert {grant.resources["cpu_milli"] for grant in plan.grants} == {1000}


def test_unschedulable_nodes_do_not_lower_core_price() -> None:
    demand = ResourceDemand(
        {"cpu_milli": 1000}, ElasticResource("cpu_milli", tuple(range(1000, 9000, 1000)), AmdahlScaling(0.9))
    )
    cls = ActionClass(key=5, kind="exec", shape=ResourceShape.DIVISIBLE, demand=demand)
    queued = [an_action(number, cls=cls, submitted=NOW) for number in range(1, 21)]
    alone = planned(SPAR, queued=queued, pools=[a_pool(1, cpu_milli=8000)])
    away = [replace(a_pool(node, cpu_milli=8000), is_schedulable=False, is_serving=False) for node in range(2, 21)]
    assert planned(SPAR, queued=queued, pools=[a_pool(1, cpu_milli=8000), *away]).grants == alone.grants

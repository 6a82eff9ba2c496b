"""Explanations of waiting actions: the reported reason and actions ahead match the policy's decision."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.elasticity import AmdahlScaling
from arl_core.domain.model import (
    ActionClass,
    ElasticResource,
    Fence,
    NodeResources,
    PinnedEnvironment,
    QueuedAction,
    ResourceDemand,
    ResourceShape,
    RunningAction,
)
from arl_core.domain.states import EstimateBasis, WaitReason
from arl_core.durations.curves import CurveCache
from arl_core.durations.estimates import DurationEstimates
from arl_core.inquiry.explain import MAX_SCANNED, ActionsAhead, QueueExplanation, ResourceShortage, explain
from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.spar import SparPolicy
from arl_core.queue.fairness import FairShares
from arl_core.queue.quotas import QuotaUsage, TaskQuota
from support.builders import a_pool, a_snapshot, an_action, numbered

NOW = 1000.0
SPAR = SparPolicy()
BUSY = a_pool(cpu_milli=2000, free={"cpu_milli": 0})


def fixed(key: int = 1, cores: int = 1) -> ActionClass:
    return ActionClass(
        key=key, kind="exec", shape=ResourceShape.DIVISIBLE, demand=ResourceDemand({"cpu_milli": 1000 * cores})
    )


def elastic(key: int, *, most: int, fraction: float = 1.0) -> ActionClass:
    amounts = tuple(range(1000, 1000 * most + 1, 1000))
    demand = ResourceDemand({"cpu_milli": 1000}, ElasticResource("cpu_milli", amounts, AmdahlScaling(fraction)))
    return ActionClass(key=key, kind="exec", shape=ResourceShape.DIVISIBLE, demand=demand)


def of_task(task: int, number: int, *, priority: int = 0, submitted: float = NOW) -> QueuedAction:
    return an_action(number, cls=fixed(), submitted=submitted, priority=priority)._replace(task=task)


def learnt(**seconds: float) -> CurveCache:
    estimates = DurationEstimates()
    for name, run_s in seconds.items():
        for _ in range(5):
            estimates.observe(fixed(int(name.removeprefix("c"))), amount=1000, run_s=run_s)
    curves = CurveCache(estimates)
    curves.now = NOW
    return curves


def explained(
    queued: Sequence[QueuedAction], *pools: NodeResources, policy: SchedulingPolicy = SPAR,
    curves: CurveCache | None = None,
    running: Sequence[RunningAction] = (), shares: FairShares | None = None,
) -> QueueExplanation:  # fmt: skip
    """Explain the last of the queued actions."""
    snapshot = a_snapshot(queued=queued, pools=pools, running=running)
    snapshot = replace(snapshot, curves=curves or learnt(), shares=shares or FairShares())
    return explain(snapshot, queued[-1], policy)


def test_quota_limited_actions_are_not_ahead_of_other_tasks() -> None:
    quotas = QuotaUsage()
    quotas.set_quotas({1: TaskQuota(actions=1)}, [(1, {"cpu_milli": 1000})])
    queued = [*(of_task(1, number) for number in range(1, 4)), of_task(2, 4)]
    snapshot = replace(a_snapshot(queued=queued, pools=[BUSY]), curves=learnt(), quotas=quotas)
    found = explain(snapshot, queued[-1], SPAR)
    assert (found.reason, found.ahead) == (WaitReason.WAITS_FOR_CAPACITY, ActionsAhead())


class TestWaitReason:
    def test_action_that_next_round_grants_reports_starts_next_round(self) -> None:
        found = explained([of_task(1, 1)], a_pool())
        assert (found.reason, found.shortages, found.ahead) == (WaitReason.STARTS_NEXT_ROUND, (), ActionsAhead())

    def test_first_action_without_free_resources_waits_for_capacity(self) -> None:
        found = explained([of_task(1, 1)], BUSY)
        assert (found.reason, found.node) == (WaitReason.WAITS_FOR_CAPACITY, 1)
        assert found.shortages == (ResourceShortage("cpu_milli", needed=1000, available=0, capacity=2000),)

    def test_action_larger_than_every_node_fits_no_node(self) -> None:
        found = explained([an_action(1, cls=fixed(cores=8))], a_pool(1, cpu_milli=2000), a_pool(2, cpu_milli=4000))
        assert (found.reason, found.node) == (WaitReason.NO_NODE_FITS, None)
        assert found.shortages == (ResourceShortage("cpu_milli", needed=8000, available=4000, capacity=4000),)

    def test_zero_demand_is_no_shortage_of_overallocated_resource(self) -> None:
        action = an_action(1, cls=replace(fixed(), demand=ResourceDemand({"cpu_milli": 1000, "disk_mib": 0})))
        pool = a_pool(cpu_milli=2000, disk_mib=10, free={"cpu_milli": 0, "disk_mib": -5})
        found = explained([action], pool)
        assert [lack.resource for lack in found.shortages] == ["cpu_milli"]
        roomy = replace(pool, available={"cpu_milli": 1000, "disk_mib": -5})
        assert explained([action], roomy).reason is WaitReason.STARTS_NEXT_ROUND

    def test_unenforced_limit_is_named(self) -> None:
        cls = replace(fixed(), requires=frozenset({"limit:memory", "limit:cpu"}))
        found = explained([an_action(1, cls=cls)], replace(a_pool(), enforced=frozenset({"limit:cpu"})))
        assert (found.reason, found.unenforced) == (WaitReason.NO_NODE_FITS, {"limit:memory"})

    def test_unschedulable_node_reports_no_schedulable_node(self) -> None:
        assert explained([of_task(1, 1)], a_pool(accepting=False)).reason is WaitReason.NO_SCHEDULABLE_NODE

    def test_reported_node_is_schedulable_even_if_it_lacks_more(self) -> None:
        assert explained([of_task(1, 1)], a_pool(1, accepting=False), replace(BUSY, node=2)).node == 2

    def test_higher_priority_action_is_ahead(self) -> None:
        found = explained([of_task(1, 1, priority=1), of_task(1, 2), of_task(1, 3, submitted=NOW + 1)], BUSY)
        assert (found.reason, found.ahead) == (WaitReason.WAITS_BEHIND_PRIORITY, ActionsAhead(priority=1, in_task=1))

    def test_earlier_actions_of_same_task_are_ahead(self) -> None:
        found = explained([of_task(1, 1), of_task(1, 2, submitted=NOW + 1)], BUSY)
        assert (found.reason, found.ahead) == (WaitReason.WAITS_IN_ORDER, ActionsAhead(in_task=1))

    def test_task_with_excess_usage_waits_behind_fair_share(self) -> None:
        shares = FairShares()
        for task in (1, 2):
            shares.add_action(task)
        shares.charge_expected(1, 5.0)
        found = explained([of_task(2, 1), of_task(2, 2), of_task(1, 3, submitted=0.0)], BUSY, shares=shares)
        assert found.reason is WaitReason.WAITS_BEHIND_FAIR_SHARE
        assert (found.ahead, found.debt_s, found.fair_share) == (ActionsAhead(other_tasks=2), 5.0, 0.5)

    def test_action_that_waits_for_nearly_free_cores_is_postponed(self) -> None:
        others = RunningAction(
            fence=Fence(numbered(1), 1), cls=fixed(2, 3), node=1, resources={"cpu_milli": 3000}, granted=NOW - 9.5,
            task=1, started=NOW - 9.5, allocated_since=NOW - 9.5,
        )  # fmt: skip
        action = an_action(9, cls=elastic(1, most=4), submitted=NOW)
        pool = a_pool(cpu_milli=4000, free={"cpu_milli": 1000})
        rules = [
            explained([action], pool, running=[others], curves=learnt(c1=40.0, c2=rest)).reason
            for rest in (10.0, 100.0)
        ]
        assert rules == [WaitReason.POSTPONED_FOR_MORE_CORES, WaitReason.STARTS_NEXT_ROUND]

    def test_reserved_resources_are_not_free_for_other_actions(self) -> None:
        limit = SPAR.constants.size_penalty_limit_s
        wide = an_action(1, cls=fixed(2, cores=2), submitted=NOW - limit - 1)
        pool = a_pool(cpu_milli=2000, free={"cpu_milli": 1000})
        assert explained([wide, of_task(1, 2)], pool).reason is WaitReason.WAITS_BEHIND_RESERVATION
        elastic_one = an_action(2, cls=elastic(1, most=4), submitted=NOW)
        assert explained([wide, elastic_one], pool).reason is WaitReason.WAITS_BEHIND_RESERVATION

    def test_action_that_ends_before_reservation_starts_is_backfilled(self) -> None:
        wide = an_action(1, cls=fixed(2, cores=2), submitted=NOW - SPAR.constants.size_penalty_limit_s - 1)
        others = RunningAction(
            fence=Fence(numbered(50), 1), cls=fixed(3), node=1, resources={"cpu_milli": 1000}, granted=NOW - 1, task=1,
            started=NOW - 1, allocated_since=NOW - 1,
        )  # fmt: skip
        pool = a_pool(cpu_milli=2000, free={"cpu_milli": 1000})
        rules = [
            explained([wide, of_task(1, 2)], pool, running=[others], curves=learnt(c1=seconds, c3=600.0)).reason
            for seconds in (1.0, 600.0)
        ]
        assert rules == [WaitReason.STARTS_NEXT_ROUND, WaitReason.WAITS_BEHIND_RESERVATION]

    def test_resources_granted_in_same_round_are_not_free(self) -> None:
        queued = [of_task(1, 1), of_task(1, 2), of_task(1, 3, submitted=NOW + 1)]
        assert explained(queued, a_pool(cpu_milli=2000)).reason is WaitReason.WAITS_IN_ORDER

    def test_action_beyond_round_limit_starts_next_round(self) -> None:
        queued = [of_task(1, 1), of_task(1, 2, submitted=NOW + 1)]
        assert (
            explained(queued, a_pool(cpu_milli=2000), policy=SparPolicy(limit=1)).reason is WaitReason.STARTS_NEXT_ROUND
        )

    def test_first_come_first_served_ignores_task_shares(self) -> None:
        found = explained([of_task(2, 1), of_task(1, 2, submitted=NOW + 1)], BUSY, policy=FirstComeFirstServed())
        assert (found.reason, found.size_penalty_s) == (WaitReason.WAITS_IN_ORDER, 0.0)


class TestSideEffects:
    def test_explanation_keeps_size_penalties_of_last_round(self) -> None:
        wide = an_action(1, cls=fixed(2, cores=2), submitted=NOW - SPAR.constants.size_penalty_limit_s - 1)
        queued = [wide, *(an_action(number, cls=fixed(number), submitted=NOW) for number in range(3, 9))]
        snapshot = replace(a_snapshot(queued=queued, pools=[a_pool(free={"cpu_milli": 1000})]), curves=learnt())
        SPAR.plan(snapshot)
        before = [bucket.size_penalty_token for bucket in snapshot.queue.buckets()]
        assert explain(snapshot, queued[-1], SPAR).reason is WaitReason.WAITS_BEHIND_RESERVATION
        assert [bucket.size_penalty_token for bucket in snapshot.queue.buckets()] == before


class TestPinnedActions:
    def at_home(self, number: int, node: int) -> QueuedAction:
        home = PinnedEnvironment(id=numbered(100 + number), node=node)
        return an_action(number, cls=replace(fixed(), key=number), environment=home, submitted=NOW + number)

    def test_pinned_action_needs_only_cores_of_its_own_node(self) -> None:
        cls = replace(fixed(), demand=ResourceDemand({"cpu_milli": 1000, "memory_mib": 100}))
        full = a_pool(2, cpu_milli=2000, memory_mib=100, free={"cpu_milli": 0, "memory_mib": 0})
        found = explained([self.at_home(1, node=2)._replace(cls=cls)], a_pool(1, cpu_milli=2000, memory_mib=900), full)
        assert (found.node, [lack.resource for lack in found.shortages]) == (2, ["cpu_milli"])

    def test_pinned_actions_ahead_need_no_additional_memory(self) -> None:
        cls = replace(fixed(), demand=ResourceDemand({"cpu_milli": 1000, "memory_mib": 100}))
        pool = a_pool(1, cpu_milli=2000, memory_mib=200, free={"cpu_milli": 2000, "memory_mib": 100})
        queued = [self.at_home(1, node=1)._replace(cls=cls), an_action(2, cls=cls, submitted=NOW + 9)]
        assert explained(queued, pool, policy=SparPolicy(limit=1)).reason is WaitReason.STARTS_NEXT_ROUND

    def test_actions_pinned_to_other_nodes_are_not_ahead(self) -> None:
        found = explained([self.at_home(1, node=1), self.at_home(2, node=2)], BUSY, replace(BUSY, node=2))
        assert (found.reason, found.ahead) == (WaitReason.WAITS_FOR_CAPACITY, ActionsAhead())


class TestActionsAhead:
    def test_reported_actions_ahead_are_those_granted_first(self) -> None:
        """An action starts only if there is room for one action more than those reported ahead."""
        actions = [of_task(number % 3, number, priority=number % 2) for number in range(1, 40)]
        actions = [each._replace(cls=fixed(1 + each.id.int % 4), submitted=NOW - each.id.int) for each in actions]
        curves = learnt(c1=1.0, c2=5.0, c3=10.0, c4=60.0)
        for action in actions:
            found = explained([*actions, action], replace(BUSY, capacity={"cpu_milli": 40_000}), curves=curves).ahead
            assert found is not None
            first = found.priority + found.in_task + found.other_tasks
            for room, starts in ((first, False), (first + 1, True)):
                pool = a_pool(cpu_milli=40_000, free={"cpu_milli": 1000 * room})
                snapshot = replace(a_snapshot(queued=actions, pools=[pool]), curves=curves)
                grants = SPAR.plan(snapshot).grants
                assert (action.id in {grant.fence.action_id for grant in grants}) is starts

    def test_number_of_actions_ahead_is_capped(self) -> None:
        queued = [of_task(1, number) for number in range(1, MAX_SCANNED + 3)]
        queued[-1] = of_task(1, MAX_SCANNED + 3, submitted=NOW + 1)
        found = explained(queued, BUSY)
        assert (found.ahead, found.reason) == (
            ActionsAhead(in_task=MAX_SCANNED, is_lower_bound=True),
            WaitReason.WAITS_IN_ORDER,
        )


class TestExpectedDuration:
    @pytest.mark.parametrize(
        ("key", "basis", "runs", "seconds"), [(1, EstimateBasis.LEARNT, 5, 4.0), (2, EstimateBasis.POOLED, 0, 4.0)]
    )
    def test_expected_duration_reports_its_basis_and_runs(
        self, key: int, basis: EstimateBasis, runs: int, seconds: float
    ) -> None:
        curves = learnt(c1=4.0)
        curves.curve_for(fixed(1))
        found = explained([an_action(1, cls=fixed(key))], BUSY, curves=curves)
        assert (found.basis, found.runs, found.min_parallelism.seconds) == (basis, runs, seconds)

    def test_expected_duration_without_runs_is_as_declared(self) -> None:
        found = explained([an_action(1, cls=elastic(1, most=4))], BUSY)
        assert (found.basis, found.runs) == (EstimateBasis.DECLARED, 0)
        assert [(width.amount, width.seconds) for width in (found.min_parallelism, found.max_parallelism)] == [
            (1000, 1),
            (4000, 0.25),
        ]

    def test_backlog_counts_all_queued_and_running_work(self) -> None:
        curves = learnt(c1=6.0)
        assert explained([of_task(1, 1), of_task(1, 2)], BUSY, curves=curves).backlog_s == pytest.approx(6.0)


def test_explanation_does_not_change_next_plan() -> None:
    queued = [of_task(1, number) for number in range(1, 6)]
    snapshot: CellSnapshot = replace(a_snapshot(queued=queued, pools=[a_pool()]), curves=learnt())
    before = SPAR.plan(snapshot)
    explain(snapshot, queued[-1], SPAR)
    assert SPAR.plan(snapshot) == before

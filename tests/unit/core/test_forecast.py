"""Forecasts follow the policy's decisions, also for a hypothetical cell."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    NodeResources,
    PinnedEnvironment,
    QueuedAction,
    ResizeSupport,
    ResourceDemand,
    Resources,
    ResourceShape,
    RunningAction,
    SchedulingPlan,
)
from arl_core.domain.states import UnstartedReason
from arl_core.durations.curves import DeclaredDurations
from arl_core.inquiry.capacity_plan import (
    BaselineDurations,
    ExtraLoad,
    NodeChange,
    schedulable_cores,
    with_extra_load,
    with_node_change,
)
from arl_core.inquiry.forecast import STEP_BATCH, ActiveAction, ForecastInput, ForecastSimulator, QueueForecast
from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.spar import SparPolicy
from arl_core.queue.fairness import FairShares
from arl_core.queue.quotas import QuotaUsage, TaskQuota
from support.builders import a_pool, an_action, numbered

NOW = 1000.0
FCFS = FirstComeFirstServed()
LIMIT = 100


def fixed(cores: int = 1) -> ActionClass:
    return ActionClass(
        key=cores, kind="exec", shape=ResourceShape.DIVISIBLE, demand=ResourceDemand({"cpu_milli": 1000 * cores})
    )


def wide(most: int) -> ActionClass:
    amounts = tuple(range(1000, 1000 * most + 1, 1000))
    demand = ResourceDemand(
        {"cpu_milli": 1000}, ElasticResource("cpu_milli", amounts, AmdahlScaling(1.0), ResizeSupport.ANY)
    )
    return ActionClass(key=100 + most, kind="exec", shape=ResourceShape.DIVISIBLE, demand=demand)


def present(
    waiting: Sequence[QueuedAction] = (),
    *pools: NodeResources,
    working: Sequence[ActiveAction] = (),
    seconds: float = 1.0,
) -> ForecastInput:
    shares = FairShares()
    for task in [action.task for action in waiting] + [each.running.task for each in working]:
        shares.add_action(task)
    return ForecastInput(
        now=NOW,
        nodes={pool.node: pool for pool in pools or (a_pool(cpu_milli=1000),)},
        active=tuple(working),
        queued=tuple(waiting),
        shares=shares,
        durations=DeclaredDurations(seconds),
    )


def running(number: int, *, cls: ActionClass, since: float, amounts: Resources) -> RunningAction:
    return RunningAction(
        fence=Fence(numbered(number), 1), cls=cls, node=1, resources=amounts, granted=since, task=1, started=since,
        allocated_since=since,
    )  # fmt: skip


def foreseen(cell: ForecastInput, policy: SchedulingPolicy = FCFS) -> QueueForecast:
    forecasting = ForecastSimulator(cell, policy, limit=LIMIT)
    while forecasting.step():
        pass
    return forecasting.forecast()


class TestForecast:
    @pytest.mark.parametrize("policy", [FCFS, SparPolicy(), SparPolicy(is_resizing=True)])
    def test_single_core_runs_actions_one_after_another(self, policy: SchedulingPolicy) -> None:
        found = foreseen(present([an_action(n, cls=fixed()) for n in (1, 2, 3)]), policy)
        assert (found.starts_now, found.started, found.mean_wait_s) == (1, 3, 1.0)
        assert (found.p90_wait_s, found.drained_s) == (2.0, 2.0)

    def test_quota_of_a_task_lets_its_actions_run_one_after_another(self) -> None:
        cell = present([an_action(n, cls=fixed()) for n in (1, 2, 3)], a_pool(cpu_milli=8000))
        quotas = QuotaUsage()
        quotas.set_quotas({cell.queued[0].task: TaskQuota(actions=1)}, [])
        found = foreseen(replace(cell, quotas=quotas), SparPolicy())
        assert (found.started, found.drained_s, dict(found.unstarted)) == (3, 2.0, {})

    @pytest.mark.parametrize("policy", [FCFS, SparPolicy()])
    def test_actions_that_never_start_have_a_reason(self, policy: SchedulingPolicy) -> None:
        queued = [an_action(n, cls=fixed(9 if n == 1 else 1))._replace(task=n) for n in (1, 2, 3)]
        cell = present(queued, a_pool(cpu_milli=8000))
        quotas = QuotaUsage()
        quotas.set_quotas({2: TaskQuota(actions=0)}, [])
        found = foreseen(replace(cell, quotas=quotas), policy)
        expected = {UnstartedReason.NO_NODE_FITS: 1, UnstartedReason.TASK_AT_QUOTA: 1}
        assert (found.started, found.drained_s, dict(found.unstarted)) == (1, None, expected)

    def test_forecast_that_was_cut_names_its_time_limit(self) -> None:
        cell = present([an_action(n, cls=fixed()) for n in (1, 2, 3)])
        found = ForecastSimulator(cell, FCFS, limit=LIMIT).forecast()
        assert (found.drained_s, dict(found.unstarted)) == (None, {UnstartedReason.TIME_LIMIT: 3})

    def test_running_action_frees_resources_at_its_expected_end(self) -> None:
        amounts = {"cpu_milli": 1000}
        working = ActiveAction(running(9, cls=fixed(), since=NOW - 0.75, amounts=amounts))
        pool = a_pool(cpu_milli=1000, free={"cpu_milli": 0})
        found = foreseen(present([an_action(1, cls=fixed())], pool, working=[working]))
        assert (found.starts_now, found.mean_wait_s) == (0, 0.25)

    def test_actions_of_one_environment_run_one_after_another(self) -> None:
        home = PinnedEnvironment(id=numbered(77), node=2)
        pools = [a_pool(1, cpu_milli=4000), a_pool(2, cpu_milli=4000)]
        line = [an_action(n, cls=fixed(), environment=home) for n in (1, 2)]
        assert foreseen(present(line, *pools)).drained_s == 1.0
        busy = ActiveAction(running(9, cls=fixed(), since=NOW - 0.5, amounts={"cpu_milli": 1000}), home.id)
        assert foreseen(present(line, *pools, working=[busy])).drained_s == 1.5

    def test_environment_created_during_forecast_ends_with_its_last_action(self) -> None:
        cls = ActionClass(
            key=1,
            kind="exec",
            shape=ResourceShape.DIVISIBLE,
            demand=ResourceDemand({"cpu_milli": 1000, "memory_mib": 64}),
        )
        homes = [PinnedEnvironment(id=numbered(70 + n), node=None) for n in range(2)]
        line = [an_action(n, cls=cls, environment=homes[n % 2]) for n in range(1, 5)]
        found = foreseen(present(line, a_pool(cpu_milli=4000, memory_mib=64)))
        assert (found.starts_now, found.started, found.drained_s) == (1, 4, 3.0)

    def test_action_that_fits_no_node_never_starts(self) -> None:
        found = foreseen(present([an_action(1, cls=fixed()), an_action(2, cls=fixed(cores=8))]))
        assert (found.started, found.drained_s) == (1, None)

    def test_elastic_actions_shrink_for_queued_actions(self) -> None:
        working = ActiveAction(running(9, cls=wide(4), since=NOW - 1, amounts={"cpu_milli": 4000}))
        pool = a_pool(cpu_milli=4000, free={"cpu_milli": 0})
        cell = present([an_action(1, cls=fixed())], pool, working=[working], seconds=400.0)
        assert foreseen(cell, SparPolicy(is_resizing=True)).drained_s == 0.0
        assert foreseen(cell, SparPolicy()).drained_s == pytest.approx(99.0)

    def test_many_running_actions_are_simulated_in_several_steps(self) -> None:
        count, amounts = STEP_BATCH + 1, {"cpu_milli": 1000}
        working = [ActiveAction(running(10 + n, cls=fixed(), since=NOW - 0.5, amounts=amounts)) for n in range(count)]
        pool = a_pool(cpu_milli=1000 * count, free={"cpu_milli": 0})
        forecasting = ForecastSimulator(present([an_action(1, cls=fixed())], pool, working=working), FCFS, limit=LIMIT)
        assert [forecasting.step() for _ in range(6)] == [True, True, True, True, False, False]
        assert forecasting.forecast().mean_wait_s == 0.5

    def test_limited_round_is_followed_by_another_round(self) -> None:
        cell = present([an_action(n, cls=fixed()) for n in range(1, 7)], a_pool(cpu_milli=8000))
        forecasting = ForecastSimulator(cell, SparPolicy(limit=2), limit=2)
        while forecasting.step():
            pass
        assert forecasting.forecast().starts_now == 6


class TestCapacityPlan:
    def test_half_the_cores_need_twice_as_many_rounds(self) -> None:
        cell = present([an_action(n, cls=fixed()) for n in range(1, 9)], a_pool(cpu_milli=4000))
        halved = with_node_change(cell, NodeChange(cores_factor=0.5))
        assert (foreseen(cell).drained_s, foreseen(halved).drained_s) == (1.0, 3.0)

    def test_running_action_continues_on_shrunk_node(self) -> None:
        working = ActiveAction(running(9, cls=fixed(2), since=NOW - 0.5, amounts={"cpu_milli": 2000}))
        cell = present([an_action(1, cls=fixed())], a_pool(cpu_milli=2000, free={"cpu_milli": 0}), working=[working])
        assert foreseen(with_node_change(cell, NodeChange(cores_factor=0.5))).drained_s == 0.5

    def test_cordoned_node_takes_no_actions_and_added_node_is_empty(self) -> None:
        pools = [a_pool(1, cpu_milli=1000), a_pool(2, cpu_milli=2000, free={"cpu_milli": 0})]
        changed = with_node_change(present([], *pools), NodeChange(cordoned=frozenset({1}), added=2))
        assert schedulable_cores(changed.nodes) == {2: 2000, 3: 2000, 4: 2000}
        assert changed.nodes[4].available == {"cpu_milli": 2000}

    def test_extra_load_queues_last_with_its_given_run_time(self) -> None:
        cell = present([an_action(1, cls=fixed())], seconds=3.0)
        found = foreseen(
            with_extra_load(cell, ExtraLoad(count=2, demand=ResourceDemand({"cpu_milli": 1000}), run_time_s=10.0))
        )
        assert (found.simulated, found.starts_now, found.drained_s) == (3, 1, 13.0)
        assert foreseen(cell).simulated == 1

    def test_later_observations_do_not_change_baseline_durations(self) -> None:
        @dataclass
        class Learning:
            says: float = 1.0

            def seconds(self, cls: ActionClass, amount: int) -> float:
                return self.says

        learning = Learning()
        known = BaselineDurations(learning)
        before = known.seconds(fixed(), 1000)
        learning.says = 9.0
        assert known.seconds(fixed(), 1000) == before


@dataclass
class Watched:
    """A policy wrapper that asserts that no node is overallocated."""

    policy: SchedulingPolicy

    @property
    def has_pods(self) -> bool:
        return False

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        assert all(amount >= 0 for pool in snapshot.nodes.values() for amount in pool.available.values())
        return self.policy.plan(snapshot)

    def environment_allocation(self, resources: Resources) -> dict[str, int]:
        return self.policy.environment_allocation(resources)

    def action_allocation(self, resources: Resources, *, in_environment: bool, in_pod: bool) -> dict[str, int]:
        return self.policy.action_allocation(resources, in_environment=in_environment, in_pod=in_pod)


actions = st.lists(
    st.tuples(st.integers(1, 5), st.booleans(), st.sampled_from([None, 1, 2]), st.integers(0, 3)), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(
    actions,
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.sampled_from([FCFS, SparPolicy(), SparPolicy(is_resizing=True)]),
)
def test_forecast_never_overallocates_and_starts_every_fitting_action(
    wanted: list[tuple[int, bool, int | None, int]], cores: list[int], policy: SchedulingPolicy
) -> None:
    pools = [a_pool(node, cpu_milli=1000 * size) for node, size in enumerate(cores, 1)]
    homes = [PinnedEnvironment(id=UUID(int=900 + n), node=None) for n in range(4)]
    waiting = [
        an_action(
            number,
            cls=wide(size) if is_wide and size > 1 else fixed(size),
            submitted=NOW - number,
            environment=homes[home] if at_home is not None else None,
        )._replace(task=at_home or 1)
        for number, (size, is_wide, at_home, home) in enumerate(wanted, 1)
        if is_wide or size <= max(cores)
    ]
    cell = present(waiting, *pools)
    found = foreseen(cell, Watched(policy))
    assert found == foreseen(cell, policy), "a forecast must be deterministic"
    pinned = any(action.environment is not None for action in waiting)
    if not pinned:
        assert found.started == len(waiting)

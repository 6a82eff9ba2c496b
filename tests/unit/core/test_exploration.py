"""Exploration of ranges of exclusive cores whose effect is not declared."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.elasticity import AmdahlScaling, NoScaling
from arl_core.domain.model import (
    ActionClass,
    ElasticResource,
    Fence,
    QueuedAction,
    ResizeSupport,
    ResourceDemand,
    ResourceShape,
    RunningAction,
    SchedulingPlan,
)
from arl_core.durations.curves import CurveCache
from arl_core.durations.estimates import DurationEstimates
from arl_core.durations.scaling_fit import EXPLORE_ONE_IN
from arl_core.policies.spar import SparPolicy
from support.builders import a_pool, a_snapshot, an_action, numbered

NOW = 1000.0
WORK_S = 8.0


def undeclared(*, resizable: ResizeSupport = ResizeSupport.NONE) -> ActionClass:
    elastic = ElasticResource("cpu_milli", (1000, 2000, 3000, 4000), NoScaling(), resizable)
    demand = ResourceDemand({"cpu_milli": 1000}, elastic)
    return ActionClass(key=1, kind="exec", shape=ResourceShape.DIVISIBLE, demand=demand)


def running(number: int, cls: ActionClass, cores: int) -> RunningAction:
    return RunningAction(
        fence=Fence(numbered(number), 1), cls=cls, node=1, resources={"cpu_milli": 1000 * cores}, granted=NOW - 1,
        task=1, started=NOW - 1, allocated_since=NOW - 1,
    )  # fmt: skip


def planned(
    estimates: DurationEstimates, snapshot: CellSnapshot, policy: SparPolicy | None = None
) -> tuple[dict[int, int], SchedulingPlan]:
    """Return the granted cores by action number, and the plan."""
    curves = CurveCache(estimates, estimates)
    curves.now = NOW
    plan = (policy or SparPolicy()).plan(replace(snapshot, now=NOW, curves=curves))
    return {each.fence.action_id.int: each.resources["cpu_milli"] // 1000 for each in plan.grants}, plan


def queued(cls: ActionClass, count: int) -> Sequence[QueuedAction]:
    return [an_action(number, cls=cls, submitted=NOW) for number in range(1, count + 1)]


def test_first_action_of_undeclared_class_gets_all_idle_cores() -> None:
    snapshot = a_snapshot(queued=queued(undeclared(), 1), pools=[a_pool(cpu_milli=8000)])
    assert planned(DurationEstimates(), snapshot)[0] == {1: 4}


def test_second_action_gets_minimum_while_first_one_explores() -> None:
    cls = undeclared()
    snapshot = a_snapshot(
        queued=[an_action(2, cls=cls)],
        pools=[a_pool(cpu_milli=8000, free={"cpu_milli": 4000})],
        running=[running(1, cls, 4)],
    )
    assert planned(DurationEstimates(), snapshot)[0] == {2: 1}


@pytest.mark.parametrize("serial_runs", [EXPLORE_ONE_IN - 2, EXPLORE_ONE_IN - 1])
def test_one_run_in_sixteen_explores_while_no_gain_is_known(serial_runs: int) -> None:
    cls, estimates = undeclared(), DurationEstimates()
    estimates.observe(cls, amount=4000, run_s=WORK_S, cpu_s=WORK_S)
    for _ in range(serial_runs):
        estimates.observe(cls, amount=1000, run_s=WORK_S, cpu_s=WORK_S)
    cores = planned(estimates, a_snapshot(queued=queued(cls, 1), pools=[a_pool(cpu_milli=8000)]))[0]
    assert cores == {1: 4 if serial_runs + 1 == EXPLORE_ONE_IN else 1}


def test_no_action_explores_while_others_wait() -> None:
    snapshot = a_snapshot(queued=queued(undeclared(), 6), pools=[a_pool(cpu_milli=4000)])
    assert planned(DurationEstimates(), snapshot)[0] == {1: 1, 2: 1, 3: 1, 4: 1}


@pytest.mark.parametrize("fraction", [0.5, 0.9, 1.0])
def test_one_exploring_run_shows_the_parallel_fraction(fraction: float) -> None:
    cls, estimates = undeclared(), DurationEstimates()

    def run_s(cores: int) -> float:
        return WORK_S * (1 - fraction + fraction / cores)

    estimates.observe(cls, amount=4000, run_s=run_s(4), cpu_s=WORK_S)
    assert [estimates.seconds(cls, 1000 * cores) for cores in (1, 2, 4)] == pytest.approx(
        [run_s(cores) for cores in (1, 2, 4)], rel=0.01
    )
    cores = planned(estimates, a_snapshot(queued=queued(cls, 1), pools=[a_pool(cpu_milli=8000)]))[0]
    assert cores == {1: 4}


@pytest.mark.parametrize("used_cores", [0.2, 1.0, 1.09])
def test_program_that_uses_one_core_gets_its_minimum_after_exploration(used_cores: float) -> None:
    cls, estimates = undeclared(), DurationEstimates()
    estimates.observe(cls, amount=4000, run_s=WORK_S, cpu_s=used_cores * WORK_S)
    cores = planned(estimates, a_snapshot(queued=queued(cls, 1), pools=[a_pool(cpu_milli=8000)]))[0]
    assert cores == {1: 1}


def test_busy_waiting_program_loses_its_cores_after_some_runs() -> None:
    """Its use of cores shows a gain that its run times do not show."""
    cls, estimates = undeclared(), DurationEstimates()
    for amount in (4000, 1000) * 8:
        estimates.observe(cls, amount=amount, run_s=WORK_S, cpu_s=WORK_S * amount / 1000)
    assert estimates.seconds(cls, 4000) > 0.7 * estimates.seconds(cls, 1000)


@pytest.mark.parametrize("waiting", [0, 1])
def test_exploring_action_is_shrunk_only_for_actions_that_wait(waiting: int) -> None:
    """A running action of another class would gain from its cores, but can do without them."""
    cls = undeclared(resizable=ResizeSupport.ANY)
    elastic = ElasticResource("cpu_milli", (1000, 2000, 4000), AmdahlScaling(0.9), ResizeSupport.ANY)
    other = replace(cls, key=2, demand=ResourceDemand({"cpu_milli": 1000}, elastic))
    snapshot = a_snapshot(
        queued=[an_action(9, cls=cls)] * waiting,
        pools=[a_pool(cpu_milli=5000, free={"cpu_milli": 0})],
        running=[running(1, cls, 4), running(2, other, 1)],
    )
    plan = planned(DurationEstimates(), snapshot, SparPolicy(is_resizing=True))[1]
    assert len(plan.resizes) == waiting

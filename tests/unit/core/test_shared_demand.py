"""Test what the scheduler counts for actions that share cores."""

from dataclasses import replace

import pytest

from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import ActionClass, CpuSharing, ResourceDemand, ResourceShape
from arl_core.durations.curves import CurveCache
from arl_core.durations.estimates import DurationEstimates
from arl_core.durations.shared_demand import CpuUsage, shared_start_amounts
from arl_core.policies.spar import SparPolicy
from support.builders import a_pool, a_snapshot, an_action, numbered

DEMAND = {"cpu_milli": 500, "memory_mib": 100}


def a_shared_class(key: int = 1, *, declared: bool = False, cpu_milli: int = 500) -> ActionClass:
    return ActionClass(
        key=key,
        kind="exec",
        shape=ResourceShape.DIVISIBLE,
        demand=ResourceDemand(DEMAND | {"cpu_milli": cpu_milli}),
        sharing=CpuSharing(guarantee_milli=cpu_milli if declared else 100, is_declared=declared),
    )


@pytest.mark.parametrize(
    ("usage", "charge"),
    [
        (None, 499),
        (CpuUsage(3, 5.0, 0.2), 499),  # too few runs
        (CpuUsage(4, 5.0, 1.0), 499),
        (CpuUsage(4, 5.0, 0.4), 200),
        (CpuUsage(4, 5.0, 0.01), 100),
        (CpuUsage(4, 0.05, 1.0), 100),  # so short that it may start at once
    ],
)
def test_class_counts_what_its_runs_use(usage: CpuUsage | None, charge: int) -> None:
    assert shared_start_amounts(a_shared_class(), usage) == DEMAND | {"cpu_milli": charge}


def test_declared_minimum_counts_in_full() -> None:
    cls = a_shared_class(declared=True, cpu_milli=1000)
    assert shared_start_amounts(cls, CpuUsage(64, 0.01, 0.01))["cpu_milli"] == 1000


def test_estimates_know_the_use_of_processors_of_a_class() -> None:
    estimates, cls = DurationEstimates(), a_shared_class()
    assert estimates.cpu_usage(cls) is None
    for _ in range(4):
        estimates.observe(cls, amount=500, run_s=4.0, cpu_s=1.0)
    assert estimates.cpu_usage(cls) == CpuUsage(4, 1.0, 0.25)


def a_shared_snapshot(estimates: DurationEstimates, *classes: ActionClass, cores: int) -> CellSnapshot:
    queued = [an_action(number, cls=cls, submitted=1000.0) for number, cls in enumerate(classes, 1)]
    snapshot = a_snapshot(queued=queued, pools=[a_pool(cpu_milli=1000 * cores, memory_mib=10_000)])
    return replace(snapshot, curves=CurveCache(estimates, estimates))


def test_two_actions_of_an_unknown_class_run_per_core() -> None:
    snapshot = a_shared_snapshot(DurationEstimates(), *[a_shared_class()] * 10, cores=2)
    grants = SparPolicy(is_resizing=True).plan(snapshot).grants
    assert [grant.resources["cpu_milli"] for grant in grants] == [499] * 4


def test_class_with_less_work_starts_first_whatever_its_time_on_shared_cores() -> None:
    estimates = DurationEstimates()
    small, large = a_shared_class(1), a_shared_class(2)
    for _ in range(8):
        estimates.observe(small, amount=500, run_s=30.0, cpu_s=0.5)  # it slept
        estimates.observe(large, amount=500, run_s=5.0, cpu_s=5.0)
    snapshot = a_shared_snapshot(estimates, large, large, large, small, cores=1)
    first = SparPolicy(is_resizing=True).plan(snapshot).grants[0]
    assert first.fence.action_id == numbered(4)


def test_actions_that_mostly_wait_leave_room_for_others() -> None:
    estimates, waiting = DurationEstimates(), a_shared_class()
    for _ in range(4):
        estimates.observe(waiting, amount=500, run_s=60.0, cpu_s=0.3)
    snapshot = a_shared_snapshot(estimates, *[waiting] * 20, cores=1)
    grants = SparPolicy(is_resizing=True).plan(snapshot).grants
    assert len(grants) > 4
    assert {grant.resources["cpu_milli"] for grant in grants} == {100}

"""Stragglers are detected, are resized first, and are ignored in forecasts of free resources."""

from dataclasses import replace

import pytest

from arl_core.capacity.ledger import ResourceLedger
from arl_core.capacity.node_load import LoadCalculator
from arl_core.domain.model import ActionClass, Fence, RunningAction
from arl_core.durations.curves import CurveCache, ParallelismOption
from arl_core.durations.estimates import IGNORED_OVERRUN, MIN_STRAGGLER_RUNS, DurationEstimates, straggler_limit_s
from arl_core.policies.policy import FirstComeFirstServed
from arl_core.policies.reallocation import ResizeCandidate, reallocate
from arl_scheduler.index.allocations import Allocation, AllocationTable
from arl_scheduler.leader.straggler_detector import StragglerDetector
from support.builders import a_class, a_pool, a_snapshot, numbered

NOW = 1000.0
CLS = a_class(1, cpu_milli=1000)
ONE_CORE = {"cpu_milli": 1000}


def learnt(*seconds: float) -> DurationEstimates:
    estimates = DurationEstimates()
    for run_s in seconds:
        estimates.observe(CLS, amount=1000, run_s=run_s)
    return estimates


class TestStragglerLimit:
    def test_limit_is_unknown_after_too_few_runs(self) -> None:
        assert straggler_limit_s(learnt(*[1.0] * (MIN_STRAGGLER_RUNS - 1)), CLS, ONE_CORE) is None
        assert straggler_limit_s(DurationEstimates(), CLS, ONE_CORE) is None

    def test_limit_is_five_times_duration_of_uniform_runs(self) -> None:
        assert straggler_limit_s(learnt(*[2.0] * 64), CLS, ONE_CORE) == pytest.approx(10.0)

    def test_limit_is_upper_percentile_of_varied_runs(self) -> None:
        limit_s = straggler_limit_s(learnt(*[1.0] * 56, *[30.0] * 8), CLS, ONE_CORE)
        assert limit_s is not None
        assert limit_s >= 19.0

    def test_mixed_class_has_no_limit(self) -> None:
        assert straggler_limit_s(learnt(*[2.0] * 64), replace(CLS, is_mixed=True), ONE_CORE) is None

    def test_limit_is_lower_with_more_cores(self) -> None:
        estimates = learnt(*[2.0] * 64)
        wide_s, narrow_s = (straggler_limit_s(estimates, CLS, {"cpu_milli": each}) for each in (4000, 1000))
        assert wide_s is not None
        assert narrow_s is not None
        assert wide_s < narrow_s


def running(number: int, overrun: float) -> RunningAction:
    return RunningAction(
        fence=Fence(numbered(number), 1), cls=CLS, node=1, resources=ONE_CORE, granted=NOW - 10, task=1,
        started=NOW - 10, allocated_since=NOW - 10, overrun=overrun,
    )  # fmt: skip


@pytest.mark.parametrize(("overrun", "counts"), [(0.0, True), (1.0, True), (IGNORED_OVERRUN, False)])
def test_extreme_straggler_is_ignored_in_load_estimates(overrun: float, counts: bool) -> None:
    snapshot = a_snapshot(pools=[a_pool(cpu_milli=2000)], running=[running(1, overrun)])
    loads = LoadCalculator(snapshot)
    assert (loads.backlog_s(1, "cpu_milli", stop_above_s=float("inf")) > 0) is counts
    assert (loads.wait_until_available_s(1, "cpu_milli", 1.0) < float("inf")) is counts


def test_straggler_gets_cores_first() -> None:
    widths = (ParallelismOption(1000, 1.0, 8.0), ParallelismOption(2000, 2.0, 4.0), ParallelismOption(4000, 4.0, 2.0))
    short, long = numbered(1), numbered(2)
    how = {"units": 5.0, "queued": 0.0, "price_factor": 2.0, "capacity": 5.0, "backlog_s": 100.0}
    for straggles in (False, True):
        candidates = [
            ResizeCandidate(short, widths, 0, 0.5),
            ResizeCandidate(long, widths, 0, 1.0, is_straggler=straggles),
        ]
        chosen = reallocate(candidates, **how)
        assert (chosen[long] > chosen[short]) is straggles


class TestStragglerDetector:
    def holding(self, started: float | None, cls: ActionClass | None = CLS) -> AllocationTable:
        ledger = ResourceLedger()
        ledger.set_capacity(1, {"cpu_milli": 4000})
        holds = AllocationTable(FirstComeFirstServed(), ledger, CurveCache())
        holds.add(Allocation(Fence(numbered(1), 1), cls, 1, ONE_CORE, None, 1, NOW - 100, started))
        holds.running.mark_clean()
        return holds

    def test_action_is_marked_at_limit_and_at_twice_the_limit(self) -> None:
        estimates, straggling = learnt(*[2.0] * 64), StragglerDetector()
        holds = self.holding(started=NOW)
        marks = []
        for elapsed_s in (9.0, 11.0, 12.0, 21.0, 22.0):
            straggling.update(holds, estimates, now=NOW + elapsed_s)
            (each,) = holds.running.on_node(1).values()
            marks.append((each.overrun, bool(holds.running.dirty_nodes), len(straggling)))
            holds.running.mark_clean()
        assert marks == [(0, False, 0), (1, True, 1), (1, False, 1), (2, True, 1), (2, False, 1)]
        (found,) = straggling.longest(10)
        assert (found.elapsed_s, found.limit_s) == (22.0, pytest.approx(10.0))
        holds.remove(numbered(1))
        straggling.update(holds, estimates, now=NOW + 23)
        assert len(straggling) == 0

    @pytest.mark.parametrize(("started", "cls"), [(None, CLS), (NOW, None)])
    def test_unstarted_or_unclassified_action_is_not_marked(
        self, started: float | None, cls: ActionClass | None
    ) -> None:
        straggling, holds = StragglerDetector(), self.holding(started, cls)
        straggling.update(holds, learnt(*[2.0] * 64), now=NOW + 1e6)
        assert len(straggling) == 0

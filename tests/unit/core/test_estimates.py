"""Duration estimates of action classes, learnt from observed runs."""

import math
import random
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl_core.domain.elasticity import AmdahlScaling, Elasticity, NoScaling
from arl_core.domain.model import ActionClass, ElasticResource, ResourceDemand, ResourceShape
from arl_core.durations.estimates import MAX_CLASSES, PRIOR_S, RUN_WINDOW, DurationEstimates
from arl_core.durations.scaling_fit import OUTLIER_FACTOR

CORES = (1000, 2000, 4000, 8000)
Run = tuple[int, float, float]
"""One run: milli-cores, run time in seconds, processor time in seconds."""
seconds = st.floats(1e-4, 1e4)
runs_of_any_kind = st.lists(st.tuples(st.sampled_from(CORES), seconds, st.floats(0, 1e4)), min_size=1, max_size=80)


def a_class(elasticity: Elasticity | None = None, *, key: int = 1, kind: str = "exec") -> ActionClass:
    elastic = ElasticResource("cpu_milli", CORES, elasticity) if elasticity is not None else None
    return ActionClass(
        key=key, kind=kind, shape=ResourceShape.DIVISIBLE, demand=ResourceDemand({"cpu_milli": 1000}, elastic)
    )


def after(cls: ActionClass, runs: Iterable[Run], estimates: DurationEstimates | None = None) -> DurationEstimates:
    estimates = estimates or DurationEstimates()
    for amount, run_s, cpu_s in runs:
        estimates.observe(cls, amount=amount, run_s=run_s, cpu_s=cpu_s)
    return estimates


def amdahl_runs(fraction: float, *amounts: int, work_s: float = 8.0, each: int = 10) -> list[Run]:
    """Return runs of programs that follow Amdahl's law, with the processor time they use."""
    model = AmdahlScaling(fraction)
    return [
        (amount, work_s * model.relative_duration(amount, base=1000), work_s) for amount in amounts for _ in range(each)
    ]


class TestEstimatedDuration:
    @given(runs_of_any_kind, st.floats(0, 1))
    def test_more_cores_never_increase_duration_or_reduce_total_work(self, runs: list[Run], declared: float) -> None:
        cls = a_class(AmdahlScaling(declared))
        estimates = after(cls, runs)
        durations = [estimates.seconds(cls, amount) for amount in CORES]
        assert all(math.isfinite(each) and each > 0 for each in durations)
        assert all(less >= more for less, more in pairwise(durations))
        areas = [amount * each for amount, each in zip(CORES, durations, strict=True)]
        assert all(less <= more * (1 + 1e-9) for less, more in pairwise(areas))

    def test_declared_elasticity_applies_until_two_amounts_are_observed(self) -> None:
        cls = a_class(AmdahlScaling(0.5))
        estimates = after(cls, [(2000, 3.0, 0.0)] * 20)
        assert estimates.seconds(cls, 8000) / estimates.seconds(cls, 1000) == pytest.approx(0.5 + 0.5 / 8, rel=0.01)

    @given(st.floats(0, 1), st.floats(0, 1))
    def test_observed_durations_outweigh_declared_elasticity(self, real: float, declared: float) -> None:
        cls = a_class(AmdahlScaling(declared))
        estimates = after(cls, amdahl_runs(real, 1000, 2000, 8000, each=20))
        expected = 8.0 * AmdahlScaling(real).relative_duration(4000, base=1000)
        assert estimates.seconds(cls, 4000) == pytest.approx(expected, rel=0.25)

    def test_observed_amount_is_estimated_by_its_own_runs(self) -> None:
        """Two threads gain from two cores but not from eight, which no Amdahl curve describes."""
        cls = a_class(NoScaling())
        real = {1000: 8.0, 2000: 4.0, 4000: 4.0, 8000: 4.0}
        estimates = after(cls, [(amount, real[amount], 8.0) for amount in CORES for _ in range(16)])
        assert [estimates.seconds(cls, amount) for amount in CORES] == pytest.approx([8, 4, 4, 4], rel=0.2)

    def test_inelastic_class_is_estimated_by_its_mean_run_time(self) -> None:
        cls = a_class()
        estimates = after(cls, [(1000, 2.0, 0.0), (1000, 4.0, 0.0)])
        assert [estimates.seconds(cls, amount) for amount in (0, 1000)] == [3.0, 3.0]

    def test_straggler_counts_as_run_of_capped_length(self) -> None:
        cls = a_class()
        estimates = after(cls, [(1000, 1.0, 0.0)] * 19 + [(1000, 1000.0, 0.0)])
        assert estimates.seconds(cls, 1000) == pytest.approx((19 + OUTLIER_FACTOR) / 20)

    def test_old_runs_are_forgotten(self) -> None:
        cls = a_class()
        estimates = after(cls, [(1000, 100.0, 0.0)] * RUN_WINDOW + [(1000, 1.0, 0.0)] * RUN_WINDOW)
        assert estimates.seconds(cls, 1000) == 1.0

    def test_resized_run_counts_for_work_but_not_for_amount(self) -> None:
        cls = a_class(AmdahlScaling(1.0))
        estimates = DurationEstimates()
        for _ in range(10):
            estimates.observe(cls, amount=3000, run_s=2.0, cpu_s=0.1, is_steady=False)
        assert estimates.seconds(cls, 1000) == pytest.approx(6.0)
        assert estimates.useful_amount(cls) is None


class TestUsefulParallelism:
    def test_unused_cores_bring_no_speedup(self) -> None:
        """The class is declared parallel but uses one core, however many it has."""
        cls = a_class(AmdahlScaling(0.95))
        estimates = after(cls, [(4000, 5.0, 5.02)] * 2)
        assert estimates.useful_amount(cls) == 1000
        assert [estimates.seconds(cls, amount) for amount in CORES] == pytest.approx([5.0] * 4, rel=0.01)

    def test_declared_speedup_applies_up_to_observed_core_use(self) -> None:
        cls = a_class(AmdahlScaling(1.0))
        estimates = after(cls, [(8000, 2.0, 3.9)] * 8)
        assert estimates.useful_amount(cls) == 2000
        assert [estimates.seconds(cls, amount) for amount in CORES] == pytest.approx([4.0, 2.0, 2.0, 2.0], rel=0.01)

    def test_declared_serial_part_does_not_mark_cores_as_useless(self) -> None:
        cls = a_class(AmdahlScaling(0.8))
        estimates = after(cls, [(8000, 3.0, 10.0)] * 8)
        assert estimates.useful_amount(cls) is None
        assert estimates.seconds(cls, 8000) < 0.8 * estimates.seconds(cls, 4000)

    def test_fully_used_cores_do_not_limit_parallelism(self) -> None:
        cls = a_class(AmdahlScaling(0.9))
        estimates = after(cls, [(2000, 3.0, 5.9)] * 8)
        assert estimates.useful_amount(cls) is None
        assert estimates.seconds(cls, 4000) < 0.8 * estimates.seconds(cls, 2000)

    def test_measured_speedup_outweighs_low_mean_core_use(self) -> None:
        """A serial part lowers the mean use below what the parallel part needs."""
        cls = a_class(NoScaling())
        estimates = after(cls, amdahl_runs(0.6, 2000, 4000, each=16))
        assert estimates.seconds(cls, 4000) < 0.9 * estimates.seconds(cls, 2000)


class TestUnknownClasses:
    def test_unknown_class_is_estimated_at_prior_and_declared_elasticity(self) -> None:
        estimates = DurationEstimates()
        assert estimates.seconds(a_class(), 1000) == PRIOR_S
        assert estimates.seconds(a_class(AmdahlScaling(1.0)), 4000) == PRIOR_S / 4
        assert estimates.run_count(a_class()) == 0

    def test_new_class_inherits_estimate_of_similar_classes(self) -> None:
        known, other_kind = a_class(AmdahlScaling(0.9)), a_class(kind="score", key=3)
        estimates = after(other_kind, [(1, 100.0, 0.0)], after(known, [(1000, 6.0, 0.0)] * 3))
        assert estimates.seconds(known, 1000) == pytest.approx(6.0)
        assert estimates.seconds(a_class(AmdahlScaling(0.5), key=2), 1000) == pytest.approx(6.0)
        assert estimates.seconds(a_class(key=4), 1000) == PRIOR_S


class TestDurationQuantiles:
    @given(runs_of_any_kind, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
    def test_higher_quantile_is_never_below_lower_quantile(self, runs: list[Run], low: float, high: float) -> None:
        cls = a_class(AmdahlScaling(0.9))
        estimates = after(cls, runs)
        low, high = sorted((low, high))
        assert estimates.quantile(cls, low, 2000) <= estimates.quantile(cls, high, 2000) * (1 + 1e-9)

    def test_quantile_margin_shrinks_with_number_of_runs(self) -> None:
        cls = a_class()
        ratios = []
        for runs in (0, 1, 5, 60):
            estimates = after(cls, [(1000, 2.0 + 0.001 * at, 0.0) for at in range(runs)])
            ratios.append(estimates.quantile(cls, 0.9, 1000) / estimates.seconds(cls, 1000))
        assert ratios == sorted(ratios, reverse=True)
        assert ratios[0] > 4
        assert ratios[-1] < 1.1

    @pytest.mark.parametrize("count", [3, 8, 40])
    def test_ninth_decile_covers_nine_of_ten_runs(self, count: int) -> None:
        draw = random.Random(count)
        cls, within, trials = a_class(), 0, 800
        for _ in range(trials):
            *seen, following = [draw.lognormvariate(0.0, 0.8) for _ in range(count + 1)]
            estimates = after(cls, [(1000, run_s, 0.0) for run_s in seen])
            within += following <= estimates.quantile(cls, 0.9, 1000)
        assert 0.86 <= within / trials <= 0.97

    @pytest.mark.parametrize("q", [0.0, 1.0, -1.0])
    def test_quantile_not_between_zero_and_one_is_rejected(self, q: float) -> None:
        with pytest.raises(ValueError, match="quantile"):
            DurationEstimates().quantile(a_class(), q, 1000)


class TestPersistence:
    @given(runs_of_any_kind)
    def test_restored_estimates_equal_saved_estimates(self, runs: list[Run]) -> None:
        cls = a_class(AmdahlScaling(0.7))
        before, later = after(cls, runs), DurationEstimates()
        later.restore(before.take_changes(limit=10))
        for amount in CORES:
            assert later.seconds(cls, amount) == pytest.approx(before.seconds(cls, amount))

    def test_changes_are_taken_once_unless_saving_them_failed(self) -> None:
        estimates = DurationEstimates()
        for key in (1, 2, 3):
            after(a_class(key=key), [(1000, 1.0, 0.5)], estimates)
        assert list(estimates.take_changes(limit=2)) == [1, 2]
        estimates.mark_changed([2])
        assert set(estimates.take_changes(limit=9)) == {2, 3}
        assert estimates.take_changes(limit=9) == {}

    def test_observed_runs_take_precedence_over_restored_runs(self) -> None:
        estimates = after(a_class(), [(1000, 1.0, 0.0)])
        estimates.restore({1: [[1000, 9_000_000, 0, 1]]})
        assert estimates.seconds(a_class(), 1000) == 1.0

    def test_restored_class_is_evicted_before_observed_class(self) -> None:
        estimates = after(a_class(key=-1), [(1000, 5.0, 0.0)])
        estimates.restore({key: [[1000, 1_000_000, 0, 1]] for key in range(MAX_CLASSES)})
        assert estimates.run_count(a_class(key=-1)) > 0
        assert estimates.run_count(a_class(key=0)) == 0
        assert estimates.class_count == MAX_CLASSES

    def test_least_recently_observed_class_is_evicted_first(self) -> None:
        estimates = after(a_class(key=-1), [(1000, 5.0, 0.0)])
        for key in range(MAX_CLASSES):
            estimates.observe(a_class(key=key), amount=1000, run_s=1.0)
        assert estimates.class_count == MAX_CLASSES
        assert estimates.run_count(a_class(key=-1)) == 0

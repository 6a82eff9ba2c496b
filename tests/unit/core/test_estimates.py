"""What is expected of actions, after what was seen of them."""

import math
import random
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl_core.domain.elasticity import AmdahlScaling, Elasticity, NoScaling
from arl_core.domain.model import ActionClass, ElasticResource, ResourceDemand, ResourceShape
from arl_core.durations.estimates import MAX_CLASSES, OUTLIER_FACTOR, PRIOR_S, RUN_WINDOW, DurationEstimates

CORES = (1000, 2000, 4000, 8000)
Run = tuple[int, float, float]
"""Milli-cores, seconds, processor seconds."""
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
    """What programs take that really are so, and what they use."""
    model = AmdahlScaling(fraction)
    return [
        (amount, work_s * model.relative_duration(amount, base=1000), work_s) for amount in amounts for _ in range(each)
    ]


class TestSeconds:
    @given(runs_of_any_kind, st.floats(0, 1))
    def test_more_never_takes_longer_and_never_less_work(self, runs: list[Run], declared: float) -> None:
        cls = a_class(AmdahlScaling(declared))
        estimates = after(cls, runs)
        durations = [estimates.seconds(cls, amount) for amount in CORES]
        assert all(math.isfinite(each) and each > 0 for each in durations)
        assert all(less >= more for less, more in pairwise(durations))
        areas = [amount * each for amount, each in zip(CORES, durations, strict=True)]
        assert all(less <= more * (1 + 1e-9) for less, more in pairwise(areas))

    def test_the_declared_elasticity_holds_until_two_amounts_were_seen(self) -> None:
        cls = a_class(AmdahlScaling(0.5))
        estimates = after(cls, [(2000, 3.0, 0.0)] * 20)
        assert estimates.seconds(cls, 8000) / estimates.seconds(cls, 1000) == pytest.approx(0.5 + 0.5 / 8, rel=0.01)

    @given(st.floats(0, 1), st.floats(0, 1))
    def test_what_was_seen_outweighs_what_was_declared(self, real: float, declared: float) -> None:
        cls = a_class(AmdahlScaling(declared))
        estimates = after(cls, amdahl_runs(real, 1000, 2000, 8000, each=20))
        expected = 8.0 * AmdahlScaling(real).relative_duration(4000, base=1000)
        assert estimates.seconds(cls, 4000) == pytest.approx(expected, rel=0.25)

    def test_an_amount_that_was_tried_takes_what_it_took(self) -> None:
        """Two threads gain from two cores and not from eight: no Amdahl is so."""
        cls = a_class(NoScaling())
        real = {1000: 8.0, 2000: 4.0, 4000: 4.0, 8000: 4.0}
        estimates = after(cls, [(amount, real[amount], 8.0) for amount in CORES for _ in range(16)])
        assert [estimates.seconds(cls, amount) for amount in CORES] == pytest.approx([8, 4, 4, 4], rel=0.2)

    def test_an_inelastic_class_takes_its_mean_whatever_the_amount(self) -> None:
        cls = a_class()
        estimates = after(cls, [(1000, 2.0, 0.0), (1000, 4.0, 0.0)])
        assert [estimates.seconds(cls, amount) for amount in (0, 1000)] == [3.0, 3.0]

    def test_a_straggler_counts_as_a_long_run_and_no_more(self) -> None:
        cls = a_class()
        estimates = after(cls, [(1000, 1.0, 0.0)] * 19 + [(1000, 1000.0, 0.0)])
        assert estimates.seconds(cls, 1000) == pytest.approx((19 + OUTLIER_FACTOR) / 20)

    def test_what_was_is_forgotten(self) -> None:
        cls = a_class()
        estimates = after(cls, [(1000, 100.0, 0.0)] * RUN_WINDOW + [(1000, 1.0, 0.0)] * RUN_WINDOW)
        assert estimates.seconds(cls, 1000) == 1.0

    def test_a_run_whose_amount_changed_tells_of_the_work_and_not_of_the_amount(self) -> None:
        cls = a_class(AmdahlScaling(1.0))
        estimates = DurationEstimates()
        for _ in range(10):
            estimates.observe(cls, amount=3000, run_s=2.0, cpu_s=0.1, is_steady=False)
        assert estimates.seconds(cls, 1000) == pytest.approx(6.0)
        assert estimates.useful_amount(cls) is None


class TestUse:
    def test_cores_that_were_not_used_bring_nothing(self) -> None:
        """Declared to run in parallel, it uses one core however many it has."""
        cls = a_class(AmdahlScaling(0.95))
        estimates = after(cls, [(4000, 5.0, 5.02)] * 2)
        assert estimates.useful_amount(cls) == 1000
        assert [estimates.seconds(cls, amount) for amount in CORES] == pytest.approx([5.0] * 4, rel=0.01)

    def test_up_to_what_was_used_they_bring_what_was_declared(self) -> None:
        cls = a_class(AmdahlScaling(1.0))
        estimates = after(cls, [(8000, 2.0, 3.9)] * 8)
        assert estimates.useful_amount(cls) == 2000
        assert [estimates.seconds(cls, amount) for amount in CORES] == pytest.approx([4.0, 2.0, 2.0, 2.0], rel=0.01)

    def test_a_serial_part_that_is_declared_is_no_sign_of_cores_that_are_not_needed(self) -> None:
        cls = a_class(AmdahlScaling(0.8))
        estimates = after(cls, [(8000, 3.0, 10.0)] * 8)
        assert estimates.useful_amount(cls) is None
        assert estimates.seconds(cls, 8000) < 0.8 * estimates.seconds(cls, 4000)

    def test_who_used_all_it_had_may_use_more(self) -> None:
        cls = a_class(AmdahlScaling(0.9))
        estimates = after(cls, [(2000, 3.0, 5.9)] * 8)
        assert estimates.useful_amount(cls) is None
        assert estimates.seconds(cls, 4000) < 0.8 * estimates.seconds(cls, 2000)

    def test_a_measured_gain_outweighs_a_low_mean_use(self) -> None:
        """A serial part lowers the mean use below what the parallel part needs."""
        cls = a_class(NoScaling())
        estimates = after(cls, amdahl_runs(0.6, 2000, 4000, each=16))
        assert estimates.seconds(cls, 4000) < 0.9 * estimates.seconds(cls, 2000)


class TestUnknown:
    def test_of_nothing_known_a_second_and_what_is_declared(self) -> None:
        estimates = DurationEstimates()
        assert estimates.seconds(a_class(), 1000) == PRIOR_S
        assert estimates.seconds(a_class(AmdahlScaling(1.0)), 4000) == PRIOR_S / 4
        assert estimates.run_count(a_class()) == 0

    def test_a_new_class_is_as_others_of_its_kind_and_form(self) -> None:
        known, other_kind = a_class(AmdahlScaling(0.9)), a_class(kind="score", key=3)
        estimates = after(other_kind, [(1, 100.0, 0.0)], after(known, [(1000, 6.0, 0.0)] * 3))
        assert estimates.seconds(known, 1000) == pytest.approx(6.0)
        assert estimates.seconds(a_class(AmdahlScaling(0.5), key=2), 1000) == pytest.approx(6.0)
        assert estimates.seconds(a_class(key=4), 1000) == PRIOR_S


class TestQuantiles:
    @given(runs_of_any_kind, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
    def test_a_higher_one_is_not_below_a_lower_one(self, runs: list[Run], low: float, high: float) -> None:
        cls = a_class(AmdahlScaling(0.9))
        estimates = after(cls, runs)
        low, high = sorted((low, high))
        assert estimates.quantile(cls, low, 2000) <= estimates.quantile(cls, high, 2000) * (1 + 1e-9)

    def test_it_is_wide_while_little_is_known_and_narrows(self) -> None:
        cls = a_class()
        ratios = []
        for runs in (0, 1, 5, 60):
            estimates = after(cls, [(1000, 2.0 + 0.001 * at, 0.0) for at in range(runs)])
            ratios.append(estimates.quantile(cls, 0.9, 1000) / estimates.seconds(cls, 1000))
        assert ratios == sorted(ratios, reverse=True)
        assert ratios[0] > 4
        assert ratios[-1] < 1.1

    @pytest.mark.parametrize("count", [3, 8, 40])
    def test_nine_of_ten_runs_are_within_the_ninth_decile(self, count: int) -> None:
        draw = random.Random(count)
        cls, within, trials = a_class(), 0, 800
        for _ in range(trials):
            *seen, following = [draw.lognormvariate(0.0, 0.8) for _ in range(count + 1)]
            estimates = after(cls, [(1000, run_s, 0.0) for run_s in seen])
            within += following <= estimates.quantile(cls, 0.9, 1000)
        assert 0.86 <= within / trials <= 0.97

    @pytest.mark.parametrize("q", [0.0, 1.0, -1.0])
    def test_the_ends_are_no_quantiles(self, q: float) -> None:
        with pytest.raises(ValueError, match="quantile"):
            DurationEstimates().quantile(a_class(), q, 1000)


class TestKeeping:
    @given(runs_of_any_kind)
    def test_what_was_kept_tells_the_same(self, runs: list[Run]) -> None:
        cls = a_class(AmdahlScaling(0.7))
        before, later = after(cls, runs), DurationEstimates()
        later.restore(before.take_changes(limit=10))
        for amount in CORES:
            assert later.seconds(cls, amount) == pytest.approx(before.seconds(cls, amount))

    def test_changes_come_once_and_again_where_they_could_not_be_kept(self) -> None:
        estimates = DurationEstimates()
        for key in (1, 2, 3):
            after(a_class(key=key), [(1000, 1.0, 0.5)], estimates)
        assert list(estimates.take_changes(limit=2)) == [1, 2]
        estimates.mark_changed([2])
        assert set(estimates.take_changes(limit=9)) == {2, 3}
        assert estimates.take_changes(limit=9) == {}

    def test_what_was_seen_since_outlives_what_is_read(self) -> None:
        estimates = after(a_class(), [(1000, 1.0, 0.0)])
        estimates.restore({1: [[1000, 9_000_000, 0, 1]]})
        assert estimates.seconds(a_class(), 1000) == 1.0

    def test_what_is_read_is_older_than_what_was_seen_since(self) -> None:
        estimates = after(a_class(key=-1), [(1000, 5.0, 0.0)])
        estimates.restore({key: [[1000, 1_000_000, 0, 1]] for key in range(MAX_CLASSES)})
        assert estimates.run_count(a_class(key=-1)) > 0
        assert estimates.run_count(a_class(key=0)) == 0
        assert estimates.class_count == MAX_CLASSES

    def test_the_class_seen_longest_ago_goes_first(self) -> None:
        estimates = after(a_class(key=-1), [(1000, 5.0, 0.0)])
        for key in range(MAX_CLASSES):
            estimates.observe(a_class(key=key), amount=1000, run_s=1.0)
        assert estimates.class_count == MAX_CLASSES
        assert estimates.run_count(a_class(key=-1)) == 0

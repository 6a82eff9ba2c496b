import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl_core.domain.elasticity import AmdahlScaling, DurationTable, NoScaling


@given(st.floats(0, 1), st.integers(1, 64), st.integers(1, 64))
def test_amdahl_duration_never_increases_with_amount(fraction: float, less: int, more: int) -> None:
    less, more = sorted((less, more))
    model = AmdahlScaling(fraction)
    assert model.relative_duration(more, base=1) <= model.relative_duration(less, base=1)


def test_amdahl_duration_follows_the_formula() -> None:
    assert AmdahlScaling(0.9).relative_duration(4000, base=1000) == pytest.approx(0.1 + 0.9 / 4)


def test_amdahl_fraction_is_relative_to_one_core_and_not_to_the_minimum() -> None:
    assert 1 / AmdahlScaling(0.9).relative_duration(64_000, base=8000) == pytest.approx(1.86, abs=0.01)


def test_amdahl_duration_below_one_unit_grows_in_inverse_proportion() -> None:
    assert AmdahlScaling(0.9).relative_duration(250, base=1000) == 4.0
    assert AmdahlScaling(0.9, unit=1).relative_duration(4, base=1) == pytest.approx(0.1 + 0.9 / 4)


def test_amdahl_rejects_invalid_parallel_fraction() -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        AmdahlScaling(1.5)


def test_duration_table_is_constant_between_entries() -> None:
    table = DurationTable.from_mapping({1000: 8.0, 4000: 2.0})
    assert table.relative_duration(2000, base=1000) == 1.0
    assert table.relative_duration(4000, base=1000) == 0.25
    assert table.relative_duration(500, base=1000) == 1.0


def test_duration_table_limits_extreme_ratios() -> None:
    table = DurationTable.from_mapping({1000: 1e300, 2000: 1e-300})
    assert table.relative_duration(2000, base=1000) == 1e-6
    assert table.relative_duration(1000, base=2000) == 1e6


@pytest.mark.parametrize("entries", [(), ((2, 1.0), (1, 2.0)), ((1, 1.0), (1, 2.0)), ((1, 0.0),), ((0, 1.0),)])
def test_invalid_duration_table_is_rejected(entries: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"table|durations"):
        DurationTable(entries)


def test_inelastic_action_gains_nothing_from_more_cores() -> None:
    assert NoScaling().relative_duration(64000, base=1000) == 1.0

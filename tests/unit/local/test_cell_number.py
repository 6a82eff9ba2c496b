"""The number of a cell is stored at the first start and never changes."""

from pathlib import Path

import pytest

from arl_local.state_dir import StateDir


def test_number_of_the_first_start_is_kept(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    assert (state.cell(None), state.cell(3), state.cell(None), state.cell(3)) == (0, 3, 3, 3)


@pytest.mark.parametrize("other", [0, 2])
def test_another_number_is_refused(tmp_path: Path, other: int) -> None:
    state = StateDir(tmp_path)
    state.cell(3)
    with pytest.raises(ValueError, match=f"is cell 3, as its ids say; it cannot become cell {other}"):
        state.cell(other)


def test_system_without_number_may_get_one(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    assert (state.cell(0), state.cell(2)) == (0, 2)

"""Test the number of a cell in ids."""

from uuid import UUID

import pytest

from arl_store.values import uuid7
from arl_wire.cells import MAX_CELL, cell_of, with_cell

OLD = UUID("01997f00-0000-7abc-bfff-0123456789ab")


@pytest.mark.parametrize("cell", [1, 2, MAX_CELL])
def test_id_names_its_cell_and_stays_a_uuid7(cell: int) -> None:
    made = uuid7(cell)
    assert (cell_of(made), made.version, made.variant) == (cell, 7, "specified in RFC 4122")
    assert str(made).split("-")[3] == f"{0x8000 | cell:04x}"


def test_number_replaces_only_the_bits_of_the_fourth_group() -> None:
    assert str(with_cell(OLD, 2)) == "01997f00-0000-7abc-8002-0123456789ab"


def test_id_of_a_system_without_number_is_unchanged() -> None:
    assert (with_cell(OLD, 0), cell_of(OLD)) == (OLD, 0)


def test_ids_of_a_cell_are_distinct_and_ordered() -> None:
    made = [uuid7(7) for _ in range(10_000)]
    assert made == sorted(set(made))


@pytest.mark.parametrize("cell", [-1, MAX_CELL + 1])
def test_number_outside_the_range_is_refused(cell: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 4095"):
        with_cell(OLD, cell)

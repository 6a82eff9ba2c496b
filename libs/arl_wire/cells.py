"""Cells: the number of a cell in the ids that it makes, and the headers of a router in front of several cells.

A cell is a whole system with its own Postgres. The fourth group of an id names its cell: `…-8002-…` is cell 2. The
group has the two variant bits of a UUID, two zero bits and the number of the cell in 12 bits.
"""

from uuid import UUID

__all__ = [
    "CELL_HEADER",
    "GENERATED_TRAJECTORY",
    "MAX_CELL",
    "MISSING_CELLS_HEADER",
    "cell_of",
    "with_cell",
]

MAX_CELL = 4095
CELL_HEADER = "tangram-cell"
"""Request header that names the cell of a request. In a response, it names the cell that answered."""
MISSING_CELLS_HEADER = "tangram-missing-cells"
"""Response header with the numbers of the cells that did not answer, separated by commas."""

GENERATED_TRAJECTORY = "environment-"
"""Prefix of the trajectory of an environment that was created without a trajectory. An id of its cell follows."""

_CELL_SHIFT = 48
_CELL_MASK = 0x3FFF << _CELL_SHIFT
"""The 14 bits of an id after its variant bits."""


def with_cell(id: UUID, cell: int) -> UUID:
    """Return the id with the number of its cell, from 1 to `MAX_CELL`. With 0, the id is returned unchanged."""
    if cell == 0:
        return id
    if not 0 < cell <= MAX_CELL:
        raise ValueError(f"the number of a cell must be from 1 to {MAX_CELL}, and it is {cell}")
    return UUID(int=(id.int & ~_CELL_MASK) | cell << _CELL_SHIFT)


def cell_of(id: UUID) -> int:
    """Return the number of the id's cell, or 0 if the id names none.

    A system without a number fills the group with random bits, so one of four of its ids names some cell.
    """
    number = (id.int & _CELL_MASK) >> _CELL_SHIFT
    return number if number <= MAX_CELL else 0

"""The rule that gives each request its cell. It depends only on the request and the settings, never on the load."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from uuid import UUID

from arl_wire.cells import CELL_HEADER, GENERATED_TRAJECTORY, cell_of
from arl_wire.errors import BadRequest, FieldError, NotFound, ValidationFailed

__all__ = ["CellRouting", "RequestFacts", "rendezvous"]

FLOAT_BITS = 52
"""Bits of a hash that a float holds exactly, with the half that keeps it between 0 and 1."""

MAX_DIGITS = 4
"""Digits of the largest number of a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """The parts of a request that determine its cell."""

    ids: Mapping[str, UUID] = field(default_factory=dict)
    """Ids of existing resources, by the name of their field or parameter."""
    trajectory: tuple[str, str] | None = None
    """Task and trajectory."""
    key: str | None = None
    """Value that is equal in repetitions of the same request, such as the `Idempotency-Key`."""

    @property
    def is_free(self) -> bool:
        """Return True if any cell may serve the request."""
        return not self.ids and self.trajectory is None and self.key is None


class CellRouting:
    """The cells and their weights.

    Args:
        weights: Share of each cell in new trajectories, by its number.
        fallback: Cell of ids that name no cell of `weights`. None: such ids are unknown.
    """

    def __init__(self, weights: Mapping[int, float], *, fallback: int | None = None) -> None:
        self._weights = dict(weights)
        self._fallback = fallback

    @property
    def cells(self) -> list[int]:
        """Return the numbers of the cells in ascending order."""
        return sorted(self._weights)

    @property
    def open_cells(self) -> list[int]:
        """Return the cells that take new work."""
        return [number for number in self.cells if self._weights[number] > 0]

    def choose_cell(self, facts: RequestFacts) -> int | None:
        """Return the cell of a request, or None if any cell may serve it.

        Ids come first, then the trajectory, then the key. The hash covers all cells, whether they are up or not.
        Raises `NotFound` for an id of an unknown cell, and `ValidationFailed` for ids of different cells.
        """
        if facts.ids:
            return self._cell_of_ids(facts.ids)
        if facts.trajectory is not None:
            task, trajectory = facts.trajectory
            return self._cell_of_generated(trajectory) or rendezvous(f"{task}\0{trajectory}", self._weights)
        return rendezvous(f"\0{facts.key}", self._weights) if facts.key is not None else None

    def cell_of_id(self, id: UUID, field: str) -> int:
        """Return the cell in which an id was made. Raises `NotFound` if it is no cell of this router."""
        number = cell_of(id)
        if number in self._weights:
            return number
        if self._fallback is not None:
            return self._fallback
        cells = ", ".join(map(str, self.cells))
        message = (
            f"{id} names cell {number}, and this router has the cells {cells}" if number else f"{id} names no cell"
        )
        raise NotFound(f"{field}: {message}", errors=[FieldError(field=field, message=message)])

    def parse_header(self, value: str) -> int:
        """Return the cell that the header `Tangram-Cell` names. Raises `BadRequest` for another value."""
        if value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS and int(value) in self._weights:
            return int(value)
        message = f"must be the number of a cell of this router: {', '.join(map(str, self.cells))}"
        error = FieldError(field=f"header.{CELL_HEADER.title()}", message=message)
        raise BadRequest(f"{CELL_HEADER.title()} {message}", errors=[error])

    def _cell_of_ids(self, ids: Mapping[str, UUID]) -> int:
        cells = {name: self.cell_of_id(id, name) for name, id in ids.items()}
        if len(set(cells.values())) == 1:
            return next(iter(cells.values()))
        errors = [FieldError(field=name, message=f"belongs to cell {number}") for name, number in cells.items()]
        where = ", ".join(f"{name} to cell {number}" for name, number in cells.items())
        raise ValidationFailed(
            f"the ids belong to different cells ({where}); one action uses resources of one cell only", errors=errors
        )

    def _cell_of_generated(self, trajectory: str) -> int | None:
        """Return the cell in the name that a gateway generated for an environment; None for other names."""
        if not trajectory.startswith(GENERATED_TRAJECTORY):
            return None
        try:
            number = cell_of(UUID(trajectory.removeprefix(GENERATED_TRAJECTORY)))
        except ValueError:
            return None
        return number if number in self._weights else None


def rendezvous(text: str, weights: Mapping[int, float]) -> int:
    """Return the cell of a text by weighted rendezvous hashing.

    A cell gets a share of the texts in proportion to its weight. A new cell takes texts of the other cells in this
    proportion, and all other texts keep their cell. The number of the cell decides between equal hashes.
    """
    numbers = [number for number, weight in weights.items() if weight > 0]
    return max(numbers, key=lambda number: (_score(text, number, weights[number]), -number))


def _score(text: str, number: int, weight: float) -> float:
    digest = blake2b(text.encode(errors="replace"), digest_size=8, salt=number.to_bytes(2)).digest()
    uniform = ((int.from_bytes(digest) >> 64 - FLOAT_BITS) + 0.5) / (1 << FLOAT_BITS)
    return -weight / math.log(uniform)

"""Responses that the router builds from those of several cells."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from starlette.responses import Response

from arl_cell_router.cells.cell_link import RETRY_AFTER_S, CellReply
from arl_cell_router.cells.cell_links import CellLinks
from arl_wire.cells import MISSING_CELLS_HEADER
from arl_wire.errors import CellUnavailable

__all__ = ["json_response", "missing_cells", "names_of", "raise_missing"]

NOT_SERVING = "its gateway cannot serve requests now"

Replies = Mapping[int, CellReply | CellUnavailable]


def json_response(value: Any, status: int = 200, *, missing: Iterable[int] = ()) -> Response:
    """Return a JSON response; None has no body. A header names the cells whose part is missing."""
    content = None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    headers = {MISSING_CELLS_HEADER: text} if (text := ",".join(map(str, sorted(missing)))) else {}
    return Response(content, status, headers, media_type="application/json" if content is not None else None)


def missing_cells(replies: Replies) -> list[int]:
    """Return the cells that did not answer, or whose gateway cannot serve requests now."""
    return [cell for cell, reply in replies.items() if isinstance(reply, CellUnavailable) or reply.is_missing]


def raise_missing(cells: CellLinks, missing: Sequence[int], replies: Replies | None = None) -> NoReturn:
    """Raise `CellUnavailable` for a request that no cell could serve. `replies` may have the error of a cell."""
    if len(missing) == 1:
        if isinstance(error := (replies or {}).get(missing[0]), CellUnavailable):
            raise error
        link = cells.links[missing[0]]
        raise link.unavailable(link.availability.problem or NOT_SERVING)
    problems = (cells.links[cell].availability.problem or NOT_SERVING for cell in missing)
    named = "; ".join(f"cell {cell}: {problem}" for cell, problem in zip(missing, problems, strict=True))
    raise CellUnavailable(f"no cell answers ({named})", retry_after_s=RETRY_AFTER_S)


def names_of(cells: Iterable[int]) -> str:
    """Return the numbers of cells as a phrase, such as `cells 1 and 3`."""
    numbers = [str(cell) for cell in sorted(cells)]
    if len(numbers) == 1:
        return f"cell {numbers[0]}"
    return f"cells {', '.join(numbers[:-1])} and {numbers[-1]}"

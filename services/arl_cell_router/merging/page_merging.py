"""Lists of several cells as one list: pages in order of time, and tables by name."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Any

from arl_wire.environments.environment import EnvironmentInfo
from arl_wire.errors import BadRequest, FieldError, NotFound

__all__ = ["PageCursor", "merge_item", "merge_page", "merge_table", "parse_router_key_id", "router_key_id"]

Item = dict[str, Any]

KEY_CELLS = 4096
"""One more than the largest number of a cell."""
MAX_KEY_DIGITS = 18


@dataclass(frozen=True, slots=True)
class PageCursor:
    """The position of each cell in a merged list. A cell that is not in `positions` has no more items."""

    positions: Mapping[int, str | None]
    """Cursor of each cell's own list; None is its beginning."""
    missing: Sequence[int] = field(default=())
    """Cells that did not answer on an earlier page."""

    def encode(self) -> str:
        """Return the opaque text for clients."""
        document = {"c": {str(cell): cursor for cell, cursor in self.positions.items()}, "m": list(self.missing)}
        return urlsafe_b64encode(json.dumps(document, separators=(",", ":")).encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str, cells: Sequence[int]) -> "PageCursor":
        """Parse the text of `encode`. Raises `BadRequest` for any other text."""
        try:
            document = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            positions = {int(cell): _text_or_none(cursor) for cell, cursor in document["c"].items()}
            missing = [int(cell) for cell in document["m"]]
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            positions, missing = {}, []
        if positions and positions.keys() <= set(cells) and set(missing) <= set(cells):
            return cls(positions, missing)
        message = "is not a cursor of this list: use next_cursor of the previous page"
        raise BadRequest(f"query.cursor {message}", errors=[FieldError(field="query.cursor", message=message)])


def merge_page(
    listed: str, pages: Mapping[int, Mapping[str, Any]], *, limit: int, cursor: PageCursor, missing: Sequence[int]
) -> dict[str, Any]:
    """Return a page of up to `limit` items, newest first.

    Args:
        listed: Last segment of the list's path, such as `actions`.
        pages: Page of each cell that answered, from its position in `cursor`.
        cursor: Positions at the beginning of this page.
        missing: All cells that did not answer. The following pages leave them out.
    """
    sort_key, cursor_of = _PAGE_ORDERS[listed]
    tagged = [(sort_key(item), cell, item) for cell, page in pages.items() for item in page["items"]]
    tagged.sort(key=itemgetter(0), reverse=True)
    taken = tagged[:limit]
    positions: dict[int, str | None] = {}
    for cell, page in pages.items():
        mine = [item for _, at, item in taken if at == cell]
        if len(mine) < len(page["items"]) or page.get("next_cursor") is not None:
            positions[cell] = cursor_of(mine[-1]) if mine else cursor.positions[cell]
    result: dict[str, Any] = {"items": [item for _, _, item in taken]}
    if positions:
        result["next_cursor"] = PageCursor(positions, missing).encode()
    return result


def merge_table(listed: str, tables: Mapping[int, Sequence[Item]]) -> list[Item]:
    """Return the items of all cells in the order of the list. Items that all cells share are merged by name."""
    tagged = [(cell, item) for cell in sorted(tables) for item in tables[cell]]
    if listed in ("nodes", "pools", "images", "stragglers"):
        items = [{**item, "cell": cell} for cell, item in tagged]
        return sorted(items, key=lambda item: (item["name"], item["cell"])) if listed != "stragglers" else items
    name_of = _NAMES[listed]
    grouped: dict[str, list[tuple[int, Item]]] = {}
    for cell, item in tagged:
        grouped.setdefault(name_of(item), []).append((cell, item))
    merged = [merge_item(listed, dict(group)) for group in grouped.values()]
    if listed == "keys":
        merged.sort(key=lambda item: datetime.fromisoformat(item["created_at"]), reverse=True)
    elif listed in ("reward-services", "endpoints"):
        merged.sort(key=itemgetter("name"))
    return merged


def merge_item(listed: str, items: Mapping[int, Item]) -> Item:
    """Return one item of a table from the cells that have it. The first cell decides about its settings."""
    first = min(items)
    merged = dict(items[first])
    if listed in ("reward-services", "endpoints"):
        merged["nodes"] = [node for cell in sorted(items) for node in items[cell]["nodes"]]
        merged["available"] = any(item["available"] for item in items.values())
    elif listed == "queues":
        for count in ("queued", "running"):
            merged[count] = sum(item[count] for item in items.values())
    elif listed == "keys":
        merged["id"] = router_key_id(first, merged["id"])
        if any(item.get("revoked_at") is None for item in items.values()):
            merged.pop("revoked_at", None)  # it is valid while one cell accepts it
    return merged


def router_key_id(cell: int, id: int) -> int:
    """Return the id that clients of the router see for an API key. Each cell numbers its keys from 1."""
    return id * KEY_CELLS + cell


def parse_router_key_id(text: str) -> tuple[int, int]:
    """Return the cell and the cell's own id of an API key. Raises `NotFound` for another text."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_KEY_DIGITS else 0
    cell, id = number % KEY_CELLS, number // KEY_CELLS
    if not cell or not id:
        raise NotFound(f"API key {text[:20]} does not exist. `tangram keys list` shows the keys of all cells")
    return cell, id


def _text_or_none(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError("a cursor is a text")
    return value


_NAMES: Mapping[str, Callable[[Item], str]] = {
    "reward-services": itemgetter("name"),
    "endpoints": itemgetter("name"),
    "projects": itemgetter("name"),
    "queues": itemgetter("task"),
    "keys": itemgetter("fingerprint"),
}
"""Fields that identify an item in all cells, by the last segment of the list's path."""


def _environment_order(item: Item) -> tuple[datetime, str]:
    return datetime.fromisoformat(item["created_at"]), item["id"]


def _environment_cursor(item: Item) -> str:
    return EnvironmentInfo.model_validate(item).cursor


_PAGE_ORDERS: Mapping[str, tuple[Callable[[Item], Any], Callable[[Item], str]]] = {
    "actions": (itemgetter("id"), itemgetter("id")),
    "environments": (_environment_order, _environment_cursor),
    "snapshots": (itemgetter("id"), itemgetter("id")),
}
"""Sort key of an item, and the cursor of its cell after it. Ids are ordered by time."""

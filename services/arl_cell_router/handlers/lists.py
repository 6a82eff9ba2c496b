"""Lists across cells. A cell that does not answer is left out, and a response header names it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from arl_cell_router.cells.cell_link import CellReply
from arl_cell_router.cells.cell_links import CellLinks, RelayedHead
from arl_cell_router.merging.page_merging import PageCursor, merge_item, merge_page, merge_table
from arl_cell_router.relaying.relay import forward, reply_response, request_head
from arl_cell_router.relaying.responses import json_response, missing_cells, raise_missing
from arl_cell_router.routing.route_table import RouteMatch
from arl_wire.errors import CellUnavailable

__all__ = ["CellLists"]

DEFAULT_LIMIT, MAX_LIMIT = 100, 1000
MAX_DIGITS = 9
"""Digits of a number in the query. A gateway refuses a longer one."""
PAGED_TABLES = frozenset({"queues", "projects", "keys"})
"""Tables with a numeric cursor. The router's cursor is the number of items before the page."""

Table = list[dict[str, Any]]


class CellLists:
    """The handlers of lists."""

    def __init__(self, cells: CellLinks) -> None:
        self._cells = cells

    async def page(self, request: Request, route: RouteMatch) -> Response:
        """Return a page of a list in order of time, merged from all cells."""
        limit, text = _limit_of(request), request.query_params.get("cursor")
        if limit is None:
            return await forward(request, self._cells.next_link())
        cells = list(self._cells.links)
        cursor = PageCursor.parse(text, cells) if text is not None else PageCursor(dict.fromkeys(cells))
        head = request_head(request)
        heads = {cell: _with_query(head, cursor=position) for cell, position in cursor.positions.items()}
        replies = await self._cells.ask(heads, timeout_s=self._cells.answer_s)
        missing = sorted({*cursor.missing, *missing_cells(replies)})
        pages = {}
        for cell, reply in replies.items():
            if isinstance(reply, CellReply) and not reply.is_missing:
                if not reply.is_success:
                    return reply_response(reply)
                pages[cell] = reply.json()
        if not pages:
            raise_missing(self._cells, missing, replies)
        merged = merge_page(route.params["list"], pages, limit=limit, cursor=cursor, missing=missing)
        return json_response(merged, missing=missing)

    async def table(self, request: Request, route: RouteMatch) -> Response:
        """Return a list by name, merged from all cells."""
        listed, limit = route.params["list"], _limit_of(request)
        offset = _number_of(request.query_params.get("cursor", "0"))
        if limit is None or offset is None:
            return await forward(request, self._cells.next_link())
        found = await self.read_tables(request_head(request), listed)
        missing = [cell for cell, table in found.items() if table is None]
        for table in found.values():
            if isinstance(table, CellReply):
                return reply_response(table)
        tables = {cell: table for cell, table in found.items() if isinstance(table, list)}
        if not tables:
            raise_missing(self._cells, missing)
        items, answer = merge_table(listed, tables), {}
        if listed in PAGED_TABLES:
            begin, end = offset, offset + limit
            answer = {"next_cursor": end} if end < len(items) else {}
            items = items[begin:end]
        return json_response({"items": items, **answer}, missing=missing)

    async def item(self, request: Request, route: RouteMatch) -> Response:
        """Return one item of a list by name, merged from the cells that have it."""
        replies = await self._cells.ask_all(request_head(request))
        missing = missing_cells(replies)
        answered = {cell: each for cell, each in replies.items() if isinstance(each, CellReply) and not each.is_missing}
        found = {cell: reply.json() for cell, reply in answered.items() if reply.is_success}
        if found:
            return json_response(merge_item(route.params["list"], found), missing=missing)
        if missing:
            raise_missing(self._cells, missing, replies)
        return reply_response(next(iter(answered.values())))

    async def read_tables(self, head: RelayedHead, listed: str) -> dict[int, Table | CellReply | None]:
        """Return the whole table of each cell: its items, its refusal, or None if the cell does not answer."""
        tables = await asyncio.gather(*(self._read_table(cell, head, listed) for cell in self._cells.links))
        return dict(zip(self._cells.links, tables, strict=True))

    async def _read_table(self, cell: int, head: RelayedHead, listed: str) -> Table | CellReply | None:
        items: Table = []
        asked: dict[str, Any] = {"limit": MAX_LIMIT, "cursor": None} if listed in PAGED_TABLES else {}
        ends_at = asyncio.get_running_loop().time() + self._cells.answer_s
        while True:
            here = _with_query(head, **asked)
            left_s = ends_at - asyncio.get_running_loop().time()
            try:
                reply = await self._cells.links[cell].call(here.method, here.target, here.headers, timeout_s=left_s)
            except CellUnavailable:
                return None
            if reply.is_missing:
                return None
            if not reply.is_success:
                return reply
            answer = reply.json()
            items += answer["items"]
            if answer.get("next_cursor") is None:
                return items
            asked["cursor"] = answer["next_cursor"]


def _limit_of(request: Request) -> int | None:
    """Return the size of a page, or None if the parameter is invalid. A gateway explains that."""
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    return number if (number := _number_of(text)) is not None and 1 <= number <= MAX_LIMIT else None


def _number_of(text: str) -> int | None:
    """Return the number in a parameter, or None if it is no number or has too many digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def _with_query(head: RelayedHead, **changed: Any) -> RelayedHead:
    """Return the head with other parameters; None removes one."""
    if not changed:
        return head
    parts = urlsplit(head.target)
    kept: Sequence[str] = [each for each in parts.query.split("&") if each and each.partition("=")[0] not in changed]
    added: Mapping[str, Any] = {name: value for name, value in changed.items() if value is not None}
    query = "&".join([*kept, *([urlencode(added)] if added else [])])
    return replace(head, target=parts.path + (f"?{query}" if query else ""))

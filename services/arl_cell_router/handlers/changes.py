"""Changes that concern all cells, and changes of nodes and pools, which belong to one cell."""

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

from arl_cell_router.cells.cell_link import RETRY_AFTER_S, CellReply
from arl_cell_router.cells.cell_links import CellLinks, RelayedHead
from arl_cell_router.handlers.lists import CellLists
from arl_cell_router.merging.page_merging import merge_item, parse_router_key_id
from arl_cell_router.relaying.relay import forward, reply_response, request_head
from arl_cell_router.relaying.request_body import json_head, read_json, to_json
from arl_cell_router.relaying.responses import json_response, missing_cells, names_of, raise_missing
from arl_cell_router.routing.route_table import RouteMatch
from arl_wire.cells import CELL_HEADER
from arl_wire.errors import CellUnavailable, Conflict, FieldError, NotFound, ValidationFailed

__all__ = ["CellChanges"]

HEADER = CELL_HEADER.title()
HOW_TO_NAME = f"Name one with `tangram --cell NUMBER`, `cell=` of the Python client, or the header {HEADER}"
MAX_UNFINISHED_KEYS = 100
Replies = Mapping[int, CellReply | CellUnavailable]


class CellChanges:
    """The handlers of changes by administrators."""

    def __init__(self, cells: CellLinks, lists: CellLists) -> None:
        self._cells, self._lists = cells, lists
        self._unfinished_keys: OrderedDict[bytes, str] = OrderedDict()
        """Keys that were not created in all cells, by the hash of the request. Its repetition creates the same key."""

    async def change_all(self, request: Request, route: RouteMatch) -> Response:
        """Apply a change to every cell, or to none if one of them does not answer."""
        body = await request.body()
        self._require_all_up()
        head = request_head(request)
        cells = self._cells.links
        replies: Replies = await self._cells.ask(dict.fromkeys(cells, head), dict.fromkeys(cells, body))
        if route.params["list"] == "queues" and request.method == "PATCH":
            replies = await self._create_queues(replies, head, body)
        refused = self._check_changed(replies, is_removal=request.method == "DELETE")
        return refused or self._merged_response(replies, route.params["list"])

    async def _create_queues(self, replies: Replies, head: RelayedHead, body: bytes) -> Replies:
        """Repeat the change in cells without the queue, which creates it there, if at least one cell has the queue."""
        absent = [
            cell for cell, each in replies.items() if isinstance(each, CellReply) and each.status == NotFound.status
        ]
        if not absent or not any(isinstance(each, CellReply) and each.is_success for each in replies.values()):
            return replies
        creating = replace(head, target=f"{head.target}{'&' if '?' in head.target else '?'}create=true")
        created = await self._cells.ask(dict.fromkeys(absent, creating), dict.fromkeys(absent, body))
        return {**replies, **created}

    async def create_key(self, request: Request) -> Response:
        """Create the same key in every cell. The router draws the secret, unless the request has one."""
        body, value = await read_json(request)
        if not isinstance(value, Mapping):
            return await forward(request, self._cells.next_link(), body=body)
        self._require_all_up()
        repeated = sha256(request.headers.get("authorization", "").encode() + b"\0" + body).digest()
        key = value.get("key") or self._unfinished_keys.get(repeated) or f"tk_{secrets.token_urlsafe(32)}"
        content = to_json({**value, "key": key})
        head = json_head(request_head(request))
        replies = await self._cells.ask(
            dict.fromkeys(self._cells.links, head), dict.fromkeys(self._cells.links, content)
        )
        self._unfinished_keys[repeated] = key
        while len(self._unfinished_keys) > MAX_UNFINISHED_KEYS:
            self._unfinished_keys.popitem(last=False)
        refused = self._check_changed(replies, is_removal=False)
        del self._unfinished_keys[repeated]
        response = refused or self._merged_response(replies, "keys")
        response.headers["cache-control"] = "no-store"
        return response

    async def revoke_key(self, request: Request, route: RouteMatch) -> Response:
        """Revoke a key in every cell that has it. The fingerprint of the key finds it in the other cells.

        Raises `CellUnavailable` if a cell does not answer, after the key was revoked in the others.
        """
        cell, id = parse_router_key_id(route.params["id"])
        head = request_head(request)
        listing = replace(head, method="GET", target="/v1/admin/keys")
        tables = await self._lists.read_tables(listing, "keys")
        for table in tables.values():
            if isinstance(table, CellReply):
                return reply_response(table)
        if cell in tables and tables[cell] is None:
            raise CellUnavailable(
                f"nothing was changed: the id is from cell {cell}, which does not answer. `tangram keys list` shows the"
                " id of the key in the other cells: repeat the command with that id",
                retry_after_s=RETRY_AFTER_S,
            )
        known = {number: table for number, table in tables.items() if isinstance(table, list)}
        wanted = next((key["fingerprint"] for key in known.get(cell, ()) if key["id"] == id), None)
        if wanted is None:
            raise NotFound(
                f"API key {route.params['id']} does not exist in this project. `tangram keys list` shows keys"
            )
        heads = {
            number: replace(head, target=f"/v1/admin/keys/{key['id']}")
            for number, table in known.items()
            for key in table
            if key["fingerprint"] == wanted
        }
        replies = await self._cells.ask(heads)
        silent = sorted({*missing_cells(replies), *(number for number, table in tables.items() if table is None)})
        if silent:
            done = [each.cell for each in replies.values() if isinstance(each, CellReply) and each.is_success]
            state = f"the key was revoked in {names_of(done)}" if done else "the key was not revoked"
            raise CellUnavailable(
                f"{state} and may still be valid in {names_of(silent)}, which did not answer. Repeat the command",
                retry_after_s=RETRY_AFTER_S,
            )
        return self._check_changed(replies, is_removal=True) or self._merged_response(replies, "keys")

    async def change_named(self, request: Request, route: RouteMatch) -> Response:
        """Change a node or a pool in the only cell that has it."""
        listed, name = route.params["list"], route.params["name"]
        listing = json_head(request_head(request), method="GET", target=f"/v1/admin/{listed}")
        tables = await self._lists.read_tables(listing, listed)
        for table in tables.values():
            if isinstance(table, CellReply):
                return reply_response(table)
        owners = [
            cell for cell, table in tables.items() if isinstance(table, list) and any(e["name"] == name for e in table)
        ]
        if len(owners) == 1:
            return await forward(request, self._cells.links[owners[0]])
        noun = listed.removesuffix("s")
        if owners:
            message = f"{noun} {name!r} exists in {names_of(owners)}. {HOW_TO_NAME}"
            raise Conflict(message, errors=[FieldError(field=f"header.{HEADER}", message=message)])
        if missing := [cell for cell, table in tables.items() if table is None]:
            raise_missing(self._cells, missing)
        if request.method == "PUT":
            raise self.header_needed(f"{noun} {name!r} exists in no cell yet")
        raise NotFound(f"{noun} {name!r} does not exist in {names_of(self._cells.links)}")

    def header_needed(self, reason: str) -> ValidationFailed:
        """Return the error of a request that must name its cell in a header."""
        message = f"{reason}, and the request names none of {names_of(self._cells.links)}. {HOW_TO_NAME}"
        return ValidationFailed(message, errors=[FieldError(field=f"header.{HEADER}", message=message)])

    def _require_all_up(self) -> None:
        for number in self._cells.links:
            if number not in self._cells.up:
                raise self._nothing_changed(number)

    def _nothing_changed(self, cell: int) -> CellUnavailable:
        return CellUnavailable(
            f"cell {cell} does not answer; nothing was changed. This change concerns all cells: repeat it when the cell"
            " is back",
            retry_after_s=RETRY_AFTER_S,
        )

    def _check_changed(self, replies: Replies, *, is_removal: bool) -> Response | None:
        """Return the refusal if no cell has the change, and None if all have it.

        A removal counts as done in a cell that does not have the resource. Raises `CellUnavailable` or `Conflict` if
        only some cells have the change.
        """
        missing = missing_cells(replies)
        answered = {cell: each for cell, each in replies.items() if isinstance(each, CellReply) and cell not in missing}
        done = [cell for cell, reply in answered.items() if reply.is_success]
        refused = [cell for cell, reply in answered.items() if not reply.is_success]
        if is_removal and done:
            refused = [cell for cell in refused if answered[cell].status != NotFound.status]
        if not missing and not refused:
            return None
        if not done and refused:
            return reply_response(answered[refused[0]])
        state = f"{names_of(done)} did, and the same request may be repeated" if done else "no other cell did"
        if missing:
            raise CellUnavailable(
                f"{names_of(missing)} did not confirm the change; {state}", retry_after_s=RETRY_AFTER_S
            )
        raise Conflict(f"{names_of(refused)} refused the change: {_detail(answered[refused[0]])}; {state}")

    def _merged_response(self, replies: Replies, listed: str) -> Response:
        """Return the response of the cells that have the change, as one."""
        done = {cell: each for cell, each in replies.items() if isinstance(each, CellReply) and each.is_success}
        first = done[min(done)]
        if not first.body:
            return json_response(None, first.status)
        items = {cell: reply.json() for cell, reply in done.items() if reply.body}
        return json_response(merge_item(listed, items), first.status)


def _detail(reply: CellReply) -> str:
    try:
        return str(reply.json()["detail"])
    except (ValueError, LookupError, TypeError):
        return f"status {reply.status}"

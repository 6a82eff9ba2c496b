"""Changes that concern all cells, and changes of nodes and pools, which belong to one cell."""

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

from arl_cell_router.cells.cell_link import CellReply
from arl_cell_router.cells.fleet import CellFleet
from arl_cell_router.handlers.lists import CellLists
from arl_cell_router.merging.page_merging import merge_item, parse_router_key_id
from arl_cell_router.placement.route_table import RouteMatch
from arl_cell_router.relaying.relay import forward, reply_response, request_head
from arl_cell_router.relaying.request_body import json_head, read_json, to_json
from arl_cell_router.relaying.responses import json_response, missing_cells, names_of, raise_missing
from arl_wire.cells import CELL_HEADER
from arl_wire.errors import CellUnavailable, Conflict, FieldError, NotFound, ValidationFailed

__all__ = ["CellChanges"]

HEADER = CELL_HEADER.title()
MAX_UNFINISHED_KEYS = 100
Replies = Mapping[int, CellReply | CellUnavailable]


class CellChanges:
    """The handlers of changes by administrators."""

    def __init__(self, fleet: CellFleet, lists: CellLists) -> None:
        self._fleet, self._lists = fleet, lists
        self._unfinished_keys: OrderedDict[bytes, str] = OrderedDict()
        """Keys that were not created in all cells, by the hash of the request. Its repetition creates the same key."""

    async def change_all(self, request: Request, route: RouteMatch) -> Response:
        """Apply a change to every cell, or to none if one of them does not answer."""
        body = await request.body()
        self._require_all_up()
        head = request_head(request)
        replies = await self._fleet.ask(dict.fromkeys(self._fleet.links, head), dict.fromkeys(self._fleet.links, body))
        refused = self._check_changed(replies, is_removal=request.method == "DELETE")
        return refused or self._merged_response(replies, route.params["list"])

    async def create_key(self, request: Request) -> Response:
        """Create the same key in every cell. The router draws the secret, unless the request has one."""
        body, value = await read_json(request)
        if not isinstance(value, Mapping):
            return await forward(request, self._fleet.next_link(), body=body)
        self._require_all_up()
        repeated = sha256(request.headers.get("authorization", "").encode() + b"\0" + body).digest()
        key = value.get("key") or self._unfinished_keys.get(repeated) or f"tk_{secrets.token_urlsafe(32)}"
        content = to_json({**value, "key": key})
        head = json_head(request_head(request))
        replies = await self._fleet.ask(
            dict.fromkeys(self._fleet.links, head), dict.fromkeys(self._fleet.links, content)
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
        """Revoke a key in every cell that has it. The fingerprint of the key finds it in the other cells."""
        self._require_all_up()
        cell, id = parse_router_key_id(route.params["id"])
        head = request_head(request)
        listing = replace(head, method="GET", target="/v1/admin/keys")
        tables = await self._lists.read_tables(listing, "keys")
        for number, table in tables.items():
            if table is None:
                raise self._nothing_changed(number)
            if isinstance(table, CellReply):
                return reply_response(table)
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
        replies = await self._fleet.ask(heads)
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
            return await forward(request, self._fleet.links[owners[0]])
        noun = listed.removesuffix("s")
        if owners:
            message = f"{noun} {name!r} exists in {names_of(owners)}: name one of them"
            raise Conflict(message, errors=[FieldError(field=f"header.{HEADER}", message=message)])
        if missing := [cell for cell, table in tables.items() if table is None]:
            raise_missing(self._fleet, missing)
        if request.method == "PUT":
            raise self.header_needed(f"{noun} {name!r} exists in no cell yet")
        raise NotFound(f"{noun} {name!r} does not exist in {names_of(self._fleet.links)}")

    def header_needed(self, reason: str) -> ValidationFailed:
        """Return the error of a request that must name its cell in a header."""
        message = (
            f"is needed: {reason}. Send the number of one of {names_of(self._fleet.links)}, or use its own address"
        )
        return ValidationFailed(
            f"header {HEADER} {message}", errors=[FieldError(field=f"header.{HEADER}", message=message)]
        )

    def _require_all_up(self) -> None:
        for number in self._fleet.links:
            if number not in self._fleet.up:
                raise self._nothing_changed(number)

    def _nothing_changed(self, cell: int) -> CellUnavailable:
        return CellUnavailable(
            f"cell {cell} does not answer; nothing was changed. This change concerns all cells: repeat it when the cell"
            " is back",
            retry_after_s=2,
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
            raise CellUnavailable(f"{names_of(missing)} did not confirm the change; {state}", retry_after_s=2)
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

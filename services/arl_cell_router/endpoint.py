"""The route of all requests: it chooses the handler, and the cell of requests that concern one cell."""

from collections.abc import Awaitable, Callable
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from arl_cell_router.cells.cell_links import CellLinks
from arl_cell_router.handlers.changes import CellChanges
from arl_cell_router.handlers.lists import CellLists
from arl_cell_router.handlers.split_requests import SplitRequests
from arl_cell_router.relaying.relay import CLIENT_CLOSED, forward
from arl_cell_router.relaying.request_body import has_credentials, read_json
from arl_cell_router.routing.cell_routing import RequestFacts
from arl_cell_router.routing.request_facts import (
    action_facts,
    compat_facts,
    environment_facts,
    parse_id,
    score_facts,
)
from arl_cell_router.routing.route_table import RouteKind, RouteMatch, match_route
from arl_kit.http_server.body_streaming import RequestBodyDrainer
from arl_wire.cells import CELL_HEADER
from arl_wire.errors import ValidationFailed

__all__ = ["RouterEndpoint"]

Handler = Callable[[Request, RouteMatch], Awaitable[Response]]

COMPAT_KINDS = {RouteKind.COMPAT_SCORE: "score", RouteKind.COMPAT_RUN: "run", RouteKind.COMPAT_CALL: "call"}


class RouterEndpoint:
    """The ASGI application behind the probes. It checks no keys: the gateway of each cell does."""

    def __init__(self, cells: CellLinks) -> None:
        self._cells = cells
        lists, split = CellLists(cells), SplitRequests(cells)
        changes = CellChanges(cells, lists)
        self._changes = changes
        self._app = RequestBodyDrainer(self._serve)
        self._handlers: dict[RouteKind, Handler] = {
            RouteKind.ACTION: self._submit,
            RouteKind.ENVIRONMENT: self._submit,
            RouteKind.SCORE: self._submit,
            **dict.fromkeys(COMPAT_KINDS, self._compatible),
            RouteKind.BY_ID: self._by_id,
            RouteKind.BATCH: lambda request, route: split.submit_batch(request),
            RouteKind.WAIT: lambda request, route: split.wait(request),
            RouteKind.END_TRAJECTORY: split.end_trajectory,
            RouteKind.END_STEP: lambda request, route: split.end_step(request),
            RouteKind.PAGE: lists.page,
            RouteKind.TABLE: lists.table,
            RouteKind.ITEM: lists.item,
            RouteKind.CHANGE_ALL: changes.change_all,
            RouteKind.CREATE_KEY: lambda request, route: changes.create_key(request),
            RouteKind.REVOKE_KEY: changes.revoke_key,
            RouteKind.NAMED: changes.change_named,
            RouteKind.ONE_CELL: self._one_cell,
            RouteKind.JOIN_NODE: self._join_node,
            RouteKind.ANY: self._any,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        route = match_route(request.method, scope["path"])
        scope["route"] = SimpleNamespace(path=route.template)
        try:
            response = await self._respond(request, route)
        except ClientDisconnect:
            response = Response(status_code=CLIENT_CLOSED)
        await response(scope, receive, send)

    async def _respond(self, request: Request, route: RouteMatch) -> Response:
        links = self._cells.links
        if (named := request.headers.get(CELL_HEADER)) is not None:
            link = links[self._cells.routing.parse_header(named)]
            return await forward(request, link, is_upstream=route.is_upstream)
        if len(links) == 1:
            return await forward(request, next(iter(links.values())), is_upstream=route.is_upstream)
        if not has_credentials(request) and route.kind is not RouteKind.JOIN_NODE:
            return await self._any(request, route)
        return await self._handlers[route.kind](request, route)

    async def _submit(self, request: Request, route: RouteMatch) -> Response:
        """Forward a new action, environment or score call to the cell that its body names."""
        body, value = await read_json(request)
        facts = RequestFacts()
        if value is not None:
            facts = self._body_facts(value, route, request.headers.get("idempotency-key") or None)
        return await forward(request, self._cells.choose(facts), body=body)

    def _body_facts(self, value: Any, route: RouteMatch, key: str | None) -> RequestFacts:
        if route.kind is RouteKind.ACTION:
            return action_facts(value, key=key)
        return environment_facts(value, key=key) if route.kind is RouteKind.ENVIRONMENT else score_facts(value)

    async def _compatible(self, request: Request, route: RouteMatch) -> Response:
        """Forward a request of another protocol to the cell of its trajectory, if it names one."""
        facts = compat_facts(route.params, request.query_params, request.headers, kind=COMPAT_KINDS[route.kind])
        if route.kind is not RouteKind.COMPAT_RUN or not facts.is_free:
            return await forward(request, self._cells.choose(facts), is_upstream=route.is_upstream)
        body = await request.body()
        repeated = sha256(request.headers.get("x-request-id", "").encode() + b"\n" + body).hexdigest()
        return await forward(request, self._cells.choose(RequestFacts(key=repeated)), body=body)

    async def _by_id(self, request: Request, route: RouteMatch) -> Response:
        """Forward a request for an action, an environment or a snapshot to its cell."""
        id = parse_id(route.params["id"])
        if id is None:
            return await self._any(request, route)
        name = route.params["list"].removesuffix("s")
        return await forward(request, self._cells.links[self._cells.routing.cell_of_id(id, name)])

    async def _any(self, request: Request, route: RouteMatch) -> Response:
        """Forward a request that any cell can serve."""
        return await forward(request, self._cells.next_link(), is_upstream=route.is_upstream)

    async def _one_cell(self, request: Request, route: RouteMatch) -> Response:
        """Refuse a request about one cell that does not name it."""
        raise self._changes.header_needed(f"{request.url.path} concerns one cell")

    async def _join_node(self, request: Request, route: RouteMatch) -> Response:
        """Refuse a node that wants to join through the router: the token belongs to one cell."""
        raise ValidationFailed(
            "a node joins at the address of the gateway of its cell, not at the router: give that address to"
            " `tangram node up --join`"
        )

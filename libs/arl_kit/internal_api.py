"""Routes between services: one pydantic body in, at most one out.

They belong to the service's app, so that its envelope and its problem responses apply to them too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from arl_kit.fast_route import FastRoute, serve_by_path
from arl_kit.http_server.body_streaming import RequestBodyDrainer
from arl_kit.http_server.takeover import can_take_over
from arl_kit.settings import ServiceSettings
from arl_wire.errors import BadRequest, Unauthenticated

__all__ = ["InternalApi", "JoinedCallers", "cancel_on_disconnect", "mount_internal_apis"]

RequestT = TypeVar("RequestT", bound=BaseModel)
ResponseT = TypeVar("ResponseT")


class JoinedCallers(Protocol):
    """The nodes with credentials of their own. The name of such a caller is its kind, an `@` and its credential id."""

    def key_of(self, caller: str) -> str | None:
        """Return the key of the caller's tokens for this receiver, or None if the name is not that of a node."""

    async def is_active(self, caller: str) -> bool:
        """Return True if the node still has its credentials."""


class InternalApi:
    """The routes of a service that only `callers` may use; each caller signs tokens with a separate key."""

    def __init__(
        self, settings: ServiceSettings, *callers: str, audience: str, joined: JoinedCallers | None = None
    ) -> None:
        """Create an API. `joined` admits nodes with credentials of their own; without it they are refused."""
        self._verifier = settings.token_verifier(audience, joined.key_of if joined is not None else None)
        self._allowed_callers = frozenset(callers)
        self._joined = joined
        self.routes: list[Route] = []

    def add_route(
        self,
        path: str,
        body: type[RequestT],
        handler: Callable[[RequestT], Coroutine[Any, Any, BaseModel | None]],
        *,
        long_poll: bool = False,
    ) -> None:
        """Add `POST path`: 200 with the model that `handler` returns, or 204 if it returns None.

        A `long_poll` handler is cancelled if its caller disconnects.
        """

        async def serve(asked: Any, caller: str, request: Request, response: Response) -> Response:
            """Run the handler and return its model as JSON."""
            answered = await (cancel_on_disconnect(request, handler(asked)) if long_poll else handler(asked))
            if answered is None:
                return Response(status_code=204)
            return Response(answered.model_dump_json(), media_type="application/json")

        self.routes.append(_HopRoute(path, serve, body, self._check_caller))

    def add_stream(self, path: str, handler: Callable[[Request], Awaitable[Response]]) -> None:
        """Add `POST path` with a streamed body and a streamed response."""

        async def checked(request: Request) -> Response:
            """Check the caller, then run the handler."""
            request.scope["route"] = route
            await self._check_caller(request)
            return await handler(request)

        route = Route(path, checked, methods=["POST"])
        route.app = RequestBodyDrainer(route.app)
        self.routes.append(route)

    def add_tunnel(self, path: str, handler: Callable[[Request], Awaitable[Response]]) -> None:
        """Add `GET path` with `Upgrade: tcp`, whose handler returns an `UpgradeResponse` or raises."""

        async def checked(request: Request) -> Response:
            """Check the caller and the offer, then run the handler."""
            request.scope["route"] = route
            await self._check_caller(request)
            if not can_take_over(request.scope):
                raise BadRequest("the request needs `Connection: upgrade` and `Upgrade: tcp`")
            return await handler(request)

        route = Route(path, checked, methods=["GET"])
        self.routes.append(route)

    async def _check_caller(self, request: Request) -> str:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        caller = self._verifier.caller_of(token) if scheme.lower() == "bearer" else None
        kind, at, _ = (caller or "").partition("@")
        if caller is None or kind not in self._allowed_callers:
            raise Unauthenticated("this route accepts only other services of this installation")
        if at and (self._joined is None or not await self._joined.is_active(caller)):
            raise Unauthenticated("this node was removed; join it again with a new token")
        return kind


class _HopRoute(FastRoute):
    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Awaitable[Response]],
        body: type[BaseModel],
        check: Callable[[Request], Awaitable[str]],
    ) -> None:
        self._body, self._check = body, check
        super().__init__(path, endpoint, methods=["POST"], response_model=None, include_in_schema=False)

    async def admit(self, request: Request, response: Response) -> str:
        """Return the calling service. Raises `Unauthenticated`."""
        return await self._check(request)

    def model(self) -> type[BaseModel]:
        """Return the class of the body."""
        return self._body


def mount_internal_apis(app: FastAPI, *apis: InternalApi) -> None:
    """Add the routes to the app. The framework answers requests with other methods."""
    routes = [route for each in apis for route in each.routes]
    app.router.routes.extend(routes)
    serve_by_path(app, routes)


async def cancel_on_disconnect(request: Request, pending: Awaitable[ResponseT]) -> ResponseT:
    """Return the result of `pending`; cancel it if the caller disconnects. The body must have been read.

    Raises `ClientDisconnect`.
    """
    asked, gone = asyncio.ensure_future(pending), asyncio.ensure_future(request.receive())
    # After the body, the only message is the caller's disconnect.
    gone.add_done_callback(lambda _: asked.cancel())
    try:
        return await asked
    except asyncio.CancelledError:
        if gone.done() and asked.cancelled():
            raise ClientDisconnect from None
        raise
    finally:
        gone.cancel()

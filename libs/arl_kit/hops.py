"""Routes between services: one pydantic body in, one or nothing out.

They are routes of the service's app, so that its envelope and its problems hold for them too, but a request finds them
by its path before the framework looks for a route: what lies between would be half of what a hop costs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel, ValidationError
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from arl_kit.app import validation_failed
from arl_kit.settings import ServiceSettings
from arl_kit.streamed import ReadToEnd
from arl_wire.errors import Unauthenticated

__all__ = ["Hops", "Serve", "mount", "shortcut", "unless_gone"]

Body = TypeVar("Body", bound=BaseModel)
Answer = TypeVar("Answer")
Serve = Callable[[Request], Awaitable[Response]]


class Hops:
    """What `callers` may ask of a service; each of them with its own token."""

    def __init__(self, settings: ServiceSettings, *callers: str) -> None:
        self._settings = settings
        self._callers = frozenset(callers)
        self.routes: list[Route] = []
        self.serving: dict[str, Serve] = {}
        """By path, of those whose body is read at once."""

    def add(
        self,
        path: str,
        body: type[Body],
        answer: Callable[[Body], Coroutine[Any, Any, BaseModel | None]],
        *,
        waits: bool = False,
    ) -> None:
        """`POST path`: 200 with what `answer` returns, or 204. One that `waits` ends when its caller goes away."""

        async def serve(request: Request) -> Response:
            request.scope["route"] = route
            self._check(request)
            try:
                asked = body.model_validate_json(await request.body())
            except ValidationError as error:
                found: list[Any] = error.errors(include_url=False, include_input=False)
                raise validation_failed(found) from None
            try:
                answered = await (unless_gone(request, answer(asked)) if waits else answer(asked))
            except ClientDisconnect:
                answered = None
            if answered is None:
                return Response(status_code=204)
            return Response(answered.model_dump_json(), media_type="application/json")

        route = Route(path, serve, methods=["POST"])
        self.routes.append(route)
        self.serving[path] = serve

    def add_stream(self, path: str, serve: Callable[[Request], Awaitable[Response]]) -> None:
        """`POST path` with a body, and an answer, that are too long to be held."""

        async def checked(request: Request) -> Response:
            request.scope["route"] = route
            self._check(request)
            return await serve(request)

        route = Route(path, checked, methods=["POST"])
        route.app = ReadToEnd(route.app)
        self.routes.append(route)

    def _check(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        caller = self._settings.caller_of(token) if scheme.lower() == "bearer" else None
        if caller not in self._callers:
            raise Unauthenticated("this route is for other services of this installation")


def mount(app: FastAPI, *hops: Hops) -> None:
    """Make them the app's. Whoever asks with another method is answered by the framework."""
    serving: dict[str, Serve] = {}
    for each in hops:
        app.router.routes.extend(each.routes)
        if twice := serving.keys() & each.serving.keys():
            raise ValueError(f"{', '.join(sorted(twice))}: there already, for other callers")
        serving |= each.serving
    shortcut(app, serving)


def shortcut(app: FastAPI, serving: Mapping[str, Serve]) -> None:
    """`POST` to one of these paths is served so, before a route is looked for; each says in its scope which it is."""
    # The last is the innermost: what the app wraps around its routes is around these.
    app.user_middleware.append(Middleware(_Shortcut, serving=serving, handlers=app.exception_handlers))


class _Shortcut:
    def __init__(self, app: ASGIApp, serving: Mapping[str, Serve], handlers: Mapping[Any, Any]) -> None:
        self._app = app
        self._serving = serving
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        serve = self._serving.get(scope["path"]) if is_post else None
        if serve is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await serve(request)
        except Exception as error:  # noqa: BLE001 - what has no answer of its own is raised again
            response = await self._answer_to(request, error)
            # One that many wait for is raised for each of them, and would remember them all.
            error.__traceback__ = None
        await response(scope, receive, send)

    async def _answer_to(self, request: Request, error: Exception) -> Response:
        """Raises what the outermost handler answers, as the framework does."""
        for cls in type(error).__mro__:
            if cls in self._handlers and cls is not Exception:
                response: Response = await self._handlers[cls](request, error)
                return response
        raise error


async def unless_gone(request: Request, answering: Awaitable[Answer]) -> Answer:
    """Raises `ClientDisconnect` where the caller goes away before the answer. The body has to be read."""
    asked, gone = asyncio.ensure_future(answering), asyncio.ensure_future(request.receive())
    # What comes after a body is that the caller went away.
    gone.add_done_callback(lambda _: asked.cancel())
    try:
        return await asked
    except asyncio.CancelledError:
        if gone.done() and asked.cancelled():
            raise ClientDisconnect from None
        raise
    finally:
        gone.cancel()

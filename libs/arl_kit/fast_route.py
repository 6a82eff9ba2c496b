"""JSON routes that FastAPI documents and does not run: no dependency resolution and no search for the route.

The reason is their cost. Measured on 2 cores, server CPU per request, FastAPI first: a request between services 0.11
and 0.06 ms, 47 % less (`python -m arl_bench.micro.fast_route`); `POST /v1/actions` in the gateway with its database
0.52 and 0.40 ms, 24 % less (medians of three interleaved runs of 3,000 no-ops, 8 at once).
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ValidationError
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from arl_kit.app import validation_failed
from arl_kit.optional_nulls import OptionalNullRoute, reduce_body

__all__ = ["NOBODY", "FastRoute", "serve_by_path"]

MAX_ERRORS = 1000
NOBODY = 499
"""Status in the metrics for a client that disconnected."""


class FastRoute(OptionalNullRoute):
    """A route whose endpoint takes `body`, a pydantic model, then `caller`, `request` and `response`.

    The caller is admitted before the body is read. Headers set on `response` are sent only if the endpoint copies them.
    """

    async def admit(self, request: Request, response: Response) -> Any:
        """Return the caller. Raise a `TangramError` if the caller may not use this route."""
        raise NotImplementedError

    @staticmethod
    async def prepare_body(content: bytes) -> bytes:
        """Return the bytes to parse for the bytes received."""
        return content

    def arguments(self, request: Request) -> Mapping[str, Any] | None:
        """Return further arguments of the endpoint, or None for a request that FastAPI has to read instead."""
        return {}

    def model(self) -> type[BaseModel]:
        """Return the class of the body."""
        found: type[BaseModel] = inspect.signature(self.endpoint).parameters["body"].annotation
        return found

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that FastAPI calls; it reads the body itself."""
        endpoint: Callable[..., Awaitable[Response]] = self.endpoint
        resolved, model = super().get_route_handler(), self.model()

        async def handle(request: Request) -> Response:
            """Admit the caller, read the body and run the endpoint."""
            arguments = self.arguments(request)
            if arguments is None:
                return await resolved(request)
            response = Response()
            del response.headers["content-length"]  # the endpoint's response has its own length
            try:
                caller = await self.admit(request, response)
                body = await _read(model, await self.prepare_body(await request.body()))
                return await endpoint(body, caller, request, response, **arguments)
            except ClientDisconnect:
                return Response(status_code=NOBODY)

        return handle


def serve_by_path(app: FastAPI, routes: Iterable[BaseRoute]) -> None:
    """Serve `POST` to `FastRoute`s without path parameters before the framework searches its routes.

    Raises ValueError if two of them have the same path.
    """
    fast: dict[str, FastRoute] = {}
    for route in routes:
        if isinstance(route, FastRoute) and route.methods == {"POST"} and "{" not in route.path:
            if route.path in fast:
                raise ValueError(f"{route.path}: several fast routes have this path; give each its own")
            fast[route.path] = route
    # The last middleware is the innermost, so the app's other middleware also wraps fast routes.
    app.user_middleware.append(Middleware(_FastPaths, routes=fast, handlers=app.exception_handlers))


async def _read(model: type[BaseModel], content: bytes) -> BaseModel:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        found = _errors_of(error)
    if found[0]["type"] == "json_invalid":
        found = _errors_by_field(model, content) or found
    elif (reduced := await reduce_body(model, content)) is not None:
        # After a failure only: a validator that ignores null would take a quarter of the time of the validation.
        try:
            return model.model_validate_json(reduced)
        except ValidationError as error:
            found = _errors_of(error)
    raise validation_failed(found)


def _errors_by_field(model: type[BaseModel], content: bytes) -> list[Any]:
    """Return the field errors of JSON that pydantic's parser rejects as a whole, such as half of a surrogate pair."""
    try:
        model.model_validate(json.loads(content))
    except ValidationError as error:
        return _errors_of(error)
    except (ValueError, RecursionError):
        pass
    return []


def _errors_of(error: ValidationError) -> list[Any]:
    if (count := error.error_count()) > MAX_ERRORS:
        # Each error takes a kilobyte and 5 µs; a client cannot read so many.
        return [
            {"type": "too_many_errors", "loc": (), "msg": f"has {count} invalid values: check the types of its lists"}
        ]
    return error.errors(include_url=False, include_input=False)


class _FastPaths:
    """The middleware that serves fast routes by their path and passes on other requests."""

    def __init__(self, app: ASGIApp, routes: Mapping[str, FastRoute], handlers: Mapping[Any, Any]) -> None:
        self._app = app
        self._routes = {path: (route, route.get_route_handler()) for path, route in routes.items()}
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        found = self._routes.get(scope["path"]) if is_post else None
        if found is None:
            await self._app(scope, receive, send)
            return
        route, handle = found
        request = Request(scope, receive, send)
        if route.arguments(request) is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        try:
            response = await handle(request)
        except Exception as error:  # noqa: BLE001 - an error without a handler is raised again
            response = await self._answer_to(request, error)
            # An error that many requests wait for is raised in each of them. Its traceback would reference all of them.
            error.__traceback__ = None
        await response(scope, receive, send)

    async def _answer_to(self, request: Request, error: Exception) -> Response:
        """Return the response of the registered handler. Raises errors that belong to the outermost handler."""
        for cls in type(error).__mro__:
            if cls in self._handlers and cls is not Exception:
                response: Response = await self._handlers[cls](request, error)
                return response
        raise error

"""Routes that are called once for each score: a body in, an answer out, and none of FastAPI's resolving in between."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from arl_gateway.routes import caller_of
from arl_kit.app import json_only, validation_failed
from arl_kit.hops import Serve

__all__ = ["CalledRoute", "called"]

NOBODY = 499
"""For the figures alone: the client went away."""


class CalledRoute(APIRoute):
    """Its endpoint takes `body`, a model, `caller`, `request` and `response`; FastAPI only documents it.

    The key first, then the type of the body, then the body, as everywhere else. `response` has the headers that go
    with the answer.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[..., Awaitable[Response]] = self.endpoint
        model: type[BaseModel] = inspect.signature(endpoint).parameters["body"].annotation

        async def handle(request: Request) -> Response:
            response = Response()
            del response.headers["content-length"]  # of that which is answered, and this is not
            caller = await caller_of(request, response)
            caller.must("actions:write")
            await json_only(request)
            try:
                content = await self.readable(await request.body())
                return await endpoint(_read(model, content), caller, request, response)
            except ClientDisconnect:
                return Response(status_code=NOBODY)

        return handle

    @staticmethod
    async def readable(content: bytes) -> bytes:
        """What is read of a body."""
        return content

    def serving(self) -> Serve:
        """What answers a request to exactly its path, without the framework."""
        handle = self.get_route_handler()

        async def serve(request: Request) -> Response:
            request.scope["route"] = self
            return await handle(request)

        return serve


def called(routers: Iterable[APIRouter]) -> dict[str, Serve]:
    """By path, of all of these routes that have one without parameters."""
    routes = [route for router in routers for route in router.routes if isinstance(route, CalledRoute)]
    return {route.path: route.serving() for route in routes if route.methods == {"POST"} and "{" not in route.path}


def _read(model: type[BaseModel], content: bytes) -> BaseModel:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        found: list[Any] = error.errors(include_url=False, include_input=False)
        raise validation_failed(found) from None

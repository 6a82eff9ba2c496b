"""Routes of ports of environments: by path with an API key, and by signed URL. E2B's hosts have their own module."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from arl_gateway.compat.e2b.access import PORT_HOSTS_PREFIX
from arl_gateway.deps import gateway_deps
from arl_gateway.http.auth import Caller
from arl_gateway.http.dependencies import (
    BODY_ERRORS,
    COMMON_ERRORS,
    JSON_BODY,
    EnvironmentsDep,
    Writer,
    authenticate_request,
)
from arl_gateway.ports import queries
from arl_gateway.ports.forwarding import PortTarget
from arl_gateway.ports.relayed_headers import PortAddress
from arl_gateway.ports.signed_urls import SIGNED_PREFIX, PortGrant
from arl_kit.app import error_responses
from arl_kit.fast_route import NOBODY
from arl_kit.optional_nulls import OptionalNullRoute
from arl_wire.environments.environment import SignedPort, SignPortRequest
from arl_wire.errors import Conflict, FieldError, NotFound, Unauthenticated, ValidationFailed

__all__ = ["PORT_PATHS", "PORT_ROUTES", "PortEndpoint", "parse_port", "router", "target_after"]

PORT_PATHS = rf"/v1/environments/[^/]+/ports/[^/:]+(/|$)|{SIGNED_PREFIX}|{PORT_HOSTS_PREFIX}"
"""Paths whose bodies are for servers inside environments. The gateway does not read them."""
MAX_PORT = 65535

router = APIRouter(prefix="/v1/environments", tags=["environments"], route_class=OptionalNullRoute)


@router.post(
    "/{id}/ports/{port}:sign",
    operation_id="sign_port",
    summary="Sign the URL of a port",
    dependencies=JSON_BODY,
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, NotFound, Conflict),
)
async def sign_port(
    id: UUID,
    port: Annotated[int, Path(ge=1, le=MAX_PORT, description="Port on which a server inside listens")],
    body: SignPortRequest,
    caller: Writer,
    environments: EnvironmentsDep,
    request: Request,
) -> SignedPort:
    """Return a URL by which clients without an API key reach a server that listens on a port of the environment.

    Requests count as requests of the key that signed the URL. Returns 404 for an unknown environment, and 409 if it is
    not alive.
    """
    await environments.require_live(id, caller)
    deps = gateway_deps(request)
    expires_at = deps.port_urls.now() + body.lifetime_s
    grant = PortGrant(environment=id, port=port, key_id=caller.key_id, expires_at=expires_at)
    return SignedPort(
        path=f"{SIGNED_PREFIX}{deps.port_urls.sign(grant)}/", expires_at=datetime.fromtimestamp(expires_at, UTC)
    )


class PortEndpoint:
    """An ASGI application for all methods of a route, with their bodies streamed."""

    def __init__(self, handler: Callable[[Request], Awaitable[Response]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._handler(Request(scope, receive, send))
        except ClientDisconnect:
            response = Response(status_code=NOBODY)
        await response(scope, receive, send)


def parse_port(text: str) -> int:
    """Return the number of a port. Raises ValidationFailed."""
    if text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= MAX_PORT:
        return int(text)
    message = f"must be a number from 1 to {MAX_PORT}"
    raise ValidationFailed(f"path.port {message}", errors=[FieldError(field="path.port", message=message)])


def target_after(scope: Scope, segments: int) -> tuple[bytes, bytes]:
    """Return the first segments of the undecoded path, and the rest of it with the query."""
    parts = scope["raw_path"].split(b"/", segments + 1)
    query = scope["query_string"]
    target = b"/" + (parts[segments + 1] if len(parts) > segments + 1 else b"") + (b"?" + query if query else b"")
    return b"/".join(parts[: segments + 1]), target


async def _forward_with_key(request: Request) -> Response:
    """Forward a request that has an API key with `actions:write`."""
    caller = await authenticate_request(request, Response())
    caller.require_scope("actions:write")
    port = parse_port(request.path_params["port"])
    return await _forward(request, caller, _parse_id(request.path_params["id"]), port, segments=5, is_keyed=True)


async def _forward_signed(request: Request) -> Response:
    """Forward a request with a signed URL."""
    deps = gateway_deps(request)
    grant = deps.port_urls.verify(request.path_params["token"])
    row = None
    if grant is not None:
        async with deps.store.read() as tx:
            row = await queries.find_key(tx, grant.key_id)
    if grant is None or row is None:
        raise Unauthenticated("the signed URL is wrong or has expired, or its key was revoked: sign a new one")
    caller = Caller(row.id, row.project_id, row.project, frozenset(row.scopes))
    deps.rate_limiter.acquire(caller.key_id)
    caller.require_scope("actions:write")
    return await _forward(request, caller, grant.environment, grant.port, segments=3, is_keyed=False)


async def _forward(request: Request, caller: Caller, id: UUID, port: int, *, segments: int, is_keyed: bool) -> Response:
    deps = gateway_deps(request)
    prefix, target = target_after(request.scope, segments)
    row = await deps.environments.require_live(id, caller)
    address = PortAddress(port=port, prefix=prefix, is_keyed=is_keyed)
    return await deps.port_forwarder.forward(
        request, PortTarget(environment=row, port=port, caller=caller, target=target, address=address)
    )


def _parse_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        message = "must be the id of an environment"
        raise ValidationFailed(f"path.id {message}", errors=[FieldError(field="path.id", message=message)]) from None


_BY_KEY, _SIGNED = PortEndpoint(_forward_with_key), PortEndpoint(_forward_signed)
PORT_ROUTES = [
    Route("/v1/environments/{id}/ports/{port:name}", _BY_KEY),
    Route("/v1/environments/{id}/ports/{port:name}/{rest:path}", _BY_KEY),
    Route(SIGNED_PREFIX + "{token}", _SIGNED),
    Route(SIGNED_PREFIX + "{token}/{rest:path}", _SIGNED),
]

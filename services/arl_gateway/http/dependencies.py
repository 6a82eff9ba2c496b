"""Dependencies that routes share: authentication, scopes, parameters, responses."""

from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from arl_gateway.actions.service import ActionService, RequestTrace
from arl_gateway.deps import gateway_deps
from arl_gateway.environments.service import EnvironmentService
from arl_gateway.http.auth import ROOT_PROJECT, Caller
from arl_gateway.http.key_check import authenticated_caller
from arl_kit.app import require_json
from arl_kit.fast_route import FastRoute
from arl_kit.telemetry import current_traceparent
from arl_kit.telemetry.propagation import remote_tracestate
from arl_trace.history import GATEWAY_TRACESTATE
from arl_wire.errors import (
    BadRequest,
    DatabaseDiskFull,
    Forbidden,
    Internal,
    RateLimited,
    RequestTimeout,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    ValidationFailed,
)

API_KEY = HTTPBearer(
    auto_error=False,
    scheme_name="ApiKey",
    description="API key `tk_…`. `tangram up` creates the first one; `POST /v1/admin/keys` creates further ones",
)
COMMON_ERRORS = (
    Unauthenticated,
    Forbidden,
    ValidationFailed,
    RateLimited,
    Internal,
    Unavailable,
    DatabaseDiskFull,
)
RATE_HEADERS_KEY = "tangram.rate_headers"
"""Key of a request's scope: the rate limit headers of a request that was counted."""
BODY_ERRORS = (BadRequest, TooLarge, RequestTimeout, UnsupportedMediaType)


async def authenticate_request(request: Request, response: Response) -> Caller:
    """Authenticate a request and count it once against the key's rate limit, even if its body is validated twice."""
    caller = await authenticated_caller(request)
    rate_headers = request.scope.get(RATE_HEADERS_KEY)
    if rate_headers is None:
        rate_headers = request.scope[RATE_HEADERS_KEY] = gateway_deps(request).rate_limiter.acquire(caller.key_id)
    response.headers.update(rate_headers)
    return caller


async def _caller(
    request: Request,
    response: Response,
    _documented: Annotated[HTTPAuthorizationCredentials | None, Security(API_KEY)],
) -> Caller:
    return await authenticate_request(request, response)


async def _reader(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require_scope("actions:read")
    return caller


async def _writer(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require_scope("actions:write")
    return caller


async def _admin_reader(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require_scope("admin:read")
    return caller


async def require_root_read(caller: Annotated[Caller, Depends(_admin_reader)]) -> Caller:
    """Return the caller if its key has `admin:read` in the root project. Raises `Forbidden`."""
    if not caller.is_root:
        raise Forbidden(f"the answer covers all projects: use a key of project `{ROOT_PROJECT}`")
    return caller


async def _admin_writer(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require_scope("admin:write")
    return caller


async def _json_body(request: Request, caller: Annotated[Caller, Depends(_caller)]) -> None:
    """Check the content type after the key, so that callers without a key learn nothing else."""
    await require_json(request)


class WriterRoute(FastRoute):
    """A `FastRoute` for keys with `actions:write`; the type of the body is checked after the key."""

    async def admit(self, request: Request, response: Response) -> Caller:
        """Return the caller if its key has `actions:write` and the body is JSON."""
        caller = await authenticate_request(request, response)
        caller.require_scope("actions:write")
        await require_json(request)
        return caller


async def _actions(request: Request) -> ActionService:
    return gateway_deps(request).actions


async def _environments(request: Request) -> EnvironmentService:
    return gateway_deps(request).environments


def model_response(body: BaseModel, response: Response, status: int = 200) -> Response:
    """Return a response serialized by pydantic, with the headers set by dependencies. Used on the hot paths."""
    content = body.model_dump_json(exclude_none=True)
    return Response(content, status, dict(response.headers), media_type="application/json")


def request_trace(request: Request) -> RequestTrace:
    """Return the client's trace context, or the one that was made for this request."""
    tracestate = remote_tracestate()
    return RequestTrace(current_traceparent.get(), GATEWAY_TRACESTATE if tracestate is None else tracestate or None)


JSON_BODY = [Depends(_json_body)]
Reader = Annotated[Caller, Depends(_reader)]
Writer = Annotated[Caller, Depends(_writer)]
Admin = Annotated[Caller, Depends(_admin_reader)]
RootAdmin = Annotated[Caller, Depends(require_root_read)]
AdminWriter = Annotated[Caller, Depends(_admin_writer)]
ActionsDep = Annotated[ActionService, Depends(_actions)]
EnvironmentsDep = Annotated[EnvironmentService, Depends(_environments)]
MAX_WAIT_S = 55
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Maximum seconds to wait for the outcome")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Unique name of the request. Repeating the request within 24 hours with the same key has no"
        " further effect",
    ),
]
IfNoneMatch = Annotated[
    str | None, Header(alias="If-None-Match", description="Entity tags of the versions that the client already has")
]
ETAG_HEADER: dict[str, Any] = {
    "ETag": {"description": "Entity tag of this version of the action", "schema": {"type": "string"}}
}

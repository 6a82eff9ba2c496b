"""`/endpoints/{name}/…`: the base URL for clients of an endpoint's API."""

import re
from base64 import b64decode, b64encode
from typing import Any
from urllib.parse import unquote_plus

from fastapi import APIRouter, Request, Response
from pydantic import Field, ValidationError
from starlette.requests import ClientDisconnect

from arl_gateway.compat.blocking_score import ACTION_HEADER
from arl_gateway.compat.openai.errors import OpenAiErrorRoute
from arl_gateway.compat.target import RolloutRef, parse_target
from arl_gateway.deps import gateway_deps
from arl_gateway.endpoints.upstream_proxy import UpstreamProxy
from arl_gateway.http.dependencies import COMMON_ERRORS, Writer, request_trace
from arl_kit.app import error_responses, validation_failed
from arl_kit.fast_route import NOBODY
from arl_kit.internal_api import cancel_on_disconnect
from arl_wire.actions.action import Action, Name, SubmitActionRequest
from arl_wire.calls import (
    CONNECTION_HEADERS,
    CREDENTIAL_HEADERS,
    GATEWAY_KEY,
    METHOD_OVERRIDE_HEADERS,
    CallResponse,
    EndpointName,
)
from arl_wire.errors import EndpointNotFound, GatewayTimeout, TooLarge

__all__ = ["router"]

router = APIRouter(tags=["compatibility"], route_class=OpenAiErrorRoute)

OUTCOME_HEADER = "tangram-outcome"
BLOCKED_PREFIXES = ("tangram-", "x-forwarded-", "sec-", "trace", "access-control-")
"""Prefixes of request headers that are not forwarded."""
BLOCKED_HEADERS = CONNECTION_HEADERS | METHOD_OVERRIDE_HEADERS | {"user-agent", "forwarded", "via", "origin", "referer"}
SENDABLE_VALUE = re.compile(r"[\t\x20-\x7e]{0,8192}")
MAX_HEADERS = 64
KEY_PARAMETERS = frozenset({"api_key", "api-key", "apikey", "access_token", "subscription-key"})
"""Parameters with which clients send keys. They contain a gateway key or a placeholder, so they are not forwarded."""
FORWARDED_HEADERS = re.compile(
    r"content-(type|language|disposition)|cache-control|etag|last-modified|expires|vary|retry-after|link|server-timing"
    r"|request-id|ratelimit.*|x-(?!accel|sendfile|lighttpd|reproxy).*|openai-.*|anthropic-.*|apim-.*|cf-ray"
)
"""Response headers that are forwarded. Others could redirect our key or make claims about this server."""


class UpstreamParams(RolloutRef):
    """Parameters of a proxied request, from headers `tangram-…`. Times are in seconds."""

    task: Name = "call"
    timeout_s: float = Field(default=300, gt=0, le=3600, allow_inf_nan=False)
    deadline_s: float = Field(default=600, gt=0, le=3600, allow_inf_nan=False)


async def proxy_request(endpoint: EndpointName, caller: Writer, request: Request, path: str = "") -> Response:
    """Forward a request to an endpoint and return its response.

    Each request is an action, which is cancelled if the client disconnects. The key is a gateway key, in
    `Authorization: Bearer` or `x-api-key`. The path prefix `/t/{task}` sets the task; headers `tangram-…` set `task`,
    `trajectory`, `step`, `timeout_s` and `deadline_s`. The response is sent when it is complete, even if it is a
    stream.

    A response without the header `tangram-action` is an error of the gateway; all others are the endpoint's. If the
    outcome is not `ok`, `tangram-outcome` contains it. Redirections return 503, so that no client sends its gateway key
    elsewhere.
    """
    asked = parse_target(request, UpstreamParams, in_query=False)
    action = _build_action(endpoint, await _upstream_request(path, request), asked)
    going: UpstreamProxy = gateway_deps(request).upstream_proxy
    try:
        settled = await cancel_on_disconnect(request, going.call(action, caller, request_trace(request)))
    except ClientDisconnect:
        return Response(status_code=NOBODY)
    return _client_response(settled, is_head=request.method == "HEAD")


for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
    for place in ("/endpoints/{endpoint}/{path:path}", "/endpoints/{endpoint}"):
        router.add_api_route(
            place,
            proxy_request,
            methods=[method],
            operation_id=f"proxy_{method.lower()}{'' if 'path' in place else '_root'}",
            summary=f"Forward a {method} request",
            responses=error_responses(*COMMON_ERRORS, EndpointNotFound, TooLarge, GatewayTimeout),
        )


async def _upstream_request(path: str, request: Request) -> dict[str, Any]:
    """Return the request. Path and query stay encoded, because decoding here would decode them twice."""
    before = request.scope.get("root_path", "").count("/") + len(("", "endpoints", "name"))
    raw = "/".join(request.scope["raw_path"].decode("latin-1").split("/")[before:])
    headers = {name: value for name, value in request.headers.items() if _is_forwarded(name, value)}
    query = request.scope["query_string"].decode("latin-1").split("&")
    return {
        "method": request.method,
        "path": raw if path else "",
        "raw_query": "&".join(part for part in query if _is_plain_parameter(part)),
        "headers": dict(list(headers.items())[:MAX_HEADERS]),
        **_body(await request.body()),
    }


def _build_action(endpoint: str, request: dict[str, Any], params: UpstreamParams) -> SubmitActionRequest:
    said = params.model_dump(exclude_none=True)
    try:
        return SubmitActionRequest.model_validate({**said, "kind": "call", "endpoint": endpoint, "request": request})
    except ValidationError as error:
        wrong: list[Any] = error.errors(include_url=False, include_input=False)
        raise validation_failed(wrong) from None


def _body(content: bytes) -> dict[str, str]:
    if not content:
        return {}
    try:
        return {"body": content.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(content).decode()}


def _is_forwarded(name: str, value: str) -> bool:
    ours = name in BLOCKED_HEADERS or name.startswith(BLOCKED_PREFIXES) or CREDENTIAL_HEADERS.search(name)
    return not ours and SENDABLE_VALUE.fullmatch(value) is not None and GATEWAY_KEY.search(value) is None


def _is_plain_parameter(part: str) -> bool:
    name, _, value = part.partition("=")
    return unquote_plus(name).lower() not in KEY_PARAMETERS and GATEWAY_KEY.search(unquote_plus(value)) is None


def _client_response(action: Action, *, is_head: bool) -> Response:
    response = action.result.response if action.result is not None else None
    if response is None:
        raise LookupError(f"action {action.id} has no response")
    headers = {name: value for name, value in response.headers.items() if FORWARDED_HEADERS.fullmatch(name)}
    headers[ACTION_HEADER] = str(action.id)
    if action.outcome is not None and action.outcome != "ok":
        headers[OUTCOME_HEADER] = f"{action.outcome}; {action.reason}" if action.reason else str(action.outcome)
    answer = Response(_content(response), status_code=response.status, headers=headers)
    if is_head:  # the length of the omitted body is unknown here
        del answer.headers["content-length"]
    return answer


def _content(response: CallResponse) -> bytes:
    """Return the body of the response. Raises `TooLarge` if it was truncated."""
    body = response.body
    content = b64decode(body.base64) if body.base64 is not None else body.text.encode()
    if body.truncated:
        kept = f"the response of the endpoint has {body.total_bytes} bytes, but only {len(content)} are stored"
        raise TooLarge(f"{kept}; the operator of the endpoint can raise `max_body_kib`")
    return content

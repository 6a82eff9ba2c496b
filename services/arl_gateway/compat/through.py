"""`/endpoints/{name}/…`: the address that a client of an endpoint's API is given."""

from base64 import b64decode
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, ValidationError
from starlette.requests import ClientDisconnect

from arl_gateway.called import NOBODY
from arl_gateway.compat.places import Whose, said_by
from arl_gateway.routes import ANY, Writer, trace_of
from arl_gateway.through import Through
from arl_kit.app import documented, validation_failed
from arl_kit.hops import unless_gone
from arl_wire.actions import Action, Name, SubmitAction
from arl_wire.calls import OF_THE_CONNECTION, SECRET, EndpointName
from arl_wire.errors import EndpointUnknown, FieldError, GatewayTimeout, TooLarge, ValidationFailed

__all__ = ["router"]

router = APIRouter(tags=["compatibility"])

ACTION = "tangram-action"
OUTCOME = "tangram-outcome"
OURS = ("tangram-", "x-forwarded-", "sec-", "trace")
"""What headers begin with that are not for the endpoint."""
NOT_FOR_IT = OF_THE_CONNECTION | SECRET | {"user-agent", "forwarded", "via", "origin", "referer"}
NOT_FOR_THEM = OF_THE_CONNECTION | {"content-encoding", "date", "server"}
"""Of an answer: it comes from here, and unpacked."""


class _AskedOf(Whose):
    task: Name = "call"
    timeout_s: float = Field(default=300, gt=0, le=3600, allow_inf_nan=False)
    deadline_s: float | None = Field(default=None, gt=0, le=3600, allow_inf_nan=False)


async def through(endpoint: EndpointName, path: str, caller: Writer, request: Request) -> Response:
    """Send a request to an endpoint, and answer what it answers; one try is an action, which ends with the connection.

    The key is one of ours, in `Authorization: Bearer` or `x-api-key`. With `/t/{task}` before it the address says the
    task; in headers `tangram-…`: `task`, `trajectory`, `step`, `timeout_s` and `deadline_s`. An answer comes when it is
    whole, streams too. 503 and 504 with a problem are ours, all else is the endpoint's, with `tangram-outcome` where
    it is no `ok`.
    """
    asked = said_by(request, _AskedOf, in_query=False)
    action = _action(endpoint, await _request(path, request), asked)
    going: Through = request.app.state.through
    try:
        settled = await unless_gone(request, going.answered(action, caller, trace_of(request)))
    except ClientDisconnect:
        return Response(status_code=NOBODY)
    return _answer(settled)


for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
    router.add_api_route(
        "/endpoints/{endpoint}/{path:path}",
        through,
        methods=[method],
        operation_id=f"through_{method.lower()}",
        responses=documented(*ANY, EndpointUnknown, TooLarge, GatewayTimeout),
    )


async def _request(path: str, request: Request) -> dict[str, Any]:
    """The path as it was sent: what is decoded once would be decoded once more."""
    before = request.scope.get("root_path", "").count("/") + len(("", "endpoints", "name"))
    raw = "/".join(request.scope["raw_path"].decode("latin-1").split("/")[before:])
    query: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        query.setdefault(name, []).append(value)
    return {
        "method": request.method,
        "path": raw if path else "",
        "query": query,
        "headers": {name: value for name, value in request.headers.items() if _is_for_it(name)},
        "body": _text(await request.body()) or None,
    }


def _action(endpoint: str, request: dict[str, Any], asked: _AskedOf) -> SubmitAction:
    said = asked.model_dump(exclude_none=True)
    try:
        return SubmitAction.model_validate({**said, "kind": "call", "endpoint": endpoint, "request": request})
    except ValidationError as error:
        wrong: list[Any] = error.errors(include_url=False, include_input=False)
        raise validation_failed(wrong) from None


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        message = "is not UTF-8; only text goes through"
        raise ValidationFailed(f"body: {message}", errors=[FieldError(field="body", message=message)]) from None


def _is_for_it(name: str) -> bool:
    return name not in NOT_FOR_IT and not name.startswith(OURS)


def _answer(action: Action) -> Response:
    response = action.result.response if action.result is not None else None
    if response is None:
        raise LookupError(f"{action.id} has no answer")
    body = response.body
    content = b64decode(body.base64) if body.base64 is not None else body.text.encode()
    if body.truncated:
        message = f"the endpoint's answer has {body.total_bytes} bytes, of which {len(content)} are kept"
        raise TooLarge(message)
    headers = {name: value for name, value in response.headers.items() if name not in NOT_FOR_THEM}
    headers[ACTION] = str(action.id)
    if action.outcome is not None and action.outcome != "ok":
        headers[OUTCOME] = f"{action.outcome}; {action.reason}" if action.reason else str(action.outcome)
    return Response(content, status_code=response.status, headers=headers)

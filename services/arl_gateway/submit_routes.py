"""Submitting one action: the route that a client takes for each action that it waits for."""

import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from arl_core.states import State
from arl_gateway.auth import Caller
from arl_gateway.environments import Environments
from arl_gateway.routes import (
    ANY,
    BODY,
    JSON_BODY,
    MAX_WAIT_S,
    IdempotencyKey,
    Wait,
    Writer,
    caller_of,
    trace_of,
    written,
)
from arl_kit.app import documented
from arl_wire.actions import Action, SubmitAction
from arl_wire.errors import (
    Conflict,
    DemandImpossible,
    IdempotencyKeyReused,
    NotFound,
    QueueFull,
    RequirementNotEnforced,
    ServiceUnknown,
    TangramError,
    TemplateUnknown,
)

__all__ = ["SUBMIT", "router"]

SUBMIT = (
    *BODY,
    NotFound,
    Conflict,
    QueueFull,
    IdempotencyKeyReused,
    DemandImpossible,
    RequirementNotEnforced,
    TemplateUnknown,
    ServiceUnknown,
)
LOCATION: dict[str, Any] = {"Location": {"description": "Path of the action", "schema": {"type": "string"}}}
_PLAIN_QUERY = re.compile(rb"(?:wait=(\d{1,2}(?:\.\d{1,9})?))?")


class _Submission(APIRoute):
    """Answers what is well formed without FastAPI's resolving of dependencies: a quarter less CPU time a submission.

    Whatever is not takes FastAPI's way from its beginning, so that a refusal is the same everywhere.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()

        async def handle(request: Request) -> Response:
            wait_s = _plain_wait_s(request)
            if wait_s is None:
                return await usual(request)
            try:
                body = SubmitAction.model_validate_json(await request.body())
            except (ValidationError, ClientDisconnect):
                return await usual(request)
            response = Response()
            del response.headers["content-length"]  # it is for headers only
            caller = await caller_of(request, response)
            caller.must("actions:write")
            return await _submit(body, caller, request, response, wait_s, request.headers.get("idempotency-key"))

        return handle


router = APIRouter(prefix="/v1", tags=["actions"], route_class=_Submission)


@router.post(
    "/actions",
    operation_id="submit_action",
    dependencies=JSON_BODY,
    status_code=202,
    response_model=Action,
    responses={
        200: {"model": Action, "description": "Settled while waiting", "headers": LOCATION},
        202: {"description": "Durable, and not settled yet", "headers": LOCATION},
        **documented(*ANY, *SUBMIT),
    },
)
async def submit_action(
    body: SubmitAction,
    caller: Writer,
    request: Request,
    response: Response,
    wait: Wait = 0,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Accept an action, durably. With `wait`, answer 200 with its outcome if it settles in time."""
    return await _submit(body, caller, request, response, wait, idempotency_key)


async def _submit(
    body: SubmitAction, caller: Caller, request: Request, response: Response, wait_s: float, key: str | None
) -> Response:
    environments: Environments = request.app.state.environments
    (named,) = await environments.named([body], caller, key=key)
    if isinstance(named, TangramError):
        raise named
    trace = trace_of(request)
    action = await request.app.state.actions.submit(named, caller, key=key, trace=trace, wait_s=wait_s)
    response.headers["location"] = f"/v1/actions/{action.id}"
    return written(action, response, 200 if action.state is State.SETTLED else 202)


def _plain_wait_s(request: Request) -> float | None:
    """Of a request for JSON to be read with nothing in its query but `wait`; None of any other."""
    query = _PLAIN_QUERY.fullmatch(request.scope["query_string"])
    if query is None or request.headers.get("content-type") != "application/json":
        return None
    wait_s = float(query[1] or 0)
    return wait_s if wait_s <= MAX_WAIT_S else None

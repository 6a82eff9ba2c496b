"""The route that submits one action; clients call it once per action."""

import re
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from arl_core.domain.states import ActionState
from arl_gateway.deps import gateway_deps
from arl_gateway.environments.service import EnvironmentService
from arl_gateway.http.dependencies import (
    BODY_ERRORS,
    COMMON_ERRORS,
    JSON_BODY,
    MAX_WAIT_S,
    IdempotencyKey,
    Wait,
    Writer,
    WriterRoute,
    model_response,
    request_trace,
)
from arl_kit.app import error_responses
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.errors import (
    Conflict,
    DemandImpossible,
    IdempotencyKeyReused,
    NotFound,
    QueueFull,
    RequirementNotEnforced,
    RewardServiceNotFound,
    TangramError,
    TemplateNotFound,
)

__all__ = ["SUBMIT_ERRORS", "router"]

SUBMIT_ERRORS = (
    *BODY_ERRORS,
    NotFound,
    Conflict,
    QueueFull,
    IdempotencyKeyReused,
    DemandImpossible,
    RequirementNotEnforced,
    TemplateNotFound,
    RewardServiceNotFound,
)
LOCATION_HEADER: dict[str, Any] = {"Location": {"description": "Path of the action", "schema": {"type": "string"}}}
_SIMPLE_QUERY = re.compile(rb"(?:wait=(\d{1,2}(?:\.\d{1,9})?))?")


class _SubmitRoute(WriterRoute):
    """A fast path for queries that contain only `wait`. FastAPI parses and validates all other queries."""

    def arguments(self, request: Request) -> Mapping[str, Any] | None:
        """Return the parameters of a request on the fast path, or None if FastAPI must parse its query."""
        query = _SIMPLE_QUERY.fullmatch(request.scope["query_string"])
        wait_s = float(query[1] or 0) if query is not None else None
        if wait_s is None or wait_s > MAX_WAIT_S:
            return None
        return {"wait": wait_s, "idempotency_key": request.headers.get("idempotency-key")}


router = APIRouter(prefix="/v1", tags=["actions"], route_class=_SubmitRoute)


@router.post(
    "/actions",
    operation_id="submit_action",
    summary="Submit an action",
    dependencies=JSON_BODY,
    status_code=202,
    response_model=Action,
    responses={
        200: {"model": Action, "description": "The action settled within `wait`", "headers": LOCATION_HEADER},
        202: {"description": "The action is durable and has not settled yet", "headers": LOCATION_HEADER},
        **error_responses(*COMMON_ERRORS, *SUBMIT_ERRORS),
    },
)
async def submit_action(
    body: SubmitActionRequest,
    caller: Writer,
    request: Request,
    response: Response,
    wait: Wait = 0,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Submit an action durably.

    With `wait`, the response is 200 with the outcome if the action settles in time, and 202 otherwise. A repeated
    request with the same `Idempotency-Key` returns the same action. Returns 422 if no node can ever run the action, and
    429 while the queue of its task is full.
    """
    environments: EnvironmentService = gateway_deps(request).environments
    (named,) = await environments.resolve_references([body], caller, key=idempotency_key)
    if isinstance(named, TangramError):
        raise named
    trace = request_trace(request)
    action = await gateway_deps(request).actions.submit(named, caller, key=idempotency_key, trace=trace, wait_s=wait)
    response.headers["location"] = f"/v1/actions/{action.id}"
    return model_response(action, response, 200 if action.state is ActionState.SETTLED else 202)

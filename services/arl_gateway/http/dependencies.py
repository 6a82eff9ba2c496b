"""The public API. A route parses, calls and returns."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from arl_core.domain.states import ActionState
from arl_gateway.actions.batch import ActionBatchRequest
from arl_gateway.actions.service import ActionService, RequestTrace, matches_etag
from arl_gateway.actions.views import action_etag
from arl_gateway.admin.keys import ROOT_PROJECT, KeyAdmin
from arl_gateway.admin.queues import QueueAdmin
from arl_gateway.environments.service import EnvironmentService
from arl_gateway.http.auth import Caller
from arl_kit.app import error_responses, require_json
from arl_kit.fast_route import FastRoute
from arl_kit.telemetry import current_traceparent
from arl_kit.telemetry.propagation import remote_tracestate
from arl_trace.history import GATEWAY_TRACESTATE
from arl_wire.actions.action import (
    Action,
    ActionListResponse,
    Name,
    WaitRequest,
    WaitResponse,
)
from arl_wire.actions.batches import SubmitBatchResponse
from arl_wire.admin.consistency import ConsistencyReport
from arl_wire.admin.keys import ApiKey, CreateKeyRequest, CreateKeyResponse, KeyListResponse
from arl_wire.admin.queues import ChangeQueueRequest, Queue, QueueListResponse
from arl_wire.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    Internal,
    NotFound,
    RateLimited,
    RequestTimeout,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    ValidationFailed,
)

__all__ = ["WriterRoute", "admin", "authenticate_request", "require_admin_read", "router", "trajectories"]

API_KEY = HTTPBearer(
    auto_error=False, scheme_name="ApiKey", description="An API key, `tk_…`; `tangram up` makes the first one"
)
COMMON_ERRORS = (Unauthenticated, Forbidden, ValidationFailed, RateLimited, Internal, Unavailable)
BODY_ERRORS = (BadRequest, TooLarge, RequestTimeout, UnsupportedMediaType)


async def authenticate_request(request: Request, response: Response) -> Caller:
    """Whose key it is, and one request less that he may make."""
    headers = request.headers
    said = headers.get("authorization") or (f"Bearer {headers['x-api-key']}" if "x-api-key" in headers else None)
    caller: Caller = await request.app.state.keys.authenticate(said)
    response.headers.update(request.app.state.limiter.acquire(caller.key_id))
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


async def require_admin_read(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require_scope("admin:read")
    return caller


async def _admin_writer(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require_scope("admin:write")
    return caller


async def _json_body(request: Request, caller: Annotated[Caller, Depends(_caller)]) -> None:
    """After the key, so that nobody without one learns anything else."""
    await require_json(request)


class WriterRoute(FastRoute):
    """A `FastRoute` for keys with `actions:write`; the type of the body is checked after the key."""

    async def admit(self, request: Request, response: Response) -> Caller:
        caller = await authenticate_request(request, response)
        caller.require_scope("actions:write")
        await require_json(request)
        return caller


async def _actions(request: Request) -> ActionService:
    actions: ActionService = request.app.state.actions
    return actions


async def _key_admin(request: Request) -> KeyAdmin:
    keys: KeyAdmin = request.app.state.key_admin
    return keys


async def _queue_admin(request: Request) -> QueueAdmin:
    queues: QueueAdmin = request.app.state.queue_admin
    return queues


async def _environments(request: Request) -> EnvironmentService:
    environments: EnvironmentService = request.app.state.environments
    return environments


def model_response(body: BaseModel, response: Response, status: int = 200) -> Response:
    """Written by pydantic itself, with what dependencies put into the headers: on the paths that every action takes."""
    content = body.model_dump_json(exclude_none=True)
    return Response(content, status, dict(response.headers), media_type="application/json")


def request_trace(request: Request) -> RequestTrace:
    """Return the client's trace context, or the one that was made for this request."""
    tracestate = remote_tracestate()
    return RequestTrace(current_traceparent.get(), GATEWAY_TRACESTATE if tracestate is None else tracestate or None)


JSON_BODY = [Depends(_json_body)]
Reader = Annotated[Caller, Depends(_reader)]
Writer = Annotated[Caller, Depends(_writer)]
Admin = Annotated[Caller, Depends(require_admin_read)]
AdminWriter = Annotated[Caller, Depends(_admin_writer)]
ActionsDep = Annotated[ActionService, Depends(_actions)]
KeysDep = Annotated[KeyAdmin, Depends(_key_admin)]
EnvironmentsDep = Annotated[EnvironmentService, Depends(_environments)]
QueuesDep = Annotated[QueueAdmin, Depends(_queue_admin)]
KeyId = Annotated[int, Path(ge=1, le=2**31 - 1)]
MAX_WAIT_S = 55
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for the outcome")]
IdempotencyKey = Annotated[
    str | None, Header(alias="Idempotency-Key", description="Makes a repeated request harmless for 24 h")
]
IfNoneMatch = Annotated[
    str | None, Header(alias="If-None-Match", description="Entity tags, as ETag gave them, of versions known already")
]
ETAG_HEADER: dict[str, Any] = {
    "ETag": {"description": "Names this version of the action", "schema": {"type": "string"}}
}

router = APIRouter(prefix="/v1", tags=["actions"])
trajectories = APIRouter(prefix="/v1/trajectories", tags=["trajectories"])
admin = APIRouter(prefix="/v1/admin", tags=["admin"])


@router.post(
    "/actions:batch",
    operation_id="submit_actions",
    dependencies=JSON_BODY,
    status_code=202,
    response_model=SubmitBatchResponse,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS),
)
async def submit_actions(
    body: ActionBatchRequest,
    caller: Writer,
    actions: ActionsDep,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Accept up to 1000 actions; each has its own answer. Those of a `gang` are accepted and start together."""
    trace = request_trace(request)
    environments: EnvironmentService = request.app.state.environments
    submissions = await environments.resolve_references(body.submissions(), caller, key=idempotency_key)
    accepted = await actions.submit_batch(submissions, caller, key=idempotency_key, trace=trace, gang=body.gang)
    return model_response(accepted, response, 202)


@router.post(
    "/actions:wait",
    operation_id="wait_for_actions",
    dependencies=JSON_BODY,
    response_model=WaitResponse,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS),
)
async def wait_for_actions(body: WaitRequest, caller: Reader, actions: ActionsDep, response: Response) -> Response:
    """The settled ones among up to 1000 ids, when any or all are, or when the time is up."""
    return model_response(await actions.wait(body, caller), response)


@router.get(
    "/actions/{id}",
    operation_id="get_action",
    response_model=Action,
    response_model_exclude_none=True,
    responses={
        200: {"headers": ETAG_HEADER},
        304: {"description": "It is still the version that If-None-Match names", "headers": ETAG_HEADER},
        **error_responses(*COMMON_ERRORS, NotFound),
    },
)
async def get_action(
    id: UUID, caller: Reader, actions: ActionsDep, response: Response, wait: Wait = 0, if_none_match: IfNoneMatch = None
) -> Action | Response:
    """One action, with its result once it is settled.

    With `wait` alone this answers when the action has settled; with `If-None-Match` too, when it is any other
    version than that, and otherwise 304 when the time is up. A settled action never changes again.
    """
    action = await actions.get(id, caller, wait_s=wait, known_etags=if_none_match)
    response.headers["etag"] = action_etag(action)
    return Response(None, 304, dict(response.headers)) if matches_etag(action, if_none_match) else action


@router.get(
    "/actions",
    operation_id="list_actions",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, BadRequest),
)
async def list_actions(
    caller: Reader,
    actions: ActionsDep,
    task: Name | None = None,
    trajectory: Name | None = None,
    state: ActionState | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> ActionListResponse:
    """Newest first, without results."""
    return await actions.list(caller, task=task, trajectory=trajectory, state=state, cursor=cursor, limit=limit)


@router.delete(
    "/actions/{id}",
    operation_id="cancel_action",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def cancel_action(id: UUID, caller: Writer, actions: ActionsDep) -> Action:
    """Ask for an action's end. A settled one is answered as it is."""
    return await actions.cancel(id, caller)


@trajectories.delete(
    "/{trajectory:path}",
    operation_id="end_trajectory",
    status_code=204,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def end_trajectory(
    trajectory: Name,
    task: Annotated[Name, Query(description="The task it belongs to")],
    caller: Writer,
    actions: ActionsDep,
) -> None:
    """Cancel what is left of a trajectory and end its environment; its name is free again afterwards."""
    await actions.end_trajectory(task, trajectory, caller)


@admin.post(
    "/keys",
    operation_id="create_key",
    dependencies=JSON_BODY,
    status_code=201,
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, Conflict),
)
async def create_key(
    body: CreateKeyRequest, caller: AdminWriter, keys: KeysDep, response: Response
) -> CreateKeyResponse:
    """Make a key. This answer shows it; no later one does."""
    created = await keys.create(body, caller)
    response.headers["cache-control"] = "no-store"
    return created


@admin.get(
    "/keys", operation_id="list_keys", response_model_exclude_none=True, responses=error_responses(*COMMON_ERRORS)
)
async def list_keys(
    caller: Admin,
    keys: KeysDep,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> KeyListResponse:
    """The project's keys, newest first, revoked and expired ones too."""
    return await keys.list(caller, cursor=cursor, limit=limit)


@admin.delete(
    "/keys/{id}",
    operation_id="revoke_key",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def revoke_key(id: KeyId, caller: AdminWriter, keys: KeysDep) -> ApiKey:
    """End a key, for ever: at once on this gateway, within seconds on others."""
    return await keys.revoke(id, caller)


@admin.get(
    "/queues", operation_id="list_queues", response_model_exclude_none=True, responses=error_responses(*COMMON_ERRORS)
)
async def list_queues(
    caller: Admin,
    queues: QueuesDep,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> QueueListResponse:
    """The project's queues, one per task, with what waits and runs now."""
    return await queues.list(caller, cursor=cursor, limit=limit)


@admin.patch(
    "/queues/{task:path}",
    operation_id="change_queue",
    dependencies=JSON_BODY,
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, NotFound),
)
async def change_queue(task: Name, body: ChangeQueueRequest, caller: AdminWriter, queues: QueuesDep) -> Queue:
    """Limit how many actions may wait for a task, weigh it beside others, pause it or let it go on."""
    return await queues.change(task, body, caller)


@admin.get("/consistency", operation_id="check_consistency", responses=error_responses(*COMMON_ERRORS, Forbidden))
async def check_consistency(caller: Admin, actions: ActionsDep) -> ConsistencyReport:
    """All rows of all projects in one snapshot: counts, what is held, and whatever contradicts an invariant.

    With a key of the project `default`.
    """
    if caller.project != ROOT_PROJECT:
        raise Forbidden(f"rows of all projects are audited with a key of the project `{ROOT_PROJECT}`")
    return await actions.check_consistency()

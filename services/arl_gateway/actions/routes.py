"""Routes of actions and trajectories. A route parses, calls and returns."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from arl_core.domain.states import ActionState
from arl_gateway.actions.batch import ActionBatchRequest
from arl_gateway.actions.service import matches_etag
from arl_gateway.actions.views import action_etag
from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import (
    BODY_ERRORS,
    COMMON_ERRORS,
    ETAG_HEADER,
    JSON_BODY,
    ActionsDep,
    IdempotencyKey,
    IfNoneMatch,
    Reader,
    Wait,
    Writer,
    model_response,
    request_trace,
)
from arl_kit.app import error_responses
from arl_kit.optional_nulls import OptionalNullRoute
from arl_wire.actions.action import Action, ActionListResponse, Name
from arl_wire.actions.batches import SubmitBatchResponse, WaitRequest, WaitResponse
from arl_wire.errors import BadRequest, NotFound

__all__ = ["router", "trajectories"]

router = APIRouter(prefix="/v1", tags=["actions"], route_class=OptionalNullRoute)
trajectories = APIRouter(prefix="/v1/trajectories", tags=["trajectories"])


@router.post(
    "/actions:batch",
    operation_id="submit_actions",
    summary="Submit several actions",
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
    """Submit up to 1000 actions.

    Each action has its own result in the response: an id or an error. The actions of a `gang` are accepted and started
    together or not at all.
    """
    trace = request_trace(request)
    environments = gateway_deps(request).environments
    submissions = await environments.resolve_references(body.submissions(), caller, key=idempotency_key)
    accepted = await actions.submit_batch(submissions, caller, key=idempotency_key, trace=trace, gang=body.gang)
    return model_response(accepted, response, 202)


@router.post(
    "/actions:wait",
    operation_id="wait_for_actions",
    summary="Wait for actions",
    dependencies=JSON_BODY,
    response_model=WaitResponse,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS),
)
async def wait_for_actions(body: WaitRequest, caller: Reader, actions: ActionsDep, response: Response) -> Response:
    """Wait until any or all of up to 1000 actions settle, or until the timeout ends.

    The response has the settled actions with their results, and the ids that are pending or unknown.
    """
    return model_response(await actions.wait(body, caller), response)


@router.get(
    "/actions/{id}",
    operation_id="get_action",
    summary="Get an action",
    response_model=Action,
    response_model_exclude_none=True,
    responses={
        200: {"headers": ETAG_HEADER},
        304: {"description": "The version that If-None-Match names is still current", "headers": ETAG_HEADER},
        **error_responses(*COMMON_ERRORS, NotFound),
    },
)
async def get_action(
    id: UUID, caller: Reader, actions: ActionsDep, response: Response, wait: Wait = 0, if_none_match: IfNoneMatch = None
) -> Action | Response:
    """Return an action. A settled action includes its result and never changes.

    With `wait` alone, the response is sent when the action settles or the time is up. With `wait` and `If-None-Match`,
    it is sent when the version of the action changes; if the time is up first, the status is 304. Returns 404 for an
    unknown id.
    """
    action = await actions.get(id, caller, wait_s=wait, known_etags=if_none_match)
    response.headers["etag"] = action_etag(action)
    return Response(None, 304, dict(response.headers)) if matches_etag(action, if_none_match) else action


@router.get(
    "/actions",
    operation_id="list_actions",
    summary="List actions",
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
    """List the project's actions, newest first, without their results."""
    return await actions.list(caller, task=task, trajectory=trajectory, state=state, cursor=cursor, limit=limit)


@router.delete(
    "/actions/{id}",
    operation_id="cancel_action",
    summary="Cancel an action",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def cancel_action(id: UUID, caller: Writer, actions: ActionsDep) -> Action:
    """Request the cancellation of an action.

    A settled action is returned unchanged. Returns 404 for an unknown id.
    """
    return await actions.cancel(id, caller)


@trajectories.delete(
    "/{trajectory:path}",
    operation_id="end_trajectory",
    summary="End a trajectory",
    status_code=204,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def end_trajectory(
    trajectory: Name,
    task: Annotated[Name, Query(description="Task of the trajectory")],
    caller: Writer,
    actions: ActionsDep,
) -> None:
    """Cancel the remaining actions of a trajectory and delete its environment.

    The name of the trajectory can be reused afterwards. Returns 404 if the task has no such trajectory.
    """
    await actions.end_trajectory(task, trajectory, caller)

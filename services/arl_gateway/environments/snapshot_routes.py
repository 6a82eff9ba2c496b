"""Routes of snapshots. A route parses, calls and returns."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response

from arl_gateway.deps import gateway_deps
from arl_gateway.environments.snapshots import SnapshotService
from arl_gateway.http.dependencies import COMMON_ERRORS, Reader, Writer, request_trace
from arl_kit.app import error_responses
from arl_wire.actions.action import Name
from arl_wire.environments.environment import SnapshotInfo, SnapshotListResponse
from arl_wire.errors import BadRequest, Conflict, NotFound, TooLarge

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["snapshots"])


async def _snapshots(request: Request) -> SnapshotService:
    snapshots: SnapshotService = gateway_deps(request).snapshots
    return snapshots


SnapshotsDep = Annotated[SnapshotService, Depends(_snapshots)]


@router.post(
    "/environments/{id}/snapshots",
    operation_id="create_snapshot",
    summary="Create a snapshot",
    status_code=201,
    responses=error_responses(*COMMON_ERRORS, NotFound, Conflict, TooLarge),
)
async def create_snapshot(
    id: UUID, caller: Writer, snapshots: SnapshotsDep, request: Request, response: Response
) -> SnapshotInfo:
    """Save all files written in an environment, in order with its actions.

    Processes and memory are not saved. Returns 404 for an unknown environment, and 409 if it is not alive.
    """
    taken = await snapshots.create(id, caller, trace=request_trace(request))
    response.headers["location"] = f"/v1/snapshots/{taken.id}"
    return taken


@router.get(
    "/snapshots",
    operation_id="list_snapshots",
    summary="List snapshots",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, BadRequest),
)
async def list_snapshots(
    caller: Reader,
    snapshots: SnapshotsDep,
    task: Name | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> SnapshotListResponse:
    """List the project's snapshots, newest first."""
    return await snapshots.list(caller, task=task, cursor=cursor, limit=limit)


@router.get(
    "/snapshots/{id}",
    operation_id="get_snapshot",
    summary="Get a snapshot",
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def get_snapshot(id: UUID, caller: Reader, snapshots: SnapshotsDep) -> SnapshotInfo:
    """Return a snapshot. Returns 404 for an unknown id."""
    return await snapshots.get(id, caller)


@router.delete(
    "/snapshots/{id}",
    operation_id="delete_snapshot",
    summary="Delete a snapshot",
    status_code=204,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def delete_snapshot(id: UUID, caller: Writer, snapshots: SnapshotsDep) -> None:
    """Delete a snapshot. Environments that started from it are not affected. Returns 404 for an unknown id."""
    await snapshots.delete(id, caller)

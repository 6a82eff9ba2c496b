"""The public API of snapshots. A route parses, calls and returns."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response

from arl_gateway.routes import ANY, Reader, Writer, trace_of
from arl_gateway.snapshots import Snapshots
from arl_kit.app import documented
from arl_wire.actions import Name
from arl_wire.errors import BadRequest, Conflict, NotFound, TooLarge
from arl_wire.snapshots import Snapshot, SnapshotPage

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["snapshots"])


async def _snapshots(request: Request) -> Snapshots:
    snapshots: Snapshots = request.app.state.snapshots
    return snapshots


SnapshotService = Annotated[Snapshots, Depends(_snapshots)]


@router.post(
    "/environments/{id}/snapshots",
    operation_id="take_snapshot",
    status_code=201,
    responses=documented(*ANY, NotFound, Conflict, TooLarge),
)
async def take_snapshot(
    id: UUID, caller: Writer, snapshots: SnapshotService, request: Request, response: Response
) -> Snapshot:
    """Keep all that was written in an environment, in its turn among the actions there: files, no processes."""
    taken = await snapshots.take(id, caller, trace=trace_of(request))
    response.headers["location"] = f"/v1/snapshots/{taken.id}"
    return taken


@router.get(
    "/snapshots",
    operation_id="list_snapshots",
    response_model_exclude_none=True,
    responses=documented(*ANY, BadRequest),
)
async def list_snapshots(
    caller: Reader,
    snapshots: SnapshotService,
    task: Name | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> SnapshotPage:
    """Newest first."""
    return await snapshots.list(caller, task=task, cursor=cursor, limit=limit)


@router.get("/snapshots/{id}", operation_id="get_snapshot", responses=documented(*ANY, NotFound))
async def get_snapshot(id: UUID, caller: Reader, snapshots: SnapshotService) -> Snapshot:
    """One snapshot."""
    return await snapshots.get(id, caller)


@router.delete("/snapshots/{id}", operation_id="delete_snapshot", status_code=204, responses=documented(*ANY, NotFound))
async def delete_snapshot(id: UUID, caller: Writer, snapshots: SnapshotService) -> None:
    """Nothing begins with it any more; what did goes on."""
    await snapshots.delete(id, caller)

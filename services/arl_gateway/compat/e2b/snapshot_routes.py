"""Snapshots and forks of sandboxes: files without processes."""

from uuid import UUID

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from arl_gateway.compat.e2b.control_routes import SandboxesDep
from arl_gateway.compat.e2b.errors import ControlRoute, not_supported
from arl_gateway.compat.e2b.models import SandboxTimeout, new_sandbox
from arl_gateway.compat.e2b.sandboxes import TASK, parse_snapshot_id
from arl_gateway.deps import gateway_deps
from arl_gateway.environments.snapshots import SnapshotService
from arl_gateway.http.dependencies import Reader, Writer
from arl_wire.errors import BadRequest, NotFound

__all__ = ["router"]

MAX_PAGE = 100

router = APIRouter(route_class=ControlRoute, include_in_schema=False)


class ForkRequest(SandboxTimeout):
    """A request for copies of a sandbox."""

    count: int = Field(default=1, ge=1, le=20)


@router.post("/sandboxes/{sandbox_id}/snapshots")
async def create_snapshot(sandbox_id: str, request: Request, caller: Writer, sandboxes: SandboxesDep) -> Response:
    """Create a snapshot of the files. It has no name other than its id."""
    if b'"name"' in await request.body():
        raise not_supported("names of snapshots; use the id")
    made = await sandboxes.snapshot(sandbox_id, caller)
    return JSONResponse({"snapshotID": made.hex, "names": []}, 201)


@router.get("/snapshots")
async def list_snapshots(request: Request, caller: Reader) -> Response:
    """List snapshots, newest first."""
    query = request.query_params
    limit = query.get("limit", str(MAX_PAGE))
    if not limit.isdigit() or not 1 <= int(limit) <= MAX_PAGE:
        raise BadRequest(f"query.limit must be a number from 1 to {MAX_PAGE}")
    snapshots: SnapshotService = gateway_deps(request).snapshots
    page = await snapshots.list(caller, task=TASK, cursor=query.get("nextToken"), limit=int(limit))
    wanted = query.get("sandboxID")
    items = [each for each in page.items if wanted is None or each.environment.hex == wanted]
    headers = {"x-next-token": page.next_cursor} if page.next_cursor else {}
    return JSONResponse([{"snapshotID": each.id.hex, "names": []} for each in items], headers=headers)


@router.delete("/templates/{snapshot_id}")
async def delete_snapshot(snapshot_id: str, request: Request, caller: Writer) -> Response:
    """Delete a snapshot. Templates are not deleted here."""
    id: UUID | None = parse_snapshot_id(snapshot_id)
    if id is None:
        raise NotFound(f"snapshot {snapshot_id[:64]} does not exist in this project")
    await gateway_deps(request).snapshots.delete(id, caller)
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox_id}/fork")
async def fork_sandbox(sandbox_id: str, request: Request, caller: Writer, sandboxes: SandboxesDep) -> Response:
    """Create sandboxes with the same files. Processes are not copied."""
    body = ForkRequest.model_validate_json(await request.body() or b"{}")
    rows = await sandboxes.fork(sandbox_id, caller, count=body.count, timeout_s=body.timeout)
    return JSONResponse([{"sandbox": new_sandbox(row, sandboxes.ports.domain)} for row in rows], 201)

"""The public API of persistent environments. A route parses, calls and returns."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AfterValidator

from arl_gateway.routes import (
    ANY,
    JSON_BODY,
    EnvironmentService,
    IdempotencyKey,
    Reader,
    Writer,
    trace_of,
    written,
)
from arl_gateway.submit_routes import SUBMIT
from arl_kit.app import documented
from arl_wire.actions import Action, Name, RelativePath
from arl_wire.environments import CreateEnvironment, Environment, EnvironmentPage, EnvironmentState
from arl_wire.errors import BadRequest, Conflict, FieldError, NotFound, RequestTimeout, TooLarge

__all__ = ["router"]

MAX_FILE_BYTES = 8 << 20
BYTES: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _as_sent(path: str) -> str:
    """Two names that are no UTF-8 would be one."""
    if "\N{REPLACEMENT CHARACTER}" in path:
        raise ValueError("is not UTF-8 (percent-encoded)")
    if path.endswith("/"):
        raise ValueError("is that of a directory")
    return path


FilePath = Annotated[RelativePath, AfterValidator(_as_sent), Path(description="Below the working directory")]
Wait = Annotated[float, Query(ge=0, le=55, description="Seconds to wait until it is made")]

router = APIRouter(prefix="/v1/environments", tags=["environments"])


@router.post(
    "",
    operation_id="create_environment",
    dependencies=JSON_BODY,
    status_code=201,
    response_model=Environment,
    responses={
        202: {"model": Action, "description": "Not made yet: the durable action that makes it"},
        **documented(*ANY, *SUBMIT),
    },
)
async def create_environment(
    body: CreateEnvironment,
    caller: Writer,
    environments: EnvironmentService,
    request: Request,
    response: Response,
    wait: Wait = 30,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Make an environment before its first action."""
    made = await environments.create(body, caller, key=idempotency_key, trace=trace_of(request), wait_s=wait)
    is_made = isinstance(made, Environment)
    response.headers["location"] = f"/v1/{'environments' if is_made else 'actions'}/{made.id}"
    return written(made, response, 201 if is_made else 202)


@router.get(
    "",
    operation_id="list_environments",
    response_model_exclude_none=True,
    responses=documented(*ANY, BadRequest),
)
async def list_environments(
    caller: Reader,
    environments: EnvironmentService,
    task: Name | None = None,
    trajectory: Name | None = None,
    state: EnvironmentState | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> EnvironmentPage:
    """Newest first; those that are gone, too, until retention removes them."""
    return await environments.list(caller, task=task, trajectory=trajectory, state=state, cursor=cursor, limit=limit)


@router.get(
    "/{id}", operation_id="get_environment", response_model_exclude_none=True, responses=documented(*ANY, NotFound)
)
async def get_environment(id: UUID, caller: Reader, environments: EnvironmentService) -> Environment:
    """One environment, as it is now."""
    return await environments.get(id, caller)


@router.delete("/{id}", operation_id="end_environment", status_code=204, responses=documented(*ANY, NotFound))
async def end_environment(id: UUID, caller: Writer, environments: EnvironmentService) -> None:
    """End it with all that is in it, and cancel what waits for it; its name is free again afterwards."""
    await environments.end(id, caller)


@router.put(
    "/{id}/files/{path:path}",
    operation_id="write_file",
    status_code=204,
    openapi_extra={"requestBody": {"required": True, "content": BYTES}},
    responses=documented(*ANY, NotFound, Conflict, TooLarge, RequestTimeout),
)
async def write_file(
    id: UUID, path: FilePath, caller: Writer, environments: EnvironmentService, request: Request
) -> None:
    """Write a file of up to 8 MiB, in its turn among the environment's actions."""
    content = await request.body()
    if len(content) > MAX_FILE_BYTES:
        message = f"has {len(content)} bytes; a file may have {MAX_FILE_BYTES}"
        raise TooLarge(f"the body {message}", errors=[FieldError(field="body", message=message)])
    await environments.write(id, path, content, caller, trace=trace_of(request))


@router.get(
    "/{id}/files/{path:path}",
    operation_id="read_file",
    response_class=Response,
    responses={200: {"description": "Its content", "content": BYTES}, **documented(*ANY, NotFound, Conflict, TooLarge)},
)
async def read_file(
    id: UUID, path: FilePath, caller: Writer, environments: EnvironmentService, request: Request, response: Response
) -> Response:
    """A file of up to 8 MiB, read in its turn among the environment's actions."""
    content = await environments.read(id, path, caller, trace=trace_of(request))
    return Response(content, 200, dict(response.headers), media_type="application/octet-stream")

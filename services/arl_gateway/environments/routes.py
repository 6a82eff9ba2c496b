"""Routes of persistent environments. A route parses, calls and returns."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AfterValidator

from arl_gateway.actions.submit_routes import SUBMIT_ERRORS
from arl_gateway.http.dependencies import (
    COMMON_ERRORS,
    JSON_BODY,
    EnvironmentsDep,
    IdempotencyKey,
    Reader,
    Writer,
    model_response,
    request_trace,
)
from arl_kit.app import error_responses
from arl_wire.actions.action import Action, Name, RelativePath
from arl_wire.environments.environment import (
    CreateEnvironmentRequest,
    EnvironmentInfo,
    EnvironmentListResponse,
    EnvironmentState,
)
from arl_wire.errors import BadRequest, Conflict, FieldError, NotFound, RequestTimeout, TooLarge

__all__ = ["router"]

MAX_FILE_BYTES = 8 << 20
BINARY_BODY: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _check_path(path: str) -> str:
    """Refuse paths that are not UTF-8, because distinct ones would decode to the same name; refuse directories."""
    if "\N{REPLACEMENT CHARACTER}" in path:
        raise ValueError("is not UTF-8 (percent-encoded)")
    if path.endswith("/"):
        raise ValueError("is that of a directory")
    return path


FilePath = Annotated[RelativePath, AfterValidator(_check_path), Path(description="Below the working directory")]
CreateWait = Annotated[float, Query(ge=0, le=55, description="Seconds to wait until it is made")]

router = APIRouter(prefix="/v1/environments", tags=["environments"])


@router.post(
    "",
    operation_id="create_environment",
    dependencies=JSON_BODY,
    status_code=201,
    response_model=EnvironmentInfo,
    responses={
        202: {"model": Action, "description": "Not made yet: the durable action that makes it"},
        **error_responses(*COMMON_ERRORS, *SUBMIT_ERRORS),
    },
)
async def create_environment(
    body: CreateEnvironmentRequest,
    caller: Writer,
    environments: EnvironmentsDep,
    request: Request,
    response: Response,
    wait: CreateWait = 30,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create an environment before its first action."""
    made = await environments.create(body, caller, key=idempotency_key, trace=request_trace(request), wait_s=wait)
    is_made = isinstance(made, EnvironmentInfo)
    response.headers["location"] = f"/v1/{'environments' if is_made else 'actions'}/{made.id}"
    return model_response(made, response, 201 if is_made else 202)


@router.get(
    "",
    operation_id="list_environments",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, BadRequest),
)
async def list_environments(
    caller: Reader,
    environments: EnvironmentsDep,
    task: Name | None = None,
    trajectory: Name | None = None,
    state: EnvironmentState | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> EnvironmentListResponse:
    """List environments, newest first. Ended and lost ones are included until retention removes them."""
    return await environments.list(caller, task=task, trajectory=trajectory, state=state, cursor=cursor, limit=limit)


@router.get(
    "/{id}",
    operation_id="get_environment",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def get_environment(id: UUID, caller: Reader, environments: EnvironmentsDep) -> EnvironmentInfo:
    """Return an environment."""
    return await environments.get(id, caller)


@router.delete(
    "/{id}", operation_id="end_environment", status_code=204, responses=error_responses(*COMMON_ERRORS, NotFound)
)
async def end_environment(id: UUID, caller: Writer, environments: EnvironmentsDep) -> None:
    """Delete an environment with its files, and cancel its queued actions. Its name can be reused afterwards."""
    await environments.end(id, caller)


@router.put(
    "/{id}/files/{path:path}",
    operation_id="write_file",
    status_code=204,
    openapi_extra={"requestBody": {"required": True, "content": BINARY_BODY}},
    responses=error_responses(*COMMON_ERRORS, NotFound, Conflict, TooLarge, RequestTimeout),
)
async def write_file(id: UUID, path: FilePath, caller: Writer, environments: EnvironmentsDep, request: Request) -> None:
    """Write a file of up to 8 MiB, in order with the environment's actions."""
    content = await request.body()
    if len(content) > MAX_FILE_BYTES:
        message = f"has {len(content)} bytes; a file may have {MAX_FILE_BYTES}"
        raise TooLarge(f"the body {message}", errors=[FieldError(field="body", message=message)])
    await environments.write(id, path, content, caller, trace=request_trace(request))


@router.get(
    "/{id}/files/{path:path}",
    operation_id="read_file",
    response_class=Response,
    responses={
        200: {"description": "Its content", "content": BINARY_BODY},
        **error_responses(*COMMON_ERRORS, NotFound, Conflict, TooLarge),
    },
)
async def read_file(
    id: UUID, path: FilePath, caller: Writer, environments: EnvironmentsDep, request: Request, response: Response
) -> Response:
    """Return a file of up to 8 MiB, read in order with the environment's actions."""
    content = await environments.read(id, path, caller, trace=request_trace(request))
    return Response(content, 200, dict(response.headers), media_type="application/octet-stream")

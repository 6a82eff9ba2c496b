"""Routes of persistent environments. A route parses, calls and returns."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AfterValidator

from arl_gateway.actions.submit_routes import SUBMIT_ERRORS
from arl_gateway.http.dependencies import (
    BODY_ERRORS,
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
from arl_kit.optional_nulls import OptionalNullRoute
from arl_wire.actions.action import Action, Name, RelativePath
from arl_wire.environments.environment import (
    CreateEnvironmentRequest,
    EnvironmentInfo,
    EnvironmentListResponse,
    EnvironmentState,
)
from arl_wire.environments.network import UpdateEnvironmentRequest
from arl_wire.errors import BadRequest, Conflict, FieldError, NotFound, RequestTimeout, TooLarge

__all__ = ["router"]

MAX_FILE_BYTES = 8 << 20
BINARY_BODY: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _check_path(path: str) -> str:
    """Refuse paths that are not UTF-8, because distinct ones would decode to the same name; refuse directories."""
    if "\N{REPLACEMENT CHARACTER}" in path:
        raise ValueError("must be percent-encoded UTF-8")
    if path.endswith("/"):
        raise ValueError("must be the path of a file, not of a directory")
    return path


FilePath = Annotated[
    RelativePath, AfterValidator(_check_path), Path(description="Path relative to the working directory")
]
CreateWait = Annotated[
    float, Query(ge=0, le=55, description="Maximum seconds to wait until the environment is created")
]

router = APIRouter(prefix="/v1/environments", tags=["environments"], route_class=OptionalNullRoute)


@router.post(
    "",
    operation_id="create_environment",
    summary="Create an environment",
    dependencies=JSON_BODY,
    status_code=201,
    response_model=EnvironmentInfo,
    responses={
        202: {
            "model": Action,
            "description": "The environment is not created yet; the body is the durable action that creates it",
        },
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
    """Create a persistent environment before its first action.

    Returns 201 with the environment, or 202 with the action that creates it if this takes longer than `wait`. Returns
    409 if the trajectory already has an environment.
    """
    made = await environments.create(body, caller, key=idempotency_key, trace=request_trace(request), wait_s=wait)
    is_made = isinstance(made, EnvironmentInfo)
    response.headers["location"] = f"/v1/{'environments' if is_made else 'actions'}/{made.id}"
    return model_response(made, response, 201 if is_made else 202)


@router.get(
    "",
    operation_id="list_environments",
    summary="List environments",
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
    """List the project's environments, newest first. Ended and lost ones are included until retention removes them."""
    return await environments.list(caller, task=task, trajectory=trajectory, state=state, cursor=cursor, limit=limit)


@router.get(
    "/{id:name}",
    operation_id="get_environment",
    summary="Get an environment",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def get_environment(id: UUID, caller: Reader, environments: EnvironmentsDep) -> EnvironmentInfo:
    """Return an environment. Returns 404 for an unknown id."""
    return await environments.get(id, caller)


@router.patch(
    "/{id:name}",
    operation_id="update_environment",
    summary="Change the network of an environment",
    dependencies=JSON_BODY,
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, NotFound, Conflict),
)
async def update_environment(
    id: UUID, body: UpdateEnvironmentRequest, caller: Writer, environments: EnvironmentsDep
) -> EnvironmentInfo:
    """Change the network of a live environment within about a second, also of a running program.

    Connections that the new network refuses are closed. An action with its own `network` keeps it to its end. Returns
    404 for an unknown environment, 409 if it is not alive, and 422 for a network above the limit of the operator.
    """
    return await environments.update(id, body, caller)


@router.delete(
    "/{id:name}",
    operation_id="end_environment",
    summary="Delete an environment",
    status_code=204,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def end_environment(id: UUID, caller: Writer, environments: EnvironmentsDep) -> None:
    """Delete an environment with its files, and cancel its queued actions.

    The name of its trajectory can be reused afterwards. Returns 404 for an unknown id.
    """
    await environments.end(id, caller)


@router.put(
    "/{id}/files/{path:path}",
    operation_id="write_file",
    summary="Write a file",
    status_code=204,
    openapi_extra={"requestBody": {"required": True, "content": BINARY_BODY}},
    responses=error_responses(*COMMON_ERRORS, NotFound, Conflict, TooLarge, RequestTimeout),
)
async def write_file(id: UUID, path: FilePath, caller: Writer, environments: EnvironmentsDep, request: Request) -> None:
    """Write a file of up to 8 MiB, in order with the environment's actions.

    Returns 404 for an unknown environment, 409 if it is not alive or cannot store the file, and 413 for a larger file.
    """
    content = await request.body()
    if len(content) > MAX_FILE_BYTES:
        message = f"has {len(content)} bytes; a file may have at most {MAX_FILE_BYTES}: use an archive"
        raise TooLarge(f"the body {message}", errors=[FieldError(field="body", message=message)])
    await environments.write(id, path, content, caller, trace=request_trace(request))


@router.get(
    "/{id}/files/{path:path}",
    operation_id="read_file",
    summary="Read a file",
    response_class=Response,
    responses={
        200: {"description": "Content of the file", "content": BINARY_BODY},
        **error_responses(*COMMON_ERRORS, NotFound, Conflict, TooLarge),
    },
)
async def read_file(
    id: UUID, path: FilePath, caller: Writer, environments: EnvironmentsDep, request: Request, response: Response
) -> Response:
    """Return a file of up to 8 MiB, read in order with the environment's actions.

    Returns 404 for an unknown environment or file, 409 if the environment is not alive, and 413 for a larger file.
    """
    content = await environments.read(id, path, caller, trace=request_trace(request))
    return Response(content, 200, dict(response.headers), media_type="application/octet-stream")

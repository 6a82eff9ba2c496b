"""Routes of the files of persistent environments. A route parses, calls and returns."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response

from arl_gateway.deps import gateway_deps
from arl_gateway.environments.archives import MAX_CURSOR_LENGTH, ArchiveService
from arl_gateway.environments.routes import BINARY_BODY
from arl_gateway.http.dependencies import COMMON_ERRORS, Writer, request_trace
from arl_kit.app import error_responses
from arl_kit.http_server.body_streaming import StreamedResponse
from arl_wire.actions.action import RelativePath
from arl_wire.environments.files import FileListResponse, UploadArchiveResponse
from arl_wire.errors import BadRequest, Conflict, NotFound, RequestTimeout, TooLarge

__all__ = ["ARCHIVE_PATH", "router"]

ARCHIVE_PATH = r"/v1/environments/[^/]+/archive$"
TAR_CONTENT: dict[str, Any] = {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}
ArchivePath = Annotated[
    RelativePath | None,
    Query(description="Path relative to the working directory. Absent: the whole working directory"),
]

router = APIRouter(prefix="/v1/environments", tags=["environments"])


async def _archives(request: Request) -> ArchiveService:
    archives: ArchiveService = gateway_deps(request).archives
    return archives


ArchivesDep = Annotated[ArchiveService, Depends(_archives)]


@router.get(
    "/{id}/files",
    operation_id="list_files",
    summary="List files",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, BadRequest, NotFound, Conflict, TooLarge),
)
async def list_files(
    id: UUID,
    caller: Writer,
    archives: ArchivesDep,
    request: Request,
    path: ArchivePath = None,
    recursive: Annotated[bool, Query(description="True to include the contents of subdirectories")] = False,
    cursor: Annotated[str | None, Query(max_length=MAX_CURSOR_LENGTH, pattern="^[0-9a-f]*$")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> FileListResponse:
    """List the files in a directory of an environment, in order with its actions.

    Returns 404 for an unknown environment, and 409 if it is not alive or the directory cannot be read.
    """
    trace = request_trace(request)
    return await archives.list(
        id, caller, path=path or "", recursive=recursive, cursor=cursor, limit=limit, trace=trace
    )


@router.get(
    "/{id}/archive",
    operation_id="read_archive",
    summary="Download files as an archive",
    response_class=Response,
    responses={
        200: {"description": "A tar archive", "content": TAR_CONTENT},
        **error_responses(*COMMON_ERRORS, NotFound, Conflict, TooLarge),
    },
)
async def read_archive(
    id: UUID, caller: Writer, archives: ArchivesDep, request: Request, response: Response, path: ArchivePath = None
) -> Response:
    """Download a directory or a file as a tar archive, in order with the environment's actions.

    Pipes, sockets and devices are omitted. If the connection ends early, the archive is incomplete. Returns 404 for an
    unknown environment, and 409 if it is not alive.
    """
    content, held = await archives.pack(id, caller, path=path or "", trace=request_trace(request))
    return StreamedResponse(content, held, media_type="application/x-tar", headers=dict(response.headers))


@router.put(
    "/{id}/archive",
    operation_id="write_archive",
    summary="Upload files as an archive",
    openapi_extra={"requestBody": {"required": True, "content": BINARY_BODY}},
    responses=error_responses(*COMMON_ERRORS, BadRequest, NotFound, Conflict, TooLarge, RequestTimeout),
)
async def write_archive(
    id: UUID, caller: Writer, archives: ArchivesDep, request: Request, path: ArchivePath = None
) -> UploadArchiveResponse:
    """Unpack a tar archive, plain or gzip, into a directory, in order with the environment's actions.

    The archive may contain files, directories, links and hard links that stay below that directory. Each file is
    replaced atomically. If a member cannot be written, the error names it, and earlier members remain.
    """
    return await archives.unpack(id, caller, path=path or "", archive=request.stream(), trace=request_trace(request))

"""Routes of SWE-ReX's runtime (`swerex/server.py`), for existing environments and for those of trajectories."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from arl_gateway.compat.swerex import files, programs, sessions
from arl_gateway.compat.swerex.errors import ERROR_STATUS, SwerexRoute
from arl_gateway.compat.swerex.models import (
    SwerexBashAction,
    SwerexBashObservation,
    SwerexCloseResponse,
    SwerexCloseSessionRequest,
    SwerexCloseSessionResponse,
    SwerexCreateSessionRequest,
    SwerexCreateSessionResponse,
    SwerexErrorResponse,
    SwerexExecuteRequest,
    SwerexExecuteResponse,
    SwerexIsAliveResponse,
    SwerexReadFileRequest,
    SwerexReadFileResponse,
    SwerexRunInSessionRequest,
    SwerexUploadResponse,
    SwerexWriteFileRequest,
    SwerexWriteFileResponse,
)
from arl_gateway.compat.swerex.multipart import UPLOAD_BODY, parse_upload
from arl_gateway.compat.swerex.runtime import FILE_TIMEOUT_S, SwerexRuntime, not_alive_reason, resolve_runtime
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, JSON_BODY, Writer
from arl_kit.app import error_responses

__all__ = ["router"]

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    ERROR_STATUS: {"model": SwerexErrorResponse, "description": "Exception that SWE-ReX's client raises"}
}
ID_PARAMETER = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "format": "uuid"},
    "description": "Id of the environment",
}
ENVIRONMENT_PREFIX = "/v1/environments/{id}/swerex"
SUMMARIES = {
    "is_alive": "Check the runtime (SWE-ReX)",
    "create_session": "Open a session (SWE-ReX)",
    "run_in_session": "Run a command (SWE-ReX)",
    "close_session": "Close a session (SWE-ReX)",
    "execute": "Run a program (SWE-ReX)",
    "read_file": "Read a file (SWE-ReX)",
    "write_file": "Write a file (SWE-ReX)",
    "upload": "Upload a file (SWE-ReX)",
    "close": "Close all sessions (SWE-ReX)",
}
TRAJECTORY_PREFIXES = (
    "/trajectories/{trajectory}/swerex",
    "/trajectories/{trajectory}/options/{options}/swerex",
    "/trajectories/{trajectory}/with/{options}/swerex",  # the spelling before `options`, in settings of SWE-agent
)

CONVERSIONS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="archive")
"""Converts one uploaded archive at a time, so that uploads do not occupy all cores."""

router = APIRouter(tags=["compatibility"], route_class=SwerexRoute)


async def _runtime(request: Request, caller: Writer) -> SwerexRuntime:
    return await resolve_runtime(request, caller)


RuntimeDep = Annotated[SwerexRuntime, Depends(_runtime)]


async def is_alive(runtime: RuntimeDep) -> SwerexIsAliveResponse:
    """Report whether SWE-ReX can run commands in the environment.

    If it cannot, `message` has the reason.
    """
    why_not = not_alive_reason(await runtime.environment())
    return SwerexIsAliveResponse(is_alive=why_not is None, message=why_not or "")


async def create_session(body: SwerexCreateSessionRequest, runtime: RuntimeDep) -> SwerexCreateSessionResponse:
    """Open a SWE-ReX bash session and source files in it.

    Returns 511 with an exception for the client if the session exists or does not start in time.
    """
    action = await runtime.run_in_session(body.session, sessions.open_command(body), timeout_s=body.startup_timeout)
    return SwerexCreateSessionResponse(output=sessions.parse_open_result(action, body))


async def run_in_session(body: SwerexRunInSessionRequest, runtime: RuntimeDep) -> SwerexBashObservation:
    """Run a command in a SWE-ReX session, or interrupt the running command.

    `timeout` starts when the command runs. Returns 511 with an exception for the client if the command fails or times
    out.
    """
    asked = body.root
    sessions.reject_interactive(asked)
    if isinstance(asked, SwerexBashAction):
        command = sessions.run_command(asked.command, runtime.marker)
        action = await runtime.run_in_session(asked.session, command, timeout_s=asked.timeout)
        return sessions.parse_run_result(action, asked, runtime.marker)
    action = await runtime.run_in_session(
        asked.session, sessions.run_command(":", runtime.marker), timeout_s=sessions.CLOSE_TIMEOUT_S
    )
    return sessions.parse_interrupt_result(action, asked.session, await runtime.timed_out_output(asked.session, action))


async def close_session(body: SwerexCloseSessionRequest, runtime: RuntimeDep) -> SwerexCloseSessionResponse:
    """Close a SWE-ReX session and end its processes.

    Returns 511 with an exception for the client if the session does not exist.
    """
    action = await runtime.run_in_session(body.session, sessions.CLOSE_COMMAND, timeout_s=sessions.CLOSE_TIMEOUT_S)
    sessions.check_close_result(action, body.session)
    return SwerexCloseSessionResponse()


async def execute(body: SwerexExecuteRequest, runtime: RuntimeDep) -> SwerexExecuteResponse:
    """Run a program for SWE-ReX outside its sessions.

    `timeout` starts when the program runs. Returns 511 with an exception for the client if the program cannot run or
    times out.
    """
    action = await runtime.run(programs.execute_fields(body, runtime.marker), timeout_s=body.timeout)
    return programs.parse_result(action, body, runtime.marker)


async def read_file(body: SwerexReadFileRequest, runtime: RuntimeDep) -> SwerexReadFileResponse:
    """Return the text of a file in the environment.

    Returns 511 with an exception for the client if the file cannot be read.
    """
    action = await runtime.run(files.read_fields(body.path), timeout_s=FILE_TIMEOUT_S, profile="swerex:read_file")
    return SwerexReadFileResponse(content=files.decode_file(action, body))


async def write_file(body: SwerexWriteFileRequest, runtime: RuntimeDep) -> SwerexWriteFileResponse:
    """Write a text file and create its parent directories.

    Returns 511 with an exception for the client if the file cannot be written.
    """
    parcel = files.write_transfer(body.path, body.content.encode(), runtime.marker)
    files.raise_if_failed(await runtime.transfer_files(parcel, profile="swerex:write_file"), body.path)
    return SwerexWriteFileResponse()


async def upload(runtime: RuntimeDep, request: Request) -> SwerexUploadResponse:
    """Write an uploaded file, or unpack a zip archive to a directory.

    Returns 511 with an exception for the client if the content cannot be written.
    """
    sent = await parse_upload(request)
    pack = files.unzip_transfer if sent.is_archive else files.write_transfer
    convert = partial(pack, sent.target, sent.content, runtime.marker)
    parcel = await asyncio.get_running_loop().run_in_executor(CONVERSIONS, convert)
    files.raise_if_failed(await runtime.transfer_files(parcel, profile="swerex:upload"), sent.target)
    return SwerexUploadResponse()


async def close(runtime: RuntimeDep) -> SwerexCloseResponse:
    """Close all SWE-ReX sessions.

    If the first use of a trajectory created the environment, the environment is deleted too.
    """
    await runtime.close()
    return SwerexCloseResponse()


def _add_routes(prefix: str, *, is_documented: bool) -> None:
    posted = (create_session, run_in_session, close_session, execute, read_file, write_file, upload, close)
    for each in (is_alive, *posted):
        has_json = "body" in each.__annotations__
        extra: dict[str, Any] = {"parameters": [ID_PARAMETER]}
        router.add_api_route(
            f"{prefix}/{each.__name__}",
            each,
            methods=["GET" if each is is_alive else "POST"],
            operation_id=f"swerex_{each.__name__}",
            summary=SUMMARIES[each.__name__],
            dependencies=JSON_BODY if has_json else None,
            responses={
                **error_responses(*COMMON_ERRORS, *(BODY_ERRORS if each is not is_alive else ())),
                **ERROR_RESPONSES,
            },
            openapi_extra=extra | (UPLOAD_BODY if each is upload else {}),
            include_in_schema=is_documented,
        )


_add_routes(ENVIRONMENT_PREFIX, is_documented=True)
for form in TRAJECTORY_PREFIXES:
    _add_routes(form, is_documented=False)

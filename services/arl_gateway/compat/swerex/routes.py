"""The routes of SWE-ReX's runtime (`swerex/server.py`), for an environment that is there, and for a trajectory's."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from arl_gateway.compat.swerex import files, programs, shells
from arl_gateway.compat.swerex.bodies import (
    CloseReply,
    CloseSession,
    CloseSessionReply,
    CreateSession,
    CreateSessionReply,
    Execute,
    ExecuteReply,
    IsAlive,
    Raised,
    ReadFile,
    ReadFileReply,
    RunCommand,
    RunInSession,
    SessionReply,
    UploadReply,
    WriteFile,
    WriteFileReply,
)
from arl_gateway.compat.swerex.errors import STATUS, RaisingRoute
from arl_gateway.compat.swerex.multipart import UPLOAD, uploaded
from arl_gateway.compat.swerex.runtime import FILES_WITHIN_S, Runtime, runtime_of, why_not_alive
from arl_gateway.routes import ANY, BODY, JSON_BODY, Writer
from arl_kit.app import documented

__all__ = ["router"]

RAISED: dict[int | str, dict[str, Any]] = {STATUS: {"model": Raised, "description": "What the client raises"}}
ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "format": "uuid"},
    "description": "Of an environment",
}
THERE = "/v1/environments/{id}/swerex"
MADE = ("/trajectories/{trajectory}/swerex", "/trajectories/{trajectory}/with/{options}/swerex")

router = APIRouter(tags=["compatibility"], route_class=RaisingRoute)


async def _runtime(request: Request, caller: Writer) -> Runtime:
    return await runtime_of(request, caller)


Here = Annotated[Runtime, Depends(_runtime)]


async def is_alive(runtime: Here) -> IsAlive:
    """SWE-ReX's: whether commands can be run here."""
    why_not = why_not_alive(await runtime.environment())
    return IsAlive(is_alive=why_not is None, message=why_not or "")


async def create_session(body: CreateSession, runtime: Here) -> CreateSessionReply:
    """SWE-ReX's: open a bash that stays open, and read files in it."""
    action = await runtime.run_in(body.session, shells.opening(body), timeout_s=body.startup_timeout)
    return CreateSessionReply(output=shells.opened(action, body))


async def run_in_session(body: RunInSession, runtime: Here) -> SessionReply:
    """SWE-ReX's: run a command in a session, whose `timeout` counts once it runs; or interrupt what runs."""
    asked = body.root
    shells.must_be_plain(asked)
    if isinstance(asked, RunCommand):
        command = shells.running(asked.command, runtime.mark)
        action = await runtime.run_in(asked.session, command, timeout_s=asked.timeout)
        return shells.observed(action, asked, runtime.mark)
    action = await runtime.run_in(asked.session, shells.running(":", runtime.mark), timeout_s=shells.CLOSES_WITHIN_S)
    return shells.interrupted(action, asked.session, await runtime.output_cut_off(asked.session, action))


async def close_session(body: CloseSession, runtime: Here) -> CloseSessionReply:
    """SWE-ReX's: end a session, and what runs in it."""
    action = await runtime.run_in(body.session, shells.CLOSE, timeout_s=shells.CLOSES_WITHIN_S)
    shells.closed(action, body.session)
    return CloseSessionReply()


async def execute(body: Execute, runtime: Here) -> ExecuteReply:
    """SWE-ReX's: run a program, whose `timeout` counts once it runs."""
    action = await runtime.run(programs.executing(body, runtime.mark), timeout_s=body.timeout)
    return programs.ran(action, body, runtime.mark)


async def read_file(body: ReadFile, runtime: Here) -> ReadFileReply:
    """SWE-ReX's: the text of a file."""
    action = await runtime.run(files.reading(body.path), timeout_s=FILES_WITHIN_S, profile="swerex:read_file")
    return ReadFileReply(content=files.read(action, body))


async def write_file(body: WriteFile, runtime: Here) -> WriteFileReply:
    """SWE-ReX's: write a text file, and make its directories."""
    parcel = files.writing(body.path, body.content.encode(), runtime.mark)
    files.must_be_done(await runtime.deliver(parcel, profile="swerex:write_file"), body.path)
    return WriteFileReply()


async def upload(runtime: Here, request: Request) -> UploadReply:
    """SWE-ReX's: write a file, or unpack a zip archive to a directory."""
    sent = await uploaded(request)
    pack = files.unpacking if sent.is_archive else files.writing
    parcel = await asyncio.to_thread(pack, sent.target, sent.content, runtime.mark)
    files.must_be_done(await runtime.deliver(parcel, profile="swerex:upload"), sent.target)
    return UploadReply()


async def close(runtime: Here) -> CloseReply:
    """SWE-ReX's: end all sessions. An environment of a trajectory, made by its first use, ends with them."""
    await runtime.close()
    return CloseReply()


def _add(at: str, *, is_documented: bool) -> None:
    posted = (create_session, run_in_session, close_session, execute, read_file, write_file, upload, close)
    for each in (is_alive, *posted):
        has_json = "body" in each.__annotations__
        extra: dict[str, Any] = {"parameters": [ID]}
        router.add_api_route(
            f"{at}/{each.__name__}",
            each,
            methods=["GET" if each is is_alive else "POST"],
            operation_id=f"swerex_{each.__name__}",
            dependencies=JSON_BODY if has_json else None,
            responses={**documented(*ANY, *(BODY if each is not is_alive else ())), **RAISED},
            openapi_extra=extra | (UPLOAD if each is upload else {}),
            include_in_schema=is_documented,
        )


_add(THERE, is_documented=True)
for form in MADE:
    _add(form, is_documented=False)

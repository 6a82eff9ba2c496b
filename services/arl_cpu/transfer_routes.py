"""File trees into environments and out of them, as the gateway passes them on."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from arl_cpu.executor import Work
from arl_cpu.snapshots import Snapshots
from arl_cpu.transfers import Transfers
from arl_kit.hops import Hops
from arl_kit.streamed import Streamed
from arl_wire.errors import Unavailable

__all__ = ["ASKED", "WORK", "add_transfers"]

WORK = "/internal/work/"
ASKED = "tangram-work"
"""The header that says what is to be done; the body is an archive."""


def add_transfers(hops: Hops, transfers: Transfers, snapshots: Snapshots) -> None:
    async def work(request: Request) -> Response:
        """In the turn of the action that is named: what the work says, or the archive that it packs."""
        asked, action = json.loads(request.headers[ASKED]), UUID(request.path_params["action"])
        async with AsyncExitStack() as held:
            at_work = await held.enter_async_context(transfers.begun(action, asked))
            if asked.get("whole"):
                return JSONResponse(await snapshots.take(action, at_work))
            said = await at_work.answer()
            if asked["op"] == "unpack":
                said = await _fed(at_work, request)
            if asked["op"] != "pack":
                return JSONResponse(said)
            return Streamed(at_work.output(), held.pop_all(), media_type="application/x-tar", headers={})
        raise AssertionError("the stack swallows nothing")

    hops.add_stream(f"{WORK}{{action}}", work)


async def _fed(work: Work, request: Request) -> Mapping[str, Any]:
    """What it says at its end, which may come before that of the archive."""
    feeding = asyncio.create_task(_feed(work, request.stream()))
    answering = asyncio.create_task(_answer(work))
    try:
        await asyncio.wait((feeding, answering), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done() and isinstance(feeding.exception(), ClientDisconnect):
            raise Unavailable("the archive broke off", retry_after_s=1)
        return await answering
    finally:
        feeding.cancel()
        answering.cancel()
        await asyncio.gather(feeding, answering, return_exceptions=True)


async def _feed(work: Work, archive: AsyncIterator[bytes]) -> None:
    async for chunk in archive:
        if chunk:
            await work.send(chunk)
    await work.send(b"")


async def _answer(work: Work) -> Mapping[str, Any]:
    return await work.answer()

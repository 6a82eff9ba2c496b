"""E2B's code interpreter, port 49999: cells of Python with results and errors as data."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from arl_gateway.compat.e2b.access import INTERPRETER_PREFIX
from arl_gateway.compat.e2b.channels import SandboxChannel, Subscription
from arl_gateway.compat.e2b.envd.connect_codec import parse_message
from arl_gateway.compat.e2b.envd.process_routes import ChannelDep, SandboxDep
from arl_gateway.compat.e2b.errors import ControlRoute, GuestCallError

__all__ = ["router"]

router = APIRouter(prefix=INTERPRETER_PREFIX, route_class=ControlRoute, include_in_schema=False)


@router.get("/health")
async def check_health(sandbox: SandboxDep) -> Response:
    """Report that the sandbox runs."""
    return Response()


@router.post("/execute")
async def execute(request: Request, sandbox: SandboxDep, channel: ChannelDep) -> Response:
    """Run a cell and stream its messages, one JSON object a line. A disconnect interrupts the cell."""
    message = parse_message(await request.body())
    if not isinstance(message.get("code"), str):
        raise GuestCallError("invalid_argument", "code must be a string")
    arguments = {
        "code": message["code"],
        "context_id": message.get("context_id"),
        "language": message.get("language"),
        "envs": message.get("env_vars"),
        "variables": json.loads(sandbox.variables),
    }
    opened: list[Subscription] = []

    def subscribe(result: dict[str, Any]) -> None:
        opened.append(channel.subscribe(result["pid"], after=0))

    pid = (await channel.call("execute", arguments, subscribe))["pid"]
    return StreamingResponse(_lines(channel, pid, opened[0]), media_type="application/x-ndjson")


@router.post("/contexts")
async def create_context(request: Request, sandbox: SandboxDep, channel: ChannelDep) -> Response:
    """Create a context with variables of its own."""
    message = parse_message(await request.body())
    arguments = {"language": message.get("language"), "cwd": message.get("cwd")}
    made = await channel.call("context", {**arguments, "variables": json.loads(sandbox.variables)})
    return JSONResponse(made)


@router.get("/contexts")
async def list_contexts(channel: ChannelDep) -> Response:
    """List the contexts."""
    return JSONResponse((await channel.call("contexts", {}))["contexts"])


@router.post("/contexts/{context_id}/restart")
async def restart_context(context_id: str, channel: ChannelDep) -> Response:
    """Drop all variables of a context."""
    return JSONResponse(await channel.call("restart_context", {"id": context_id}))


@router.delete("/contexts/{context_id}")
async def remove_context(context_id: str, channel: ChannelDep) -> Response:
    """End a context."""
    await channel.call("remove_context", {"id": context_id})
    return Response(status_code=204)


async def _lines(channel: SandboxChannel, pid: int, events: Subscription) -> AsyncIterator[bytes]:
    has_ended = False
    try:
        while True:
            event = await events.get()
            if isinstance(event, GuestCallError) or "lost" in event.get("end", {}):
                has_ended = True
                text = str(event) if isinstance(event, GuestCallError) else "infra_error: the context was lost"
                error = {"type": "error", "name": "InfrastructureError", "value": text, "traceback": text}
                yield json.dumps(error).encode() + b"\n"
                return
            if "end" in event:
                has_ended = True
                return
            yield json.dumps(event["line"]).encode() + b"\n"
    finally:
        channel.unsubscribe(pid, events)
        if not has_ended:
            _interrupt(channel, pid)


def _interrupt(channel: SandboxChannel, pid: int) -> None:
    """Interrupt the cell of a client that has disconnected, without waiting."""
    task = asyncio.ensure_future(channel.call("interrupt", {"pid": pid}))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())

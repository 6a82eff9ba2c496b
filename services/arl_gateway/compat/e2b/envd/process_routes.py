"""envd's process service: start, follow and control processes of a sandbox."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from arl_gateway.compat.e2b.access import ENVD_PREFIX, authenticate_sandbox
from arl_gateway.compat.e2b.channels import SandboxChannel, Subscription
from arl_gateway.compat.e2b.envd.connect_codec import (
    EnvelopeReader,
    encode_end,
    encode_envelope,
    parse_message,
    timeout_of,
)
from arl_gateway.compat.e2b.errors import GuestCallError, RpcRoute, not_supported, rpc_error_body
from arl_gateway.deps import gateway_deps
from arl_store.tx import Row

__all__ = ["ChannelDep", "SandboxDep", "router", "rpc_message"]

STREAM_TYPE = "application/connect+json"
KEEPALIVE_S, MAX_KEEPALIVE_S = 90, 3600
MAX_SENT_INPUT_BYTES = 256 << 10
"""Bytes of input in one request to the sandbox."""

router = APIRouter(prefix=f"{ENVD_PREFIX}/process.Process", route_class=RpcRoute, include_in_schema=False)

Opening = Callable[[], "asyncio.Future[tuple[int, Subscription]]"]


async def _sandbox(request: Request) -> Row:
    return await authenticate_sandbox(request)


SandboxDep = Annotated[Row, Depends(_sandbox)]


async def _channel(request: Request, sandbox: SandboxDep) -> SandboxChannel:
    return gateway_deps(request).sandboxes.channels.channel(sandbox)


ChannelDep = Annotated[SandboxChannel, Depends(_channel)]


async def rpc_message(request: Request) -> dict[str, Any]:
    """Return the message of a unary request. Raises GuestCallError."""
    return parse_message(await request.body())


@router.post("/Start")
async def start_process(request: Request, sandbox: SandboxDep, channel: ChannelDep) -> Response:
    """Start a process and stream its events. The process continues if the client disconnects."""
    message = await first_message(request)
    process = message.get("process")
    if not isinstance(process, dict) or not isinstance(process.get("cmd"), str):
        raise GuestCallError("invalid_argument", "process.cmd must be a string")
    arguments = {
        "process": process,
        "stdin": message.get("stdin", True),
        "pty": message.get("pty"),
        "envs": json.loads(sandbox.variables),
        "user": user_of(request),
        "timeout_s": timeout_of(request.headers.get("connect-timeout-ms")),
    }
    return _event_stream(request, channel, "start", arguments)


@router.post("/Connect")
async def connect_process(request: Request, channel: ChannelDep) -> Response:
    """Stream the events of a process from now on."""
    message = await first_message(request)
    return _event_stream(request, channel, "connect", {"pid": _pid_of(message)})


@router.post("/List")
async def list_processes(channel: ChannelDep) -> Response:
    """List the processes that clients have started."""
    return JSONResponse(await channel.call("processes", {}))


@router.post("/SendInput")
async def send_input(request: Request, channel: ChannelDep) -> Response:
    """Write to the standard input or the terminal of a process."""
    message = await rpc_message(request)
    await _send_input(channel, _pid_of(message), message.get("input"))
    return JSONResponse({})


@router.post("/StreamInput")
async def stream_input(request: Request, channel: ChannelDep) -> Response:
    """Write a stream of messages to the standard input of a process."""
    reader, pid = EnvelopeReader(), None
    try:
        async for data in request.stream():
            for message in reader.add(data):
                if "start" in message:
                    pid = _pid_of(message["start"])
                elif "data" in message and pid is not None:
                    await _send_input(channel, pid, message["data"].get("input"))
    except GuestCallError as error:
        return Response(encode_end(rpc_error_body(error)), media_type=STREAM_TYPE)
    return Response(encode_envelope({}) + encode_end(), media_type=STREAM_TYPE)


@router.post("/CloseStdin")
async def close_stdin(request: Request, channel: ChannelDep) -> Response:
    """Close the standard input of a process."""
    await channel.call("close_stdin", {"pid": _pid_of(await rpc_message(request))})
    return JSONResponse({})


@router.post("/SendSignal")
async def send_signal(request: Request, channel: ChannelDep) -> Response:
    """Send SIGTERM or SIGKILL to a process."""
    message = await rpc_message(request)
    signal = message.get("signal")
    if signal not in ("SIGNAL_SIGTERM", "SIGNAL_SIGKILL"):
        raise GuestCallError("invalid_argument", "signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL")
    await channel.call("signal", {"pid": _pid_of(message), "signal": signal})
    return JSONResponse({})


@router.post("/Update")
async def update_process(request: Request, channel: ChannelDep) -> Response:
    """Resize the terminal of a process."""
    message = await rpc_message(request)
    size = (message.get("pty") or {}).get("size") or {}
    await channel.call(
        "resize", {"pid": _pid_of(message), "cols": int(size.get("cols", 80)), "rows": int(size.get("rows", 24))}
    )
    return JSONResponse({})


@router.post("/{method}")
async def refuse_method(method: str, channel: ChannelDep) -> Response:
    """Refuse a method that this server does not have."""
    raise not_supported(f"process.Process/{method[:64]}")


def keepalive_of(request: Request) -> int:
    """Return the seconds between keepalives of a stream."""
    given = request.headers.get("keepalive-ping-interval", "")
    return int(given) if given.isdigit() and 0 < int(given) <= MAX_KEEPALIVE_S else KEEPALIVE_S


async def first_message(request: Request) -> dict[str, Any]:
    """Return the message of a stream's request. Raises GuestCallError."""
    found = EnvelopeReader().add(await request.body())
    if not found:
        raise GuestCallError("invalid_argument", "the request has no message")
    return found[0]


def _pid_of(message: dict[str, Any]) -> int:
    """Return the process id. Raises GuestCallError."""
    pid = (message.get("process") or {}).get("pid")
    if not isinstance(pid, int):
        raise GuestCallError("invalid_argument", "process.pid must be a number")
    return pid


def user_of(request: Request) -> str:
    """Return the user of a `Basic` header, or an empty string."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(given.strip(), validate=True).decode().partition(":")[0]
    except ValueError:
        raise GuestCallError("unauthenticated", "the header Authorization must be `Basic` with a user") from None


async def _send_input(channel: SandboxChannel, pid: int, given: Any) -> None:
    encoded = (given or {}).get("stdin") or (given or {}).get("pty") or ""
    try:
        data = b64decode(encoded, validate=True)
    except (ValueError, TypeError):
        raise GuestCallError("invalid_argument", "input must be base64") from None
    step = MAX_SENT_INPUT_BYTES // 3 * 3
    whole = [encoded[at : at + step // 3 * 4] for at in range(0, len(encoded), step // 3 * 4)] if data else [""]
    for part in whole:
        await channel.call("input", {"pid": pid, "data": part})


def _event_stream(request: Request, channel: SandboxChannel, op: str, arguments: dict[str, Any]) -> Response:
    content = _stream(channel, op, arguments, keepalive_of(request))
    return StreamingResponse(content, media_type=STREAM_TYPE, headers={"x-accel-buffering": "no"})


async def _stream(channel: SandboxChannel, op: str, arguments: dict[str, Any], every_s: int) -> AsyncIterator[bytes]:
    opened: list[Subscription] = []

    def subscribe(result: dict[str, Any]) -> None:
        opened.append(channel.subscribe(result["pid"], after=result.get("number", 0)))

    # The process must start even if the client disconnects now.
    opening = asyncio.create_task(channel.call(op, arguments, subscribe))
    pid = None
    try:
        pid = (await asyncio.shield(opening))["pid"]
        yield encode_envelope({"event": {"start": {"pid": pid}}})
        async for message in _events(opened[0], every_s):
            yield encode_envelope({"event": message})
        yield encode_end()
    except GuestCallError as error:
        yield encode_end(rpc_error_body(error))
    finally:
        if pid is not None and opened:
            channel.unsubscribe(pid, opened[0])
        elif pid is None:
            opening.add_done_callback(lambda done: _abandon(channel, done, opened))


def _abandon(channel: SandboxChannel, opening: "asyncio.Task[dict[str, Any]]", opened: list[Subscription]) -> None:
    if not opening.cancelled() and opening.exception() is None and opened:
        channel.unsubscribe(opening.result()["pid"], opened[0])


async def _events(events: Subscription, every_s: int) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a process, and keepalives while nothing happens. Raises GuestCallError."""
    while True:
        try:
            async with asyncio.timeout(every_s):
                event = await events.get()
        except TimeoutError:
            yield {"keepalive": {}}
            continue
        if isinstance(event, GuestCallError):
            raise event
        if "end" not in event:
            yield event
            continue
        if "overdue" in event["end"]:
            raise GuestCallError("deadline_exceeded", "the process ran past its timeout and was killed")
        if "lost" in event["end"]:
            raise GuestCallError("internal", "infra_error: the process was lost with the daemon of its sandbox")
        yield event
        return

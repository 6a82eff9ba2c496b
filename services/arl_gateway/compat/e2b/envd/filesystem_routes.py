"""envd's filesystem service: operations on files, and watches of directories."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from arl_gateway.compat.e2b.access import ENVD_PREFIX
from arl_gateway.compat.e2b.channels import SandboxChannel, Subscription
from arl_gateway.compat.e2b.envd.connect_codec import encode_end, encode_envelope, timeout_of
from arl_gateway.compat.e2b.envd.process_routes import (
    STREAM_TYPE,
    ChannelDep,
    first_message,
    keepalive_of,
    rpc_message,
    user_of,
)
from arl_gateway.compat.e2b.errors import GuestCallError, RpcRoute, not_supported, rpc_error_body

__all__ = ["router"]

OPERATIONS = {"Stat": "stat", "MakeDir": "make_dir", "Remove": "remove", "ListDir": "list"}

router = APIRouter(prefix=f"{ENVD_PREFIX}/filesystem.Filesystem", route_class=RpcRoute, include_in_schema=False)


@router.post("/Move")
async def move(request: Request, channel: ChannelDep) -> Response:
    """Move a file or a directory."""
    message = await rpc_message(request)
    paths = {"path": _path_of(message, "source"), "destination": _path_of(message, "destination")}
    return JSONResponse(await channel.call("move", {**paths, "user": user_of(request)}))


@router.post("/CreateWatcher")
async def create_watcher(request: Request, channel: ChannelDep) -> Response:
    """Watch a directory; the client polls the events."""
    made = await channel.call("watch", {**_watch_arguments(await rpc_message(request)), "is_followed": False})
    return JSONResponse({"watcherId": str(-made["pid"])})


@router.post("/GetWatcherEvents")
async def get_watcher_events(request: Request, channel: ChannelDep) -> Response:
    """Return the changes since the last call."""
    pid = _watcher_of(await rpc_message(request))
    return JSONResponse(await channel.call("watch_events", {"pid": pid}))


@router.post("/RemoveWatcher")
async def remove_watcher(request: Request, channel: ChannelDep) -> Response:
    """End a watch."""
    return JSONResponse(await channel.call("unwatch", {"pid": _watcher_of(await rpc_message(request))}))


@router.post("/WatchDir")
async def watch_dir(request: Request, channel: ChannelDep) -> Response:
    """Stream the changes in a directory until the client disconnects or its timeout."""
    arguments = {**_watch_arguments(await first_message(request)), "is_followed": True}
    timeout_s = timeout_of(request.headers.get("connect-timeout-ms"))
    content = _stream_changes(channel, arguments, keepalive_of(request), timeout_s)
    return StreamingResponse(content, media_type=STREAM_TYPE, headers={"x-accel-buffering": "no"})


@router.post("/{method}")
async def call_filesystem(method: str, request: Request, channel: ChannelDep) -> Response:
    """Perform an operation on one path."""
    message = await rpc_message(request)
    if (operation := OPERATIONS.get(method)) is None:
        raise not_supported(f"filesystem.Filesystem/{method[:64]}")
    arguments: dict[str, Any] = {"path": _path_of(message, "path"), "user": user_of(request)}
    if method == "ListDir":
        depth = message.get("depth", 1)
        arguments["depth"] = depth if isinstance(depth, int) else 1
    return JSONResponse(await channel.call(operation, arguments))


def _path_of(message: dict[str, Any], name: str) -> str:
    path = message.get(name, "")
    if not isinstance(path, str) or "\0" in path:
        raise GuestCallError("invalid_argument", f"{name} must be a path")
    return path


def _watch_arguments(message: dict[str, Any]) -> dict[str, Any]:
    flags = {"is_recursive": message.get("recursive", False), "has_entries": message.get("includeEntry", False)}
    return {"path": _path_of(message, "path"), **flags}


def _watcher_of(message: dict[str, Any]) -> int:
    id = message.get("watcherId")
    if not isinstance(id, str) or not id.isdigit() or len(id) > 9:
        raise GuestCallError("not_found", "watcherId does not name a watcher")
    return -int(id)


async def _stream_changes(
    channel: SandboxChannel, arguments: dict[str, Any], every_s: int, timeout_s: float
) -> AsyncIterator[bytes]:
    opened: list[tuple[int, Subscription]] = []

    def subscribe(result: dict[str, Any]) -> None:
        opened.append((result["pid"], channel.subscribe(result["pid"], after=0, is_passive=True)))

    try:
        await channel.call("watch", arguments, subscribe)
        yield encode_envelope({"start": {}})
        async for change in _changes(opened[0][1], every_s, timeout_s):
            yield encode_envelope(change)
    except GuestCallError as error:
        yield encode_end(rpc_error_body(error))
    finally:
        for pid, events in opened:
            channel.unsubscribe(pid, events)


async def _changes(events: Subscription, every_s: int, timeout_s: float) -> AsyncIterator[dict[str, Any]]:
    """Yield changes, and keepalives while nothing changes. Raises GuestCallError."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout_s if timeout_s else None
    while True:
        until = loop.time() + every_s
        try:
            async with asyncio.timeout_at(until if ends_at is None else min(until, ends_at)):
                event = await events.get()
        except TimeoutError:
            if ends_at is not None and loop.time() >= ends_at:
                raise GuestCallError("deadline_exceeded", "the watch ran to its timeout") from None
            yield {"keepalive": {}}
            continue
        if isinstance(event, GuestCallError):
            raise event
        if "end" in event:
            raise GuestCallError("internal", "infra_error: the watch was lost with the daemon of its sandbox")
        yield {"filesystem": event["change"]}

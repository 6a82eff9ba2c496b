"""Internal routes of the CPU manager: grants, resizes, live streams, file transfers and ports."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from arl_cpu.contract.environment_access import FileOperation
from arl_cpu.node.log_streams import AttemptStreams
from arl_cpu.node.manager import CpuManager
from arl_cpu.node.ports import EnvironmentPorts
from arl_cpu.node.snapshots import NodeSnapshots
from arl_cpu.node.transfers import FileTransfers
from arl_kit.http_server.body_streaming import StreamedResponse
from arl_kit.http_server.takeover import UpgradeResponse, relay
from arl_kit.internal_api import InternalApi
from arl_node.lifespan import add_grant_route
from arl_wire.errors import Unavailable
from arl_wire.internal.node import (
    CriticalChangeBatchRequest,
    ReadOutputRequest,
    ResizeBatchRequest,
    ResizeBatchResponse,
    WriteInputRequest,
)

__all__ = [
    "TRANSFER_HEADER",
    "TRANSFER_PATH",
    "add_manager_routes",
    "add_port_route",
    "add_stream_routes",
    "add_transfer_routes",
]

TRANSFER_PATH = "/internal/transfers/"
TRANSFER_HEADER = "tangram-transfer"
"""Name of the header with the operation as JSON. The body is an archive."""
TUNNEL_IDLE_S = 660.0
"""Seconds without a byte after which a tunnel ends. The gateway's limit is a little shorter."""


def add_transfer_routes(api: InternalApi, transfers: FileTransfers, snapshots: NodeSnapshots) -> None:
    """Add the route of file transfers. Operations on snapshots use the node's own files."""

    async def work(request: Request) -> Response:
        """Wait for the grant of the named action, then return the operation's response or stream the packed archive."""
        asked, action = json.loads(request.headers[TRANSFER_HEADER]), UUID(request.path_params["action"])
        async with AsyncExitStack() as held:
            at_work = await held.enter_async_context(transfers.open_transfer(action, asked))
            if asked.get("whole"):
                return JSONResponse(await snapshots.take(action, at_work))
            said = await at_work.read_response()
            if asked["op"] == "unpack":
                said = await _receive_archive(at_work, request)
            if asked["op"] != "pack":
                return JSONResponse(said)
            return StreamedResponse(at_work.output(), held.pop_all(), media_type="application/x-tar", headers={})
        raise AssertionError("the exit stack must not suppress exceptions")

    api.add_stream(f"{TRANSFER_PATH}{{action}}", work)


async def _receive_archive(operation: FileOperation, request: Request) -> Mapping[str, Any]:
    """Send the archive and return the final response, which may arrive before the archive ends."""
    feeding = asyncio.create_task(_send_archive(operation, request.stream()))
    answering = asyncio.create_task(_read_response(operation))
    try:
        await asyncio.wait((feeding, answering), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done() and isinstance(feeding.exception(), ClientDisconnect):
            raise Unavailable("the archive ended early", retry_after_s=1)
        return await answering
    finally:
        feeding.cancel()
        answering.cancel()
        await asyncio.gather(feeding, answering, return_exceptions=True)


async def _send_archive(operation: FileOperation, archive: AsyncIterator[bytes]) -> None:
    async for chunk in archive:
        if chunk:
            await operation.send(chunk)
    await operation.send(b"")


async def _read_response(operation: FileOperation) -> Mapping[str, Any]:
    return await operation.read_response()


def add_manager_routes(api: InternalApi, manager: CpuManager) -> None:
    """Add the routes on which the scheduler notifies this node of grants and resizes."""
    add_grant_route(api, manager)

    async def resizes(batch: ResizeBatchRequest) -> ResizeBatchResponse:
        """Resize attempts.

        The response follows once the new cores apply. Only then may the scheduler grant freed cores.
        """
        return ResizeBatchResponse(answers=await manager.resize(batch.resizes, epoch=batch.node_epoch))

    async def critical(batch: CriticalChangeBatchRequest) -> None:
        """Change the weights of granted actions."""
        await manager.set_critical(batch.changes, epoch=batch.node_epoch)

    api.add_route("/internal/resizes", ResizeBatchRequest, resizes)
    api.add_route("/internal/critical", CriticalChangeBatchRequest, critical)


def add_stream_routes(api: InternalApi, streams: AttemptStreams) -> None:
    """Add the routes by which the gateway reads and feeds running attempts for authorized clients."""
    api.add_route("/internal/output", ReadOutputRequest, streams.poll_output, long_poll=True)
    api.add_route("/internal/input", WriteInputRequest, streams.feed_stdin)


def add_port_route(api: InternalApi, ports: EnvironmentPorts) -> None:
    """Add the route by which the gateway connects to servers inside environments."""

    async def connect(request: Request) -> Response:
        """Connect before the response, so that an error reaches the gateway as a problem."""
        environment, port = UUID(request.path_params["environment"]), int(request.path_params["port"])
        project = int(request.path_params["project"])
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(ports.connect(project, environment, port))
            closing = stack.pop_all()

        async def serve(client: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
            """Relay until both sides have ended."""
            async with closing:
                await relay(client, server, idle_s=TUNNEL_IDLE_S, stop=ports.draining)

        return UpgradeResponse([(b"connection", b"upgrade"), (b"upgrade", b"tcp")], serve)

    api.add_tunnel("/internal/ports/{project:int}/{environment}/{port:int}", connect)

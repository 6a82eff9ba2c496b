"""Test that a hanging service does not block calls to other services."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from arl_kit.service_client import ServiceClient
from arl_kit.service_tokens import TokenIssuer
from arl_wire.internal.scheduler import ResourcesFreedNotification

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@asynccontextmanager
async def serving(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    async def each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.readline() not in (b"\r\n", b""):
                pass
            await answer(writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(each, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.close()
        await server.wait_closed()


async def test_hanging_service_does_not_block_calls_to_other_services() -> None:
    hang, arrived = asyncio.Event(), asyncio.Queue[None]()

    async def hanging(_: asyncio.StreamWriter) -> None:
        arrived.put_nowait(None)
        await hang.wait()

    async def answering(writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER)
        await writer.drain()

    peers = ServiceClient(TokenIssuer("cpu", "t" * 16), max_per_service=4)
    await peers.start()
    try:
        async with serving(hanging) as silent, serving(answering) as other:
            for _ in range(40):
                peers.notify(silent, ResourcesFreedNotification(fences=[]), audience="scheduler")
            for _ in range(4):
                await arrived.get()
            assert await asyncio.wait_for(peers.call(other, "{}", audience="scheduler"), 2) == b"{}"
            hang.set()
    finally:
        await peers.stop()

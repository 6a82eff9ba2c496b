"""Test connections that leave HTTP, and the relay between two of them."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from arl_kit.http_server import takeover
from arl_kit.http_server.connection_limits import ConnectionLimits, limited_protocol
from arl_kit.http_server.takeover import UpgradeResponse, add_takeover, can_take_over, open_streams, relay
from arl_kit.service_client import ServiceClient
from arl_kit.service_tokens import TokenIssuer
from arl_wire.errors import TangramError, Unavailable

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OFFER = b"GET /%b HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n"


async def upper(request: Request) -> Response:
    async def serve(streams: Streams) -> None:
        """Return the input in upper case, and a last line after its end."""
        reader, writer = streams
        while data := await reader.read(1 << 16):
            writer.write(data.upper())
            await writer.drain()
        writer.write(b"END")

    return UpgradeResponse([(b"upgrade", b"tcp")], serve)


async def plain(request: Request) -> Response:
    return PlainTextResponse(f"<{can_take_over(request.scope)}>")


async def refuse(request: Request) -> Response:
    problem = '{"title": "No", "status": 409, "detail": "not now", "code": "conflict"}'
    return Response(problem, 409, media_type="application/problem+json")


@asynccontextmanager
async def served() -> AsyncIterator[tuple[str, int]]:
    routes = [Route("/upper", upper), Route("/plain", plain), Route("/refuse", refuse)]
    config = uvicorn.Config(Starlette(routes=routes), http=limited_protocol(ConnectionLimits()), log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = True
            await running


@pytest.mark.parametrize("protocol", [b"tcp", b"WebSocket"])
async def test_taken_over_connection_carries_bytes_both_ways_and_half_closes(protocol: bytes) -> None:
    async with served() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(OFFER % (b"upper", protocol) + b"early ")  # before the response
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 101 Switching Protocols\r\nupgrade: tcp\r\n\r\n"
        writer.write(b"x" * (1 << 20))
        writer.write_eof()
        assert await reader.read() == b"EARLY " + b"X" * (1 << 20) + b"END"
        writer.close()


async def test_connection_that_is_not_taken_over_ends_after_the_response() -> None:
    async with served() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(OFFER % (b"plain", b"tcp"))
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert answer.endswith(b"<True>")
        writer.close()


async def test_other_offers_cannot_be_taken_over() -> None:
    async with served() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(OFFER % (b"plain", b"h2c"))
        assert (await reader.readuntil(b">")).endswith(b"<False>")
        writer.close()


class Ended(asyncio.Protocol):
    """A protocol that counts the ends of its connection."""

    def __init__(self) -> None:
        self.ends = 0
        self.ended = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends += 1
        self.ended.set()


async def test_response_for_a_connection_that_is_lost_is_served_and_ends() -> None:
    near, far = socket.socketpair()
    transport, before = await asyncio.get_running_loop().create_connection(Ended, sock=near)
    transport.abort()
    await before.ended.wait()
    released = asyncio.Event()

    async def serve(streams: Streams) -> None:
        """Read until the client ends."""
        try:
            await streams[0].read()
        finally:
            released.set()

    async def ignore(message: object) -> None:
        del message

    scope: dict[str, object] = {"type": "http"}
    add_takeover(scope, lambda: open_streams(transport, before, b""))
    with far:
        await asyncio.wait_for(UpgradeResponse([], serve)(scope, Request({"type": "http"}).receive, ignore), 5)
    assert (released.is_set(), before.ends) == (True, 1)


async def test_tunnel_of_a_service_returns_streams_or_raises_the_error_of_the_peer() -> None:
    client = ServiceClient(TokenIssuer("a", "t" * 32))
    async with served() as (host, port):
        reader, writer = await client.open_tunnel(f"http://{host}:{port}/upper", audience="b")
        writer.write(b"a")
        assert await reader.readexactly(1) == b"A"
        writer.close()
        with pytest.raises(TangramError, match="not now"):
            await client.open_tunnel(f"http://{host}:{port}/refuse", audience="b")
    with pytest.raises(Unavailable):
        await client.open_tunnel(f"http://{host}:{port}/upper", audience="b")


@asynccontextmanager
async def pairs() -> AsyncIterator[tuple[tuple[Streams, Streams], tuple[Streams, Streams]]]:
    """Provide both ends of two connections: a client's and a server's."""
    ends = [*socket.socketpair(), *socket.socketpair()]
    near, first, second, far = [await asyncio.open_connection(sock=end) for end in ends]
    yield (near, first), (second, far)
    for _, writer in (near, first, second, far):
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_relay_ends_when_both_sides_have_ended() -> None:
    async with pairs() as ((near, first), (second, far)):
        relaying = asyncio.create_task(relay(first, second, idle_s=60, stop=asyncio.Event()))
        near[1].write(b"question")
        near[1].write_eof()
        assert await far[0].read() == b"question"
        far[1].write(b"answer")
        far[1].close()
        assert await near[0].read() == b"answer"
        await asyncio.wait_for(relaying, 5)


@pytest.mark.parametrize(("idle_s", "is_stopped"), [(0.05, False), (60, True)], ids=["idle", "stopped"])
async def test_relay_ends_without_bytes_and_when_it_is_stopped(idle_s: float, is_stopped: bool) -> None:
    async with pairs() as ((near, first), (second, far)):
        stop = asyncio.Event()
        if is_stopped:
            stop.set()
        await asyncio.wait_for(relay(first, second, idle_s=idle_s, stop=stop), 5)
        assert (await near[0].read(), await far[0].read()) == (b"", b"")


async def test_relay_reads_no_faster_than_the_other_side() -> None:
    async with pairs() as ((near, first), (second, far)):
        relaying = asyncio.create_task(relay(first, second, idle_s=60, stop=asyncio.Event()))
        far[1].transport.pause_reading()  # type: ignore[attr-defined]
        near[1].write(b"x" * (64 << 20))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(near[1].drain(), 0.2)
        assert second[1].transport.get_write_buffer_size() < 1 << 20
        for _, writer in (near, far):
            writer.transport.abort()
        await asyncio.wait_for(relaying, 5)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["ended", "stopped"])
async def test_relay_aborts_a_peer_that_does_not_read_the_last_output(
    is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "FLUSH_S", 60.0 if is_stopped else 0.05)
    async with pairs() as ((near, first), (second, far)):
        near[1].transport.pause_reading()  # type: ignore[attr-defined]
        first[1].transport.set_write_buffer_limits(high=64 << 20)
        first[1].write(b"x" * (16 << 20))
        for _, writer in (near, far):
            writer.write_eof()
        stop = asyncio.Event()
        if is_stopped:
            stop.set()
        await asyncio.wait_for(relay(first, second, idle_s=60, stop=stop), 5)
        assert first[1].transport.get_write_buffer_size() == 0
        await asyncio.wait_for(first[1].wait_closed(), 5)


async def test_relay_ends_when_a_peer_reads_nothing_and_the_other_one_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "STALL_S", 0.1)
    async with pairs() as ((near, first), (second, far)):
        far[1].transport.pause_reading()  # type: ignore[attr-defined]
        near[1].write(b"x" * (16 << 20))
        relaying = asyncio.create_task(relay(first, second, idle_s=60, stop=asyncio.Event()))
        await asyncio.wait_for(relaying, 5)


async def test_relay_delivers_the_last_output_to_a_slow_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "FLUSH_S", 5.0)
    async with pairs() as ((near, first), (second, far)):
        first[1].transport.set_write_buffer_limits(high=64 << 20)
        first[1].write(b"x" * (16 << 20))
        for _, writer in (near, far):
            writer.write_eof()
        relaying = asyncio.create_task(relay(first, second, idle_s=60, stop=asyncio.Event()))
        assert len(await near[0].read()) == 16 << 20
        await asyncio.wait_for(relaying, 5)

"""Connections that leave HTTP: a response that switches protocols, and the relay of bytes between two connections."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = [
    "TAKEOVER_PROTOCOLS",
    "UpgradeResponse",
    "add_takeover",
    "can_take_over",
    "close_connection",
    "open_streams",
    "relay",
]

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

TAKEOVER_PROTOCOLS = frozenset({b"tcp", b"websocket"})
"""Values of `Upgrade` for which an application may take over the connection. `tcp` carries plain bytes."""
RELAY_CHUNK_BYTES = 64 << 10
FLUSH_S = 3.0
"""Seconds in which a peer must accept some of the last output. Otherwise its connection is aborted."""
STALL_S = 120.0
"""Seconds in which a peer must accept some output. The loss of the other peer may not be noticed before."""
_KEY = "tangram.takeover"


class HttpConnection(Protocol):
    """The HTTP protocol of a connection that was taken over. It is told only of the end."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""


class _TakenOverProtocol(asyncio.StreamReaderProtocol):
    def __init__(self, reader: asyncio.StreamReader, before: HttpConnection) -> None:
        super().__init__(reader)
        self._before = before

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._before.connection_lost(exc)


def add_takeover(scope: Any, take_over: Callable[[], Streams]) -> None:
    """Let the application of a request take over its connection."""
    scope["extensions"] = {**scope.get("extensions", {}), _KEY: take_over}


def can_take_over(scope: Scope) -> bool:
    """Return True if the client offers a protocol of `TAKEOVER_PROTOCOLS`."""
    return _KEY in scope.get("extensions", {})


def open_streams(transport: asyncio.Transport, before: HttpConnection, received: bytes) -> Streams:
    """Return the streams of a connection that has left HTTP. `received` was read already.

    A connection that has ended meanwhile has streams that raise ConnectionResetError.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=RELAY_CHUNK_BYTES, loop=loop)
    if transport.is_closing():
        ended = asyncio.StreamReaderProtocol(reader, loop=loop)
        ended.connection_made(transport)
        ended.connection_lost(ConnectionResetError("the client has gone"))  # `transport` reports it only to `before`
        return reader, asyncio.StreamWriter(transport, ended, reader, loop)
    protocol = _TakenOverProtocol(reader, before)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if received:
        reader.feed_data(received)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class UpgradeResponse(Response):
    """The response 101, after which `serve` has the connection until it returns."""

    def __init__(self, headers: Sequence[tuple[bytes, bytes]], serve: Callable[[Streams], Awaitable[None]]) -> None:
        super().__init__(status_code=HTTPStatus.SWITCHING_PROTOCOLS)
        self._fields, self._serve = headers, serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader, writer = scope["extensions"][_KEY]()
        try:
            # The server has let go of the connection, so that this message only reaches the metrics.
            await send({"type": "http.response.start", "status": self.status_code, "headers": []})
            lines = [b"HTTP/1.1 101 Switching Protocols", *(b"%s: %s" % field for field in self._fields)]
            if not writer.is_closing():
                writer.write(b"\r\n".join([*lines, b"", b""]))
            await self._serve((reader, writer))
        except OSError:
            pass  # the client has gone
        finally:
            await close_connection(writer, FLUSH_S)


async def close_connection(writer: asyncio.StreamWriter, flush_s: float) -> None:
    """Close a connection and wait until it is lost. A peer that accepts no output for `flush_s` seconds is aborted."""
    lost = asyncio.gather(writer.wait_closed(), return_exceptions=True)
    writer.close()
    try:
        left = writer.transport.get_write_buffer_size()
        while flush_s and not lost.done():
            await asyncio.wait((lost,), timeout=flush_s)
            before, left = left, writer.transport.get_write_buffer_size()
            if left >= before:
                break
    finally:
        # A plain connection without output is lost already, and asyncio then cannot abort it.
        if writer.transport.get_write_buffer_size() or writer.get_extra_info("sslcontext") is not None:
            writer.transport.abort()
    await lost


async def relay(first: Streams, second: Streams, *, idle_s: float, stop: asyncio.Event) -> None:
    """Send the bytes of each connection to the other one, until both have ended or one is lost.

    A connection that ends only its output can still receive. Neither is read faster than the other one accepts. The
    relay also ends after `idle_s` seconds without a byte, and when `stop` is set. Both connections are then lost.
    A peer that does not read for `STALL_S` seconds counts as lost.
    """
    flush_s = 0.0
    clock = _IdleClock()
    pumps = [
        asyncio.create_task(_pump(source, target, clock))
        for (source, _), (_, target) in ((first, second), (second, first))
    ]
    stopping = asyncio.create_task(stop.wait())
    try:
        while not all(pump.done() for pump in pumps) and (left_s := idle_s - clock.idle_s) > 0:
            running = [stopping, *(pump for pump in pumps if not pump.done())]
            await asyncio.wait(running, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done() or any(pump.done() and pump.exception() is not None for pump in pumps):
                return
        if all(pump.done() for pump in pumps):
            flush_s = FLUSH_S
    finally:
        for task in (stopping, *pumps):
            task.cancel()
        await asyncio.gather(stopping, *pumps, return_exceptions=True)
        await asyncio.gather(*(close_connection(writer, flush_s) for _, writer in (first, second)))


class _IdleClock:
    def __init__(self) -> None:
        self._last = time.monotonic()

    @property
    def idle_s(self) -> float:
        return time.monotonic() - self._last

    def restart(self) -> None:
        self._last = time.monotonic()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, clock: _IdleClock) -> None:
    while data := await reader.read(RELAY_CHUNK_BYTES):
        clock.restart()
        writer.write(data)
        await _drain(writer, clock)
        clock.restart()
    with suppress(OSError, NotImplementedError):  # TLS cannot end one direction
        writer.write_eof()


async def _drain(writer: asyncio.StreamWriter, clock: _IdleClock) -> None:
    """Wait until the peer has accepted most of the output. Raises TimeoutError if it accepts nothing."""
    left = writer.transport.get_write_buffer_size()
    while True:
        try:
            async with asyncio.timeout(STALL_S) as limit:
                return await writer.drain()
        except TimeoutError:
            before, left = left, writer.transport.get_write_buffer_size()
            if not limit.expired() or left >= before:
                raise
        clock.restart()

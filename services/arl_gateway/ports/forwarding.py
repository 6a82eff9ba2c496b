"""Forwarding of one request to a server inside an environment, streamed in both directions.

The server is not trusted: its header and the time between two of its bytes are limited, and it never gets our
credentials. Each request has its own connection, so that a response cannot reach another client.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import h11
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from arl_gateway.http.auth import Caller
from arl_gateway.ports.activity import PortConnection
from arl_gateway.ports.connections import PortConnections
from arl_gateway.ports.relayed_headers import Headers, PortAddress, is_valid_head, request_headers, response_headers
from arl_kit.http_server.takeover import Streams, UpgradeResponse, can_take_over, relay
from arl_store.tx import Row
from arl_wire.errors import BadRequest, ServerFailed, TangramError

__all__ = ["PortForwarder", "PortTarget"]

IDLE_S = 600.0
"""Seconds without a byte after which a request or a connection ends."""
MAX_HEADER_BYTES = 64 << 10
MAX_INTERIM_RESPONSES = 16
READ_BYTES = 64 << 10
BODILESS = frozenset({204, 304})


@dataclass(frozen=True, slots=True, kw_only=True)
class PortTarget:
    """The port that a request is for, and the part of the request that the server gets."""

    environment: Row
    port: int
    caller: Caller
    target: bytes
    """Path and query."""
    address: PortAddress


class PortForwarder:
    """The forwarding of requests, of WebSockets, and of plain bytes."""

    def __init__(self, connections: PortConnections) -> None:
        self.connections = connections

    async def forward(self, request: Request, target: PortTarget) -> Response:
        """Return the server's response, or a response that connects the client with the server.

        Raises TangramError.
        """
        offered = request.headers.get("upgrade", "").lower() if can_take_over(request.scope) else ""
        async with AsyncExitStack() as stack:
            opening = self.connections.connect(target.environment, target.port, target.caller)
            connection = await stack.enter_async_context(opening)
            if offered == "tcp":
                return _connected([(b"connection", b"upgrade"), (b"upgrade", b"tcp")], connection, b"", stack.pop_all())
            exchange = _HttpExchange(request, connection)
            stack.push_async_callback(exchange.close)
            head = await exchange.start(target, is_websocket=offered == "websocket")
            fields = response_headers(head.headers, target.address)
            if head.status_code == 101:
                fields += [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
                return _connected(fields, connection, exchange.received, stack.pop_all())
            if head.status_code in BODILESS:
                fields = [field for field in fields if field[0] != b"content-length"]
            return _ForwardedResponse(head.status_code, fields, exchange, stack.pop_all())
        raise AssertionError("the exit stack must not suppress exceptions")


def _connected(
    fields: Headers, connection: PortConnection, received: bytes, closing: AsyncExitStack
) -> UpgradeResponse:
    """Return the response that connects the client with the server. `received` is the server's first output."""

    async def serve(client: Streams) -> None:
        """Relay until both sides have ended."""
        async with closing:
            client[1].write(received)
            server = connection.reader, connection.writer
            await relay(client, server, idle_s=IDLE_S, stop=connection.stopped)

    return UpgradeResponse(fields, serve)


class _HttpExchange:
    """One request and its response on a connection."""

    def __init__(self, request: Request, connection: PortConnection) -> None:
        self._request, self._connection = request, connection
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
        self._client: asyncio.Task[None] | None = None
        """Task that sends the client's body, and ends with an exception when the client disconnects."""

    @property
    def received(self) -> bytes:
        """Return the bytes after a response that switches protocols."""
        return self._http.trailing_data[0]

    async def start(self, target: PortTarget, *, is_websocket: bool) -> h11.Response | h11.InformationalResponse:
        """Send the request and return the head of the response. The body of the request follows in the background."""
        fields = request_headers(self._request, target.address, is_websocket=is_websocket)
        try:
            method = self._request.method.encode()
            head = self._http.send(h11.Request(method=method, target=target.target, headers=fields))
        except h11.LocalProtocolError as error:
            raise BadRequest(f"the request cannot be forwarded: {error}") from None
        assert head is not None
        self._connection.writer.write(head)
        self._client = asyncio.create_task(self._follow_client())
        for _ in range(MAX_INTERIM_RESPONSES):
            event = await self._next_event()
            if isinstance(event, h11.Response):
                if not is_valid_head(event.status_code, event.headers):
                    raise self._failed("sent an invalid response: its status or a header cannot be sent on")
                return event
            if isinstance(event, h11.InformationalResponse) and event.status_code == 101 and is_websocket:
                return event
            if not isinstance(event, h11.InformationalResponse):
                break
        raise self._failed("sent no response")

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body of the response. Raises ServerFailed, and ClientDisconnect."""
        while isinstance(event := await self._next_event(), h11.Data):
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise self._failed("ended its response early")

    async def close(self) -> None:
        """Stop reading from the client. The owner of the connection closes it."""
        if self._client is not None:
            self._client.cancel()
            await asyncio.gather(self._client, return_exceptions=True)

    async def _next_event(self) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._read())
        except h11.RemoteProtocolError as error:
            raise self._failed(f"sent an invalid response: {error}") from None
        return event

    async def _read(self) -> bytes:
        """Return the next bytes of the server. Raises ClientDisconnect if the client disconnects first."""
        assert self._client is not None
        reading = asyncio.ensure_future(self._connection.reader.read(READ_BYTES))
        try:
            await asyncio.wait((reading, self._client), timeout=IDLE_S, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done() and self._client.done():
                self._client.result()
            if not reading.done():
                raise self._failed(f"sent nothing for {IDLE_S:.0f} s")
            return reading.result()
        except OSError:
            return b""
        finally:
            reading.cancel()

    async def _follow_client(self) -> None:
        """Send the body, then wait for the client to disconnect. A server that stops reading may still respond."""
        writer = self._connection.writer
        with suppress(OSError):
            async for chunk in self._request.stream():
                if chunk:
                    writer.write(self._http.send(h11.Data(data=chunk)) or b"")
                    await writer.drain()
            writer.write(self._http.send(h11.EndOfMessage()) or b"")
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect

    def _failed(self, what: str) -> Exception:
        return self._connection.error or ServerFailed(f"the server in the environment {what}")


class _ForwardedResponse(Response):
    """A response that is sent while it arrives. It ends early if the server fails or the client disconnects."""

    def __init__(self, status: int, fields: Headers, exchange: _HttpExchange, closing: AsyncExitStack) -> None:
        super().__init__(status_code=status)
        self.raw_headers = fields
        self._exchange, self._closing = exchange, closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._closing:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            # The server closes a connection whose response is not completed, so that the client notices it.
            with suppress(TangramError, ClientDisconnect, HTTPException):
                async for chunk in self._exchange.body():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})

"""Forwarding of one request to one cell, streamed in both directions."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import suppress

import aiohttp
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from arl_cell_router.cells.cell_link import CellLink, CellReply
from arl_cell_router.cells.cell_links import RelayedHead
from arl_wire.cells import CELL_HEADER
from arl_wire.errors import ERROR_CODES, CellUnavailable

__all__ = ["CLIENT_CLOSED", "forward", "reply_response", "request_head"]

HOP_HEADERS = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade", "http2-settings"),
    }
)
"""Headers of one connection (RFC 9110, section 7.6.1), which are never forwarded."""
OWN_REQUEST_HEADERS = frozenset({"host", "expect", "x-forwarded-for", CELL_HEADER})
OWN_RESPONSE_HEADERS = frozenset({"date", CELL_HEADER})
MAX_BUFFERED_BYTES = 256 << 10
"""Bytes of a response of known length that is read before it is sent, in one piece."""
PROBLEM_TYPE = "application/problem+json"
CLIENT_CLOSED = 499
"""Status for metrics if the client disconnected before the response."""

HeaderList = list[tuple[str, str]]


def request_head(request: Request) -> RelayedHead:
    """Return the head of a request as it is sent to cells."""
    scope = request.scope
    query = scope["query_string"].decode("latin-1")
    target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    headers = _end_to_end(pairs, OWN_REQUEST_HEADERS)
    before = [value for name, value in pairs if name == "x-forwarded-for"]
    client = [request.client.host] if request.client is not None else []
    headers.append(("x-forwarded-for", ", ".join([*before, *client])))
    return RelayedHead(request.method, target, headers)


def _has_body(request: Request) -> bool:
    """Return True if the request announces a body."""
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


async def forward(
    request: Request, link: CellLink, *, body: bytes | None = None, is_upstream: bool = False
) -> Response:
    """Return the response of a cell. If the client disconnects, the request to the cell is cancelled.

    `body` is a body that was read already; otherwise the body is streamed. The response of an external API
    (`is_upstream`) is not changed. Raises `CellUnavailable`.
    """
    head = request_head(request)
    streamed = _StreamedBody(request.receive) if body is None and _has_body(request) else None
    pending = link.open(head.method, head.target, head.headers, streamed.chunks() if streamed is not None else body)
    try:
        response = await _unless_disconnected(request, pending, streamed)
        return await _to_response(response, link.number, is_upstream=is_upstream)
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED)
    except CellUnavailable:
        if streamed is not None and streamed.error is not None:
            raise streamed.error from None  # the body exceeds a limit, and the cell is not to blame
        raise
    except (aiohttp.ClientError, TimeoutError) as error:
        raise link.unavailable(type(error).__name__, request=(head.method, head.headers)) from error


def reply_response(reply: CellReply, *, is_upstream: bool = False) -> Response:
    """Return a complete response of a cell as the response to the client."""
    response = Response(reply.body if is_upstream else _with_cell_in_problem(reply), reply.status)
    headers = [(name.lower(), value) for name, value in reply.headers.items()]
    _set_headers(response, headers, reply.cell, length=len(response.body))
    return response


class _StreamedBody:
    """A request body that is forwarded while it arrives."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.ended = asyncio.Event()
        self.error: Exception | None = None
        """The error of a body that exceeds a limit."""

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body."""
        try:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                if message.get("body"):
                    yield message["body"]
                if not message.get("more_body", False):
                    break
        except Exception as error:
            self.error = error
            raise
        self.ended.set()


async def _unless_disconnected(
    request: Request, pending: Coroutine[None, None, aiohttp.ClientResponse], streamed: _StreamedBody | None
) -> aiohttp.ClientResponse:
    """Return the result of `pending`. Cancel it and raise `ClientDisconnect` if the client goes."""
    asked = asyncio.ensure_future(pending)
    gone = asyncio.ensure_future(_wait_disconnected(request.receive, streamed))
    try:
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            asked.cancel()
            await asyncio.wait({asked})
            raise ClientDisconnect
        return asked.result()
    finally:
        for task in (asked, gone):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await gone


async def _wait_disconnected(receive: Receive, streamed: _StreamedBody | None = None) -> None:
    """Return when the client has disconnected. Messages before the end of a streamed body belong to that."""
    if streamed is not None:
        await streamed.ended.wait()
    while (await receive())["type"] != "http.disconnect":
        pass


async def _to_response(response: aiohttp.ClientResponse, cell: int, *, is_upstream: bool) -> Response:
    length = response.headers.get("content-length", "")
    is_short = length.isdigit() and int(length) <= MAX_BUFFERED_BYTES and response.method != "HEAD"
    if is_short:
        async with response:
            reply = CellReply(cell, response.status, await response.read(), response.headers)
            return reply_response(reply, is_upstream=is_upstream)
    return _RelayedResponse(response, cell)


class _RelayedResponse(Response):
    """A response that is sent while it arrives. If the client disconnects, the cell notices it."""

    def __init__(self, source: aiohttp.ClientResponse, cell: int) -> None:
        super().__init__(status_code=source.status)
        self._source = source
        headers = [(name.lower(), value) for name, value in source.headers.items()]
        _set_headers(self, headers, cell)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._source:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            sending = asyncio.ensure_future(self._send_body(send))
            gone = asyncio.ensure_future(_wait_disconnected(receive))
            try:
                await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    sending.result()
            finally:
                for task in (sending, gone):
                    task.cancel()
                await asyncio.wait({sending, gone})

    async def _send_body(self, send: Send) -> None:
        async for chunk in self._source.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _set_headers(response: Response, headers: HeaderList, cell: int, *, length: int | None = None) -> None:
    """Set the headers of a cell's response. `length` replaces its length, because the body may have been changed."""
    kept = _end_to_end(headers, OWN_RESPONSE_HEADERS)
    if length is not None and any(name == "content-length" for name, _ in kept):
        kept = [(name, value if name != "content-length" else str(length)) for name, value in kept]
    kept.append((CELL_HEADER, str(cell)))
    response.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept]


def _end_to_end(headers: Iterable[tuple[str, str]], own: frozenset[str]) -> HeaderList:
    """Return the headers that a proxy forwards, without those that it sets itself."""
    pairs = list(headers)
    named = {token.strip().lower() for name, value in pairs if name == "connection" for token in value.split(",")}
    return [(name, value) for name, value in pairs if name not in HOP_HEADERS | own | named]


def _with_cell_in_problem(reply: CellReply) -> bytes:
    """Name the cell in the problem of a gateway that cannot serve requests now. Other bodies stay as they are."""
    media_type = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not reply.is_missing or media_type != PROBLEM_TYPE or len(reply.body) > MAX_BUFFERED_BYTES:
        return reply.body
    try:
        problem = json.loads(reply.body)
        if problem["code"] not in ERROR_CODES:
            return reply.body
        return json.dumps({**problem, "detail": f"cell {reply.cell}: {problem['detail']}"}).encode()
    except (ValueError, LookupError, TypeError, RecursionError):
        return reply.body

"""Streaming of bodies that are too large for memory, and draining of request bodies after an early response."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress

from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["RequestBodyDrainer", "StreamedResponse"]

DRAIN_TIMEOUT_S = 10.0
"""Seconds to drain a request body after a response of known length.

A client that reads the response disconnects sooner.
"""


class StreamedResponse(Response):
    """A streamed response that closes `exit_stack` at its end, whether all, some or none of it was sent.

    An error in the content aborts the response.
    """

    def __init__(
        self, content: AsyncIterator[bytes], exit_stack: AsyncExitStack, *, media_type: str, headers: Mapping[str, str]
    ) -> None:
        super().__init__()
        self._response = StreamingResponse(content, media_type=media_type, headers=headers)
        self._exit_stack = exit_stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._exit_stack:
            await self._response(scope, receive, send)


class RequestBodyDrainer:
    """A middleware that reads and discards the rest of a request body after an early response.

    Closing a connection with unread bytes resets it. The client may then lose a response that it has not read yet.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _RequestBody(receive)
        has_length = False

        async def sent(message: Message) -> None:
            """Send a message; drain the request body before the last one if the response has a known length."""
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
            elif has_length and not message.get("more_body") and not body.has_ended:
                await send({**message, "more_body": True})
                await body.drain()
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._app(scope, body.receive, sent)


class _RequestBody:
    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.has_ended = False

    async def receive(self) -> Message:
        """Receive the next message and note whether the body has ended."""
        message = await self._receive()
        self.has_ended = not message.get("more_body")
        return message

    async def drain(self) -> None:
        """Read and discard the rest of the body, at most for `DRAIN_TIMEOUT_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while not self.has_ended:
                    await self.receive()

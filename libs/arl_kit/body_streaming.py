"""Bodies that are too long to be held: passed on as they come, and read even where nobody wants the rest."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress

from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["RequestBodyDrainer", "StreamedResponse"]

DRAIN_TIMEOUT_S = 10.0
"""After an answer of known length: whoever reads it goes away then, and needs no more time."""


class StreamedResponse(Response):
    """`held` ends with the answer, whether all of it was sent, some, or none. A break in the content is one outside."""

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
    """An answer that comes before the end of a body is heard: what is still sent is read and thrown away.

    Closing a connection with unread bytes resets it, and its other end may lose an answer that it had not read yet.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _RequestBody(receive)
        has_length = False

        async def sent(message: Message) -> None:
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
        message = await self._receive()
        self.has_ended = not message.get("more_body")
        return message

    async def drain(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while not self.has_ended:
                    await self.receive()

"""An answer that is passed on as it comes."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

__all__ = ["Streamed"]


class Streamed(Response):
    """`held` ends with the answer, whether all of it was sent, some, or none. A break in the content is one outside."""

    def __init__(
        self, content: AsyncIterator[bytes], held: AsyncExitStack, *, media_type: str, headers: Mapping[str, str]
    ) -> None:
        super().__init__()
        self._answer = StreamingResponse(content, media_type=media_type, headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await self._answer(scope, receive, send)

"""Server-sent events on their way out: alive while nothing happens, over when we stop, no faster than the client."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Message, Send

__all__ = ["EventStream", "kept_alive"]

HEARTBEAT_S = 15.0
STALLED_S = 120.0
"""Who takes nothing for so long is cut off."""
HEARTBEAT = format_sse_event(comment="alive")


class EventStream(EventSourceResponse):
    """Ends its events whenever and however the client ends."""

    body_iterator: AsyncGenerator[bytes, None]

    async def stream_response(self, send: Send) -> None:
        async def patiently(message: Message) -> None:
            async with asyncio.timeout(STALLED_S):
                await send(message)

        async with aclosing(self.body_iterator):
            with suppress(TimeoutError):
                await super().stream_response(patiently)


async def kept_alive(
    events: AsyncGenerator[bytes, None], ended: asyncio.Event, *, every_s: float = HEARTBEAT_S
) -> AsyncGenerator[bytes, None]:
    """The events, a comment where there is none for long, and nothing more once `ended` is set."""
    over = asyncio.create_task(ended.wait())
    following = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            await asyncio.wait({over, following}, timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                if (event := following.result()) is None:
                    return
                yield event
                following = asyncio.ensure_future(anext(events, None))
            elif over.done():
                return
            else:
                yield HEARTBEAT
    finally:
        for task in (over, following):
            task.cancel()
        await asyncio.wait({over, following})
        await events.aclose()

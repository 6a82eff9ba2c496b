"""Server-sent events on their way out: alive while nothing happens, over when we stop, no faster than the client."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Message, Receive, Scope, Send

__all__ = ["EventStream", "Following", "kept_alive"]

HEARTBEAT_S = 15.0
STALLED_S = 120.0
"""Who takes nothing for so long is cut off."""
LEAVE_S = 0.5
"""For what is on its way when we stop."""
HEARTBEAT = format_sse_event(comment="alive")


@dataclass(frozen=True)
class Following:
    """Events for one client, and what is called when he is served, whatever came of it."""

    events: AsyncGenerator[bytes, None]
    ended: asyncio.Event
    """There are no more of them, also where he does not take those that there were."""
    leave: Callable[[], None]


class EventStream(EventSourceResponse):
    """Ends its events whenever and however the client ends."""

    def __init__(self, following: Following, headers: Mapping[str, str]) -> None:
        super().__init__(following.events, headers=headers)
        self._following = following

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._following.leave()

    async def stream_response(self, send: Send) -> None:
        patience = _Patience(self._following.ended)

        async def patiently(message: Message) -> None:
            async with patience.limit():
                await send(message)

        hurrying = asyncio.create_task(patience.end())
        try:
            async with aclosing(self._following.events):
                with suppress(TimeoutError):
                    await super().stream_response(patiently)
        finally:
            hurrying.cancel()


class _Patience:
    """For a client that takes nothing: less of it as soon as we stop, also for what is on its way then."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended
        self._limit: asyncio.Timeout | None = None

    @asynccontextmanager
    async def limit(self) -> AsyncGenerator[None, None]:
        async with asyncio.timeout(LEAVE_S if self._ended.is_set() else STALLED_S) as self._limit:
            try:
                yield
            finally:
                self._limit = None

    async def end(self) -> None:
        await self._ended.wait()
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time() + LEAVE_S)


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

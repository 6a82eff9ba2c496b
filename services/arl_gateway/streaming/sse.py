"""Server-sent events on their way out: alive while nothing happens, over when we stop, no faster than the client."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Message, Receive, Scope, Send

__all__ = ["EventStream", "EventSubscription", "with_heartbeats"]

HEARTBEAT_S = 15.0
CLIENT_STALL_TIMEOUT_S = 120.0
"""Who takes nothing for so long is cut off."""
STOP_GRACE_S = 0.5
"""For what is on its way when we stop."""
HEARTBEAT = format_sse_event(comment="alive")


@dataclass(frozen=True)
class EventSubscription:
    """Events for one client, and what is called when he is served, whatever came of it."""

    events: AsyncGenerator[bytes, None]
    ended: asyncio.Event
    """There are no more of them, also where he does not take those that there were."""
    release: Callable[[], None]


class EventStream(EventSourceResponse):
    """Ends its events whenever and however the client ends."""

    def __init__(self, subscription: EventSubscription, headers: Mapping[str, str]) -> None:
        super().__init__(subscription.events, headers=headers)
        self._subscription = subscription

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._subscription.release()

    async def stream_response(self, send: Send) -> None:
        patience = _SendTimeout(self._subscription.ended)

        async def patiently(message: Message) -> None:
            async with patience.guard():
                await send(message)

        hurrying = asyncio.create_task(patience.shorten_when_ended())
        try:
            async with aclosing(self._subscription.events):
                with suppress(TimeoutError):
                    await super().stream_response(patiently)
        finally:
            hurrying.cancel()


class _SendTimeout:
    """For a client that takes nothing: less of it as soon as we stop, also for what is on its way then."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended
        self._timeout: asyncio.Timeout | None = None

    @asynccontextmanager
    async def guard(self) -> AsyncGenerator[None, None]:
        async with asyncio.timeout(STOP_GRACE_S if self._ended.is_set() else CLIENT_STALL_TIMEOUT_S) as self._timeout:
            try:
                yield
            finally:
                self._timeout = None

    async def shorten_when_ended(self) -> None:
        await self._ended.wait()
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + STOP_GRACE_S)


async def with_heartbeats(
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

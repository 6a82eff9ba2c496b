"""Server-sent events with heartbeats, shutdown on drain and back-pressure."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Message, Receive, Scope, Send

__all__ = ["EventStream", "EventSubscription", "with_heartbeats"]

HEARTBEAT_S = 15.0
CLIENT_STALL_TIMEOUT_S = 120.0
"""Seconds after which a client that receives nothing is disconnected."""
STOP_GRACE_S = 0.5
"""Seconds for events in transit when the gateway stops."""
HEARTBEAT = format_sse_event(comment="alive")


@dataclass(frozen=True)
class EventSubscription:
    """Events for one client, and a callback for the end of the response."""

    events: AsyncGenerator[bytes, None]
    ended: asyncio.Event
    """Set when no more events follow, even if the client has not received all."""
    release: Callable[[], None]


class EventStream(EventSourceResponse):
    """A response that closes its events and releases the subscription, whether the client or the stream ends first."""

    def __init__(self, subscription: EventSubscription, headers: Mapping[str, str]) -> None:
        super().__init__(subscription.events, headers=headers)
        self._subscription = subscription

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._subscription.release()

    async def stream_response(self, send: Send) -> None:
        """Send the events until they end, the client disconnects or it stalls."""
        patience = _SendTimeout(self._subscription.ended)

        async def patiently(message: Message) -> None:
            """Send a message within the time limit."""
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
    """A timeout of sends to a stalled client. It is shortened when the gateway stops, also for a send in progress."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended
        self._timeout: asyncio.Timeout | None = None

    @asynccontextmanager
    async def guard(self) -> AsyncGenerator[None, None]:
        """Limit the time of a send; a timeout raises `TimeoutError`."""
        async with asyncio.timeout(STOP_GRACE_S if self._ended.is_set() else CLIENT_STALL_TIMEOUT_S) as self._timeout:
            try:
                yield
            finally:
                self._timeout = None

    async def shorten_when_ended(self) -> None:
        """Shorten the limit of the current send once the events have ended."""
        await self._ended.wait()
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + STOP_GRACE_S)


async def with_heartbeats(
    events: AsyncGenerator[bytes, None], ended: asyncio.Event, *, every_s: float = HEARTBEAT_S
) -> AsyncGenerator[bytes, None]:
    """Yield the events, and a comment after `every_s` without events. Stop once `ended` is set."""
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

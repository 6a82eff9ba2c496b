"""Event streams send heartbeats while idle and end when they are stopped."""

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message

from arl_gateway.streaming.sse import HEARTBEAT, EventStream, EventSubscription, with_heartbeats


class Events:
    """A source of some events that then ends or stays idle for ever."""

    def __init__(self, *events: bytes, goes_on: bool) -> None:
        self._events, self._goes_on = events, goes_on
        self.closed = False

    async def each(self) -> AsyncGenerator[bytes, None]:
        try:
            for event in self._events:
                yield event
            if self._goes_on:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def test_stream_ends_after_its_last_event() -> None:
    events = Events(b"1", b"2", goes_on=False)
    assert [each async for each in with_heartbeats(events.each(), asyncio.Event())] == [b"1", b"2"]
    assert events.closed


async def test_idle_stream_sends_heartbeat_comments() -> None:
    events = Events(b"1", goes_on=True)
    stream = with_heartbeats(events.each(), asyncio.Event(), every_s=0.001)
    assert [await anext(stream) for _ in range(3)] == [b"1", HEARTBEAT, HEARTBEAT]
    assert HEARTBEAT.startswith(b": ")
    await stream.aclose()
    assert events.closed


async def test_stream_ends_when_stopped() -> None:
    events, ended = Events(b"1", goes_on=True), asyncio.Event()
    stream = with_heartbeats(events.each(), ended)
    assert await anext(stream) == b"1"
    ended.set()
    assert [each async for each in stream] == []
    assert events.closed


async def test_stalled_client_is_dropped_when_stream_stops() -> None:
    events, ended = Events(b"1", b"2", goes_on=True), asyncio.Event()
    left: list[bool] = []
    is_stalled = asyncio.Event()
    following = EventSubscription(with_heartbeats(events.each(), ended), ended, lambda: left.append(True))

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            is_stalled.set()
            await asyncio.Event().wait()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    serving = asyncio.create_task(EventStream(following, {})(scope, receive, send))
    await is_stalled.wait()
    ended.set()
    async with asyncio.timeout(5):
        await serving
    assert (events.closed, left) == (True, [True])

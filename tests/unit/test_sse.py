"""A stream of events is alive while nothing happens, and over when it shall be."""

import asyncio
from collections.abc import AsyncGenerator

from arl_gateway.sse import HEARTBEAT, kept_alive


class Events:
    """Some, then nothing for ever."""

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


async def test_it_ends_with_its_events() -> None:
    events = Events(b"1", b"2", goes_on=False)
    assert [each async for each in kept_alive(events.each(), asyncio.Event())] == [b"1", b"2"]
    assert events.closed


async def test_while_nothing_happens_there_are_comments() -> None:
    events = Events(b"1", goes_on=True)
    stream = kept_alive(events.each(), asyncio.Event(), every_s=0.001)
    assert [await anext(stream) for _ in range(3)] == [b"1", HEARTBEAT, HEARTBEAT]
    assert HEARTBEAT.startswith(b": ")
    await stream.aclose()
    assert events.closed


async def test_it_ends_when_it_shall() -> None:
    events, ended = Events(b"1", goes_on=True), asyncio.Event()
    stream = kept_alive(events.each(), ended)
    assert await anext(stream) == b"1"
    ended.set()
    assert [each async for each in stream] == []
    assert events.closed

"""Server-sent events as a client reads them."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx

__all__ = ["Event", "Stream", "following"]


@dataclass(frozen=True)
class Event:
    name: str
    data: dict[str, Any]
    id: str

    @property
    def content(self) -> bytes:
        return b64decode(self.data["base64"]) if "base64" in self.data else self.data["text"].encode()


class Stream:
    """The events of one answer, in order."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()
        self.seen: list[Event] = []

    async def next(self) -> Event | None:
        fields: dict[str, str] = {}
        async for line in self._lines:
            name, _, value = line.partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields:
                self.seen.append(Event(fields["event"], json.loads(fields["data"]), fields["id"]))
                return self.seen[-1]
            if not line:
                fields = {}
        return None

    async def until(self, stream: str, text: bytes) -> Event:
        """Return the event after which the content of `stream` ends with `text`."""
        async with asyncio.timeout(30):
            while (event := await self.next()) is not None:
                if event.name == stream and self.content(stream).endswith(text):
                    return event
        raise AssertionError(f"{self.seen} and no {text!r}")

    async def to_the_end(self) -> Event:
        async with asyncio.timeout(60):
            while await self.next() is not None:
                pass
        assert self.seen[-1].name == "end"
        return self.seen[-1]

    def content(self, stream: str) -> bytes:
        """Return the stream's content; check that no part is missing or repeated."""
        pieces = [event for event in self.seen if event.name == stream]
        for before, after in pairwise(pieces):
            assert after.data["offset"] == before.data["offset"] + len(before.content)
        return b"".join(piece.content for piece in pieces)


@asynccontextmanager
async def following(api: httpx.AsyncClient, id: str, after: str | None = None) -> AsyncIterator[Stream]:
    headers = {"last-event-id": after} if after is not None else {}
    async with api.stream("GET", f"/v1/actions/{id}/logs", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response)

"""A stand-in for the other services: it records notifications and refuses calls."""

import asyncio
from collections.abc import Callable

from pydantic import BaseModel

from arl_wire.errors import Unavailable

__all__ = ["RecordingPeers"]

Hint = tuple[str, BaseModel]


class RecordingPeers:
    """A replacement for `arl_kit.service_client.ServiceClient`."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []
        self._changed = asyncio.Event()

    def notify(self, url: str, body: BaseModel, *, audience: str) -> None:
        self.hints.append((url, body))
        self._changed.set()

    async def call(self, url: str, body: BaseModel, *, audience: str) -> bytes:
        raise Unavailable("nobody is there in this test")

    def bodies(self, path: str) -> list[BaseModel]:
        return [body for url, body in self.hints if url.endswith(path)]

    async def until(self, condition: Callable[["RecordingPeers"], bool], *, timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

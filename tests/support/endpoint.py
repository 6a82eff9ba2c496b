"""An external API in this process: it notes what it is asked, and answers as it is told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

__all__ = ["Asked", "External", "external"]

TOO_MUCH = (429, 503)


@dataclass(frozen=True)
class Asked:
    at: float
    """By the loop's clock."""
    method: str
    url: str
    """Path and query, as they were sent."""
    headers: Mapping[str, str]
    body: bytes


Answer = Callable[[Asked], Awaitable[web.StreamResponse]]


async def found(_: Asked) -> web.StreamResponse:
    return web.json_response({"found": 1})


@dataclass
class External:
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    """By identity: what was asked for and was too much, and so not carried out."""
    answer: Answer = found
    in_flight: int = 0
    most: int = 0
    """In flight at once so far."""

    def answers(self, *statuses: int, **headers: str) -> None:
        """These in turn, and then 200."""
        left = list(statuses)

        async def answer(_: Asked) -> web.StreamResponse:
            status = left.pop(0) if left else 200
            named = {name.replace("_", "-"): value for name, value in headers.items()} if status != 200 else {}
            return web.json_response({"status": status}, status=status, headers=named)

        self.answer = answer

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        now = asyncio.get_running_loop().time()
        asked = Asked(now, request.method, request.raw_path, request.headers.copy(), body)
        self.asked.append(asked)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            response = await self.answer(asked)
        finally:
            self.in_flight -= 1
        if response.status in TOO_MUCH:
            self.refused.add(id(asked))
        return response

    def carried_out(self, asked: Asked) -> bool:
        """Or begun, as far as whoever asked may know."""
        return id(asked) not in self.refused


@asynccontextmanager
async def external() -> AsyncIterator[External]:
    """On loopback, with connections of its own."""
    there = External()
    app = web.Application(client_max_size=16 << 20)
    app.router.add_route("*", "/{path:.*}", there._serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    there.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield there
    finally:
        await runner.cleanup()

"""An external API in this process that records its requests and answers as the test says."""

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
    """Arrival time by the event loop's clock."""
    method: str
    url: str
    """Path and query as sent."""
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
    """Identities of the requests that were refused with 429 or 503 and so not executed."""
    answer: Answer = found
    in_flight: int = 0
    most: int = 0
    """The largest number of concurrent requests so far."""

    def answers(self, *statuses: int, **headers: str) -> None:
        """Answer with these statuses in turn and then with 200."""
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
        """Return True if the request was executed or may have been."""
        return id(asked) not in self.refused


@asynccontextmanager
async def external() -> AsyncIterator[External]:
    """Run an external API on loopback."""
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

"""A router in front of fake cells, for faults that a real system does not show on demand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from aiohttp import web

from arl_cell_router.app import build
from arl_cell_router.settings import CellRouterSettings
from support.conditions import eventually

__all__ = ["PROBLEM", "FakeCell", "a_router_of", "is_up", "two_cells", "wait_down", "wait_up"]

CHECK_S = 0.2
"""Seconds between health checks."""

PROBLEM = {"title": "x", "status": 503, "code": "unavailable", "detail": "the database is not reachable"}

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class FakeCell:
    """A gateway whose answers a test sets by method and path. Others are 200 with the number of the cell."""

    number: int
    url: str = ""
    is_ready: bool = True
    is_frozen: bool = False
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[web.Request] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        return [f"{request.method} {request.path_qs}" for request in self.requests]

    def answer(self, route: str, document: Any, status: int = 200) -> None:
        async def respond(request: web.Request) -> web.Response:
            media_type = "application/problem+json" if status >= 400 else "application/json"
            return web.json_response(document, status=status, content_type=media_type)

        self.answers[route] = respond

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if self.is_frozen:
            await asyncio.Event().wait()
        if request.path == "/readyz":
            problem = {"detail": "the database is not reachable; try again", "title": "x", "status": 503, "code": "x"}
            return web.json_response(
                {"status": "ok"} if self.is_ready else problem, status=200 if self.is_ready else 503
            )
        if request.path == "/cell":
            return web.json_response({"cell": self.number})
        self.requests.append(request)
        given = self.answers.get(f"{request.method} {request.path}")
        if given is not None:
            return await given(request)
        self.bodies.append(await request.json() if request.can_read_body else None)
        return web.json_response({"served_by": self.number})


@asynccontextmanager
async def a_router_of(*cells: FakeCell, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run the cells and the router as servers; yield a client of the router, after it has checked the cells."""
    async with AsyncExitStack() as running:
        for cell in cells:
            await running.enter_async_context(_serving(cell))
        addresses = {cell.number: cell.url for cell in cells}
        app = build(CellRouterSettings(port=1, cells=addresses, cell_check_s=CHECK_S, **settings))
        server = uvicorn.Server(
            uvicorn.Config(
                app, port=0, http="httptools", log_config=None, timeout_graceful_shutdown=1, proxy_headers=False
            )
        )
        serving = asyncio.create_task(server.serve())
        try:
            await eventually(lambda: server.started)
            port = server.servers[0].sockets[0].getsockname()[1]
            headers = {"authorization": "Bearer tk_x"}
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20) as client:
                yield client
        finally:
            server.should_exit = True
            await serving


def two_cells() -> tuple[FakeCell, FakeCell]:
    return FakeCell(1), FakeCell(2)


async def is_up(api: httpx.AsyncClient, cell: int) -> bool:
    return bool((await api.get("/v1/cells")).json()["items"][cell - 1]["up"])


async def wait_up(api: httpx.AsyncClient, cell: int) -> None:
    await eventually(lambda: is_up(api, cell))


async def wait_down(api: httpx.AsyncClient, cell: int) -> None:
    async def is_down() -> bool:
        return not await is_up(api, cell)

    await eventually(is_down)


@asynccontextmanager
async def _serving(cell: FakeCell) -> AsyncIterator[None]:
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", cell.serve)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    cell.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield
    finally:
        await runner.cleanup()

"""Measure the server's CPU time of a request between services: a `FastRoute` and the same route resolved by FastAPI.

`python -m arl_bench.micro.fast_route [REQUESTS]` serves both over HTTP in a separate process and calls them
alternately. The figures, as JSON on standard output, are CPU milliseconds per request and the part that `FastRoute`
saves.
"""

import asyncio
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import Annotated

import aiohttp
import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from pydantic import BaseModel

from arl_kit.app import create_app
from arl_kit.internal_api import InternalApi, mount_internal_apis
from arl_kit.metrics import Metrics
from arl_kit.service_tokens import TokenIssuer, pairwise_key
from arl_kit.settings import ServiceSettings
from arl_wire.errors import Unauthenticated

__all__ = ["measure"]

TOKEN = "0" * 32
FAST, RESOLVED = "/internal/fast", "/internal/resolved"
ROUNDS, AT_ONCE = 5, 8
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Question(BaseModel):
    """A small body, typical for requests between services."""

    ids: list[int]


class Reply(BaseModel):
    count: int


async def _answer(body: Question) -> Reply:
    return Reply(count=len(body.ids))


def _app() -> FastAPI:
    app = create_app(title="cost", lifespan=_nothing, ready=_ready, max_body_bytes=1 << 20, metrics=Metrics())
    settings = ServiceSettings(
        port=1,
        database_url="postgresql://nowhere",
        service_token=TOKEN,
        caller_keys={"gateway": pairwise_key(TOKEN, "scheduler")},
    )

    verifier = settings.token_verifier("scheduler")

    async def caller(request: Request) -> str:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        found = verifier.caller_of(token) if scheme.lower() == "bearer" else None
        if found is None:
            raise Unauthenticated("this route is for other services of this installation")
        return found

    @app.post(RESOLVED)
    async def resolved(body: Question, found: Annotated[str, Depends(caller)]) -> Response:
        return Response((await _answer(body)).model_dump_json(), media_type="application/json")

    hops = InternalApi(settings, "gateway", audience="scheduler")
    hops.add_route(FAST, Question, _answer)
    mount_internal_apis(app, hops)
    return app


@asynccontextmanager
async def _nothing(app: FastAPI) -> AsyncIterator[None]:
    yield


async def _ready(within_s: float) -> str | None:
    return None


def _serve(listening: socket.socket) -> None:
    uvicorn.Server(uvicorn.Config(_app(), log_level="error", access_log=False)).run([listening])


async def _ask(url: str, requests: int) -> None:
    headers = {"authorization": f"Bearer {TokenIssuer('gateway', TOKEN).token_for('scheduler')}"}
    body = Question(ids=[1, 2, 3]).model_dump(mode="json")
    left = iter(range(requests))
    async with aiohttp.ClientSession(headers=headers) as session:

        async def ask() -> None:
            for _ in left:
                async with session.post(url, json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()

        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        parts = file.read().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / TICKS_PER_S


async def measure(requests: int) -> dict[str, float]:
    """Return CPU milliseconds per request of `FastRoute` and FastAPI, medians of the rounds, and the saved part."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = multiprocessing.get_context("fork").Process(target=_serve, args=(listening,), daemon=True)
        server.start()
        assert server.pid is not None
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        took: dict[str, list[float]] = {FAST: [], RESOLVED: []}
        try:
            for path in took:
                await _ask(url + path, requests // 10)
            for _ in range(ROUNDS):
                for path, found in took.items():
                    before = _cpu_s(server.pid)
                    await _ask(url + path, requests)
                    found.append(1000 * (_cpu_s(server.pid) - before) / requests)
        finally:
            server.terminate()
            server.join()
    fast, resolved = median(took[FAST]), median(took[RESOLVED])
    return {"fast_ms": round(fast, 4), "resolved_ms": round(resolved, 4), "saved": round(1 - fast / resolved, 3)}


if __name__ == "__main__":
    json.dump(asyncio.run(measure(int(sys.argv[1]) if sys.argv[1:] else 3000)), sys.stdout)

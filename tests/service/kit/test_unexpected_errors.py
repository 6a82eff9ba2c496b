"""Test the responses to errors that no route expects: their log lines, and a full disk of Postgres."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import httpx
from fastapi import FastAPI

from arl_kit.app import create_app
from arl_kit.metrics import Metrics
from arl_kit.telemetry import current_traceparent, trace_id_of

TRACE = "0" * 30 + "42"


class Traces(logging.Handler):
    """A log handler that records the trace id of each line, as the services' log formatter does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str | None] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(trace_id_of(current_traceparent.get()))


def an_app() -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield

    async def ready(within_s: float) -> str | None:
        return None

    app = create_app(title="t", lifespan=lifespan, ready=ready, max_body_bytes=100, metrics=Metrics())

    @app.get("/breaks")
    async def breaks() -> None:
        raise RuntimeError("not foreseen")

    @app.get("/full")
    async def full() -> None:
        raise asyncpg.DiskFullError("could not extend file: No space left on device")

    return app


async def test_unexpected_error_is_logged_under_the_trace_of_the_request() -> None:
    traces = Traces()
    logger = logging.getLogger("arl_kit.app")
    logger.addHandler(traces)
    try:
        transport = httpx.ASGITransport(an_app(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            answer = await client.get("/breaks", headers={"traceparent": f"00-{TRACE}-00000000000000aa-01"})
    finally:
        logger.removeHandler(traces)
    assert (answer.status_code, answer.json()["trace_id"], traces.seen) == (500, TRACE, [TRACE])


async def test_full_disk_of_postgres_is_named_and_makes_the_service_unready() -> None:
    transport = httpx.ASGITransport(an_app(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        assert (await client.get("/readyz")).status_code == 200
        answer = await client.get("/full")
        assert (answer.status_code, answer.json()["code"]) == (507, "database_disk_full")
        ready = await client.get("/readyz")
    assert ready.status_code == 503
    assert "the disk of the database is full" in ready.json()["detail"]

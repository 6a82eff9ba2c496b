"""Test that fast internal routes behave like the framework's routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from aiohttp import web
from fastapi import FastAPI
from pydantic import BaseModel

from arl_kit.app import create_app
from arl_kit.internal_api import InternalApi, mount_internal_apis
from arl_kit.metrics import Metrics
from arl_kit.service_client import ServiceClient
from arl_kit.service_tokens import TokenIssuer, pairwise_key
from arl_kit.settings import ServiceSettings
from arl_wire.errors import Conflict, TangramError, Unavailable

TOKEN = "a" * 32


class Asked(BaseModel):
    number: int


class Told(BaseModel):
    twice: int


async def _answer(asked: Asked) -> Told | None:
    if asked.number == 0:
        raise Conflict("0 is taken")
    if asked.number < 0:
        raise KeyError(asked.number)
    return Told(twice=2 * asked.number) if asked.number < 10 else None


async def _ready(within_s: float) -> str | None:
    return None


@asynccontextmanager
async def _nothing(app: FastAPI) -> AsyncIterator[None]:
    yield


@pytest.fixture
async def caller() -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(title="test", lifespan=_nothing, ready=_ready, max_body_bytes=100, metrics=Metrics())
    settings = ServiceSettings(
        port=1,
        database_url="postgresql://nowhere",
        service_token=TOKEN,
        caller_keys={"cpu": pairwise_key(TOKEN, "scheduler")},
    )
    hops = InternalApi(settings, "cpu", audience="scheduler")
    hops.add_route("/internal/double", Asked, _answer)
    mount_internal_apis(app, hops)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {TokenIssuer('cpu', TOKEN).token_for('scheduler')}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        yield client


async def test_internal_route_returns_200_with_a_body_or_204(caller: httpx.AsyncClient) -> None:
    answered = await caller.post("/internal/double", json={"number": 4})
    nothing = await caller.post("/internal/double", json={"number": 10})
    assert (answered.status_code, answered.json()) == (200, {"twice": 8})
    assert (nothing.status_code, nothing.content) == (204, b"")
    assert "traceparent" in nothing.headers


async def test_internal_route_errors_are_problems_with_their_code(caller: httpx.AsyncClient) -> None:
    asked: list[tuple[object, int, str]] = [
        ({"number": "x"}, 422, "validation_failed"),
        ({"number": 0}, 409, "conflict"),
        ({"number": -1}, 500, "internal"),
        ({"number": 1, "more": "x" * 100}, 413, "too_large"),
    ]
    for body, status, code in asked:
        answered = await caller.post("/internal/double", json=body)
        assert (answered.status_code, answered.json()["code"]) == (status, code)
    stranger = await caller.post("/internal/double", json={"number": 1}, headers={"authorization": "Bearer no"})
    assert (stranger.status_code, stranger.json()["code"]) == (401, "unauthenticated")
    got = await caller.get("/internal/double")
    assert (got.status_code, got.headers["allow"]) == (405, "POST")


async def test_text_with_a_lone_surrogate_is_refused_with_its_field(caller: httpx.AsyncClient) -> None:
    answered = await caller.post("/internal/double", content=b'{"number": "\\ud800"}')
    assert (answered.status_code, [each["field"] for each in answered.json()["errors"]]) == (422, ["number"])


def test_second_fast_route_with_the_same_path_is_refused() -> None:
    app = create_app(title="test", lifespan=_nothing, ready=_ready, max_body_bytes=100, metrics=Metrics())
    settings = ServiceSettings(port=1, database_url="postgresql://nowhere", service_token=TOKEN)
    hops = [InternalApi(settings, name, audience="scheduler") for name in ("cpu", "gpu")]
    for each in hops:
        each.add_route("/internal/double", Asked, _answer)
    with pytest.raises(ValueError, match="several fast routes have this path"):
        mount_internal_apis(app, *hops)


async def test_internal_requests_are_counted_by_route_and_status(caller: httpx.AsyncClient) -> None:
    for number in (1, 2, 0):
        await caller.post("/internal/double", json={"number": number})
    shown = (await caller.get("/metrics")).text
    assert 'tangram_http_requests_total{method="POST",route="/internal/double",status="200"} 2.0' in shown
    assert 'tangram_http_requests_total{method="POST",route="/internal/double",status="409"} 1.0' in shown
    assert 'tangram_http_request_duration_seconds_count{method="POST",route="/internal/double"} 3.0' in shown


async def test_unauthenticated_internal_call_is_unavailable_for_the_client() -> None:
    async def refuse(request: web.BaseRequest) -> web.Response:
        return web.json_response({}, status=401)

    runner = web.ServerRunner(web.Server(refuse))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    peers = ServiceClient(TokenIssuer("cpu", TOKEN))
    await peers.start()
    try:
        with pytest.raises(Unavailable):
            await peers.call(f"http://{host}:{port}/internal/double", Asked(number=1), audience="scheduler")
    finally:
        await peers.stop()
        await runner.cleanup()


async def test_redirect_to_another_service_is_not_followed() -> None:
    """A node that is taken over could otherwise send the gateway to addresses that only the gateway reaches."""
    asked: list[str] = []

    async def redirect(request: web.BaseRequest) -> web.Response:
        asked.append(request.path)
        return web.Response(status=307, headers={"location": "/internal/elsewhere"})

    runner = web.ServerRunner(web.Server(redirect))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    peers = ServiceClient(TokenIssuer("gateway", TOKEN))
    await peers.start()
    try:
        with pytest.raises(TangramError, match="status 307"):
            await peers.call(f"http://{host}:{port}/internal/here", Asked(number=1), audience="node/n")
        with pytest.raises(TangramError, match="status 307"):
            async with peers.stream(f"http://{host}:{port}/internal/stream", {}, audience="node/n"):
                pass
    finally:
        await peers.stop()
        await runner.cleanup()
    assert asked == ["/internal/here", "/internal/stream"]

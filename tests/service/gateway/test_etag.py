"""Test `ETag` and `If-None-Match`: a known version returns 304, a changed action returns 200."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from arl_gateway.app import build
from arl_gateway.settings import GatewaySettings
from arl_store.logins import role_url
from arl_store.migrate import ensure_api_key
from support.postgres import PASSWORDS
from support.rows import Rows

KEY = "tk_" + "e" * 32


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def app(shared: str) -> AsyncIterator[FastAPI]:
    await ensure_api_key(shared, "p", KEY)
    settings = GatewaySettings(
        port=1,
        database_url=role_url(shared, "gateway", PASSWORDS["gateway"]),
        service_token="t" * 16,
        admission_url="http://127.0.0.1:9",
        scheduler_url="http://127.0.0.1:9",
    )
    app = build(settings)
    async with app.router.lifespan_context(app):
        yield app


@pytest_asyncio.fixture
async def api(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers, timeout=60) as api:
        yield api


async def change(rows: Rows, action: UUID, columns: str) -> None:
    """Change the action's columns and notify waiters, as the service that owns the transition does."""
    async with rows.pool.acquire() as connection, connection.transaction():
        await connection.execute("set local session_replication_role = replica")
        await connection.execute(f"update actions set {columns} where id = $1", action)
        await connection.execute("notify tangram_settled")


async def tag_of(api: httpx.AsyncClient, action: UUID) -> str:
    return (await api.get(f"/v1/actions/{action}")).headers["etag"]


async def get(api: httpx.AsyncClient, action: UUID, tag: str, wait: float = 0) -> httpx.Response:
    return await api.get(f"/v1/actions/{action}", params={"wait": wait}, headers={"if-none-match": tag})


GRANTED = "node_id = 1, amounts = '{\"cpu_milli\": 1000}', granted_at = now()"
CHANGES = {
    "a grant": f"state = 'granted', grant_no = 1, {GRANTED}",
    "a start": f"state = 'running', grant_no = 1, started_at = now(), {GRANTED}",
    "a resize": "state = 'running', grant_no = 1, amounts_seq = 1, node_id = 1, amounts = '{\"cpu_milli\": 2000}'",
    "a second try": "failures = 1",
    "a wish": "cancel_requested_at = now()",
    "its outcome": "state = 'settled', outcome = 'ok', settled_at = now()",
}


@pytest.mark.parametrize("columns", CHANGES.values(), ids=CHANGES.keys())
async def test_changed_action_has_another_etag(api: httpx.AsyncClient, rows: Rows, columns: str) -> None:
    action = await rows.action()
    known = await tag_of(api, action)
    assert (await get(api, action, known)).status_code == 304
    await change(rows, action, columns)
    answer = await get(api, action, known)
    assert answer.status_code == 200
    assert answer.headers["etag"] != known
    assert answer.json()["id"] == str(action)


async def test_every_change_of_an_action_has_its_own_etag(api: httpx.AsyncClient, rows: Rows) -> None:
    action, tags = await rows.action(), set()
    for columns in CHANGES.values():
        await change(rows, action, columns)
        tags.add(await tag_of(api, action))
    assert len(tags) == len(CHANGES)


async def test_known_etag_returns_304_without_a_body(api: httpx.AsyncClient, rows: Rows) -> None:
    action = await rows.action(state="settled", outcome="ok")
    tag = await tag_of(api, action)
    for known in (tag, tag.removeprefix("W/"), f'"another", {tag}', "*"):
        answer = await get(api, action, known)
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert (await get(api, action, '"another"')).status_code == 200


async def test_wait_on_a_known_settled_action_returns_304_immediately(api: httpx.AsyncClient, rows: Rows) -> None:
    action = await rows.action(state="settled", outcome="ok")
    answer = await asyncio.wait_for(get(api, action, await tag_of(api, action), wait=55), 20)
    assert answer.status_code == 304


async def test_wait_with_a_known_etag_ends_on_any_change(api: httpx.AsyncClient, rows: Rows) -> None:
    """The wait would otherwise end only when the action settles."""
    action = await rows.action()
    known = await tag_of(api, action)
    waiting = asyncio.create_task(get(api, action, known, wait=55))
    await change(rows, action, CHANGES["a start"])
    answer = await asyncio.wait_for(waiting, 20)
    assert (answer.status_code, answer.json()["state"]) == (200, "running")
    answer = await asyncio.wait_for(get(api, action, known, wait=55), 20)
    assert answer.status_code == 200


async def test_wait_without_a_change_returns_304(api: httpx.AsyncClient, rows: Rows) -> None:
    action = await rows.action()
    assert (await get(api, action, await tag_of(api, action), wait=0.05)).status_code == 304
    assert (await api.get(f"/v1/actions/{action}", params={"wait": 0.05})).status_code == 200

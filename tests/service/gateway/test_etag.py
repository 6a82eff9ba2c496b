"""`ETag` and `If-None-Match`: who knows a version is told of another one, and otherwise that there is none."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from arl_gateway.app import build
from arl_gateway.settings import GatewaySettings
from arl_store.migrate import ensure_api_key, role_url
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
    """As whoever owns that edge would."""
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
async def test_another_version_has_another_tag(api: httpx.AsyncClient, rows: Rows, columns: str) -> None:
    action = await rows.action()
    known = await tag_of(api, action)
    assert (await get(api, action, known)).status_code == 304
    await change(rows, action, columns)
    answer = await get(api, action, known)
    assert answer.status_code == 200
    assert answer.headers["etag"] != known
    assert answer.json()["id"] == str(action)


async def test_every_change_has_a_tag_of_its_own(api: httpx.AsyncClient, rows: Rows) -> None:
    action, tags = await rows.action(), set()
    for columns in CHANGES.values():
        await change(rows, action, columns)
        tags.add(await tag_of(api, action))
    assert len(tags) == len(CHANGES)


async def test_what_is_known_is_not_sent_again(api: httpx.AsyncClient, rows: Rows) -> None:
    action = await rows.action(state="settled", outcome="ok")
    tag = await tag_of(api, action)
    for known in (tag, tag.removeprefix("W/"), f'"another", {tag}', "*"):
        answer = await get(api, action, known)
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert (await get(api, action, '"another"')).status_code == 200


async def test_a_settled_one_is_waited_for_no_more(api: httpx.AsyncClient, rows: Rows) -> None:
    action = await rows.action(state="settled", outcome="ok")
    answer = await asyncio.wait_for(get(api, action, await tag_of(api, action), wait=55), 20)
    assert answer.status_code == 304


async def test_a_wait_for_another_version_ends_with_it(api: httpx.AsyncClient, rows: Rows) -> None:
    """The client would be told of an outcome only, had it not said what it knows."""
    action = await rows.action()
    known = await tag_of(api, action)
    waiting = asyncio.create_task(get(api, action, known, wait=55))
    await change(rows, action, CHANGES["a start"])
    answer = await asyncio.wait_for(waiting, 20)
    assert (answer.status_code, answer.json()["state"]) == (200, "running")
    answer = await asyncio.wait_for(get(api, action, known, wait=55), 20)
    assert answer.status_code == 200


async def test_a_wait_in_which_nothing_changes_ends_with_304(api: httpx.AsyncClient, rows: Rows) -> None:
    action = await rows.action()
    assert (await get(api, action, await tag_of(api, action), wait=0.05)).status_code == 304
    assert (await api.get(f"/v1/actions/{action}", params={"wait": 0.05})).status_code == 200

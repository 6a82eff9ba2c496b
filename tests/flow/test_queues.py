"""Test a task's queue through the API: contents, limits, weights and quotas."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from arl_store.migrate import ensure_api_key
from support.postgres import Databases
from support.rows import Rows, rows_in
from support.system import System, running_system

ONE = {"task": "ai/coding", "argv": ["sleep", "300"], "demand": {"cpu": 1}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, cores=1) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with system.client() as api:
        yield api


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rows(system: System) -> AsyncIterator[Rows]:
    async with rows_in(system.owner_url) as rows:
        yield rows


async def submit(api: httpx.AsyncClient, count: int) -> list[str | None]:
    """Submit actions and return each problem's code, or None for an accepted action."""
    answer = (await api.post("/v1/actions:batch", json={"actions": [ONE] * count})).json()
    return [item.get("problem", {}).get("code") for item in answer["items"]]


async def the_queue(api: httpx.AsyncClient) -> dict[str, Any]:
    (queue,) = (await api.get("/v1/admin/queues")).json()["items"]
    return queue


async def limit(api: httpx.AsyncClient, body: dict[str, Any], task: str = "ai/coding") -> httpx.Response:
    return await api.patch(f"/v1/admin/queues/{task}", json=body)


async def test_queue_limit_applies_immediately_and_can_be_removed(rows: Rows, api: httpx.AsyncClient) -> None:
    running = (await api.post("/v1/actions", json=ONE)).json()["id"]
    await rows.until_value("running", "select state from actions where id = $1", running)
    assert await submit(api, 3) == [None] * 3
    queue = await the_queue(api)
    assert (queue["task"], queue["queued"], queue["running"]) == ("ai/coding", 3, 1)
    assert "max_queued" not in queue
    answer = await limit(api, {"max_queued": 4})
    assert (answer.status_code, answer.json()) == (200, queue | {"max_queued": 4})
    assert await submit(api, 2) == [None, "queue_full"]
    assert (await limit(api, {"max_queued": 2})).json()["queued"] == 4
    assert await submit(api, 1) == ["queue_full"]
    assert "max_queued" not in (await limit(api, {"max_queued": None})).json()
    assert await submit(api, 2) == [None, None]


async def test_queue_limit_is_unchanged_by_other_changes(api: httpx.AsyncClient) -> None:
    await submit(api, 1)
    await limit(api, {"max_queued": 55})
    assert (await limit(api, {"paused": True})).json()["max_queued"] == 55
    assert (await limit(api, {"paused": False})).json()["max_queued"] == 55


async def test_queue_weight_is_returned_unchanged_and_kept(api: httpx.AsyncClient) -> None:
    await submit(api, 1)
    assert (await limit(api, {"weight": 0.1})).json()["weight"] == 0.1
    await limit(api, {"paused": False})
    assert (await the_queue(api))["weight"] == 0.1


async def test_queue_change_is_in_the_audit_log(rows: Rows, api: httpx.AsyncClient) -> None:
    await submit(api, 1)
    await limit(api, {"max_queued": 77})
    sql = "select verb || ' ' || target || ' ' || (detail->>'max_queued') from audit_log order by id desc limit 1"
    assert await rows.value(sql) == "queue.change queue:ai/coding 77"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"max_queued": 0},
        {"max_queued": 2**31},
        {"paused": 3},
        {"weight": 0.001},
        {"max_queued": 1, "stopped": True},
        {"quota": {}},
        {"quota": {"running": 0}},
        {"quota": {"reward_services": {"judge": 0}}},
        {"quota": {"reward_services": {"math": 1}}},
        {"quota": {"cores": 1}},
    ],
)
async def test_invalid_queue_change_is_refused(api: httpx.AsyncClient, body: dict[str, Any]) -> None:
    assert (await limit(api, body)).status_code == 422


async def test_change_of_an_unknown_queue_is_not_found(api: httpx.AsyncClient) -> None:
    assert (await limit(api, {"max_queued": 1}, task="never-seen")).status_code == 404


async def test_admin_scopes_allow_exactly_their_queue_operations(system: System, api: httpx.AsyncClient) -> None:
    await submit(api, 1)
    for scope, list_status, change_status in (
        ("actions:*", 403, 403),
        ("admin:read", 200, 403),
        ("admin:write", 200, 200),
    ):
        key = (await api.post("/v1/admin/keys", json={"scopes": [scope]})).json()["key"]
        async with httpx.AsyncClient(base_url=system.url, headers={"authorization": f"Bearer {key}"}) as scoped:
            assert (await scoped.get("/v1/admin/queues")).status_code == list_status
            assert (await limit(scoped, {"max_queued": 1000})).status_code == change_status


async def test_queues_of_another_project_are_hidden(system: System, api: httpx.AsyncClient) -> None:
    await submit(api, 1)
    stranger = "tk_" + "q" * 32
    await ensure_api_key(system.owner_url, "strangers", stranger)
    async with httpx.AsyncClient(base_url=system.url, headers={"authorization": f"Bearer {stranger}"}) as other:
        assert (await other.get("/v1/admin/queues")).json()["items"] == []
        assert (await limit(other, {"max_queued": 1})).status_code == 404


async def test_queue_list_is_paged(api: httpx.AsyncClient) -> None:
    await submit(api, 1)
    await api.post("/v1/actions", json=ONE | {"task": "another"})
    first = (await api.get("/v1/admin/queues", params={"limit": 1})).json()
    second = (await api.get("/v1/admin/queues", params={"limit": 1, "cursor": first["next_cursor"]})).json()
    assert [page["items"][0]["task"] for page in (first, second)] == ["ai/coding", "another"]
    assert "next_cursor" not in second


async def test_change_creates_the_queue_only_on_request(api: httpx.AsyncClient) -> None:
    made = await api.patch("/v1/admin/queues/made", params={"create": True}, json={"paused": True})
    assert (made.status_code, made.json()["paused"], made.json()["queued"]) == (200, True, 0)
    await submit(api, 1)
    again = await api.patch("/v1/admin/queues/made", params={"create": True}, json={"weight": 2})
    assert (again.json()["id"], again.json()["paused"], again.json()["weight"]) == (made.json()["id"], True, 2.0)

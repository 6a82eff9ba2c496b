"""Test projects through the API: visibility and weights."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from arl_store.migrate import ensure_api_key
from support.postgres import Databases
from support.rows import rows_in
from support.system import System, running_system

OTHERS_KEY = "tk_" + "o" * 32


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    await ensure_api_key(owner_url, "labs/other", OTHERS_KEY)
    async with running_system(owner_url, cores=1) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def others(system: System) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {OTHERS_KEY}"}
    async with httpx.AsyncClient(base_url=system.url, headers=headers) as api:
        yield api


async def weights(api: httpx.AsyncClient) -> dict[str, float]:
    items = (await api.get("/v1/admin/projects")).json()["items"]
    return {project["name"]: project["weight"] for project in items}


async def test_project_weight_is_changed_only_by_the_first_project(
    system: System, api: httpx.AsyncClient, others: httpx.AsyncClient
) -> None:
    assert await weights(api) == {"default": 1.0, "labs/other": 1.0}
    refused = await others.patch("/v1/admin/projects/labs/other", json={"weight": 9})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    changed = await api.patch("/v1/admin/projects/labs/other", json={"weight": 0.1})
    assert (changed.status_code, changed.json()["weight"]) == (200, 0.1)
    assert await weights(api) == {"default": 1.0, "labs/other": 0.1}
    assert await weights(others) == {"labs/other": 0.1}
    async with rows_in(system.owner_url) as rows:
        sql = "select verb || ' ' || target || ' ' || (detail->>'weight') from audit_log order by id desc limit 1"
        assert await rows.value(sql) == "project.change project:labs/other 0.1"


@pytest.mark.parametrize("body", [{}, {"weight": 0}, {"weight": 101}, {"weight": None}, {"weight": 1, "share": 2}])
async def test_invalid_weight_is_refused_with_its_field(api: httpx.AsyncClient, body: dict[str, Any]) -> None:
    answer = await api.patch("/v1/admin/projects/labs/other", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] in ("weight", "share")


async def test_unknown_project_is_not_found(api: httpx.AsyncClient) -> None:
    assert (await api.patch("/v1/admin/projects/never", json={"weight": 1})).status_code == 404


async def test_project_list_is_paged(api: httpx.AsyncClient) -> None:
    first = (await api.get("/v1/admin/projects", params={"limit": 1})).json()
    second = (await api.get("/v1/admin/projects", params={"limit": 1, "cursor": first["next_cursor"]})).json()
    assert [page["items"][0]["name"] for page in (first, second)] == ["labs/other", "default"]
    assert "next_cursor" not in (await api.get("/v1/admin/projects")).json()

"""Test that polls find all work if every notification is lost."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import System, running_system

NOBODY = "http://127.0.0.1:9"
TRUE = {"task": "t", "argv": ["true"], "demand": {"cpu": 0.1}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def api(databases: Databases) -> AsyncIterator[httpx.AsyncClient]:
    """Run a system in which no notification between admission, scheduler and manager arrives."""
    owner_url = await databases.clone()
    overrides = {
        "admission": {"TANGRAM_SCHEDULER_URL": NOBODY},
        "cpu": {"TANGRAM_SCHEDULER_URL": NOBODY, "TANGRAM_ADVERTISE_URL": NOBODY},
    }
    async with running_system(owner_url, cores=2, overrides=overrides) as system, client_of(system) as api:
        yield api
    await databases.drop(owner_url)


def client_of(system: System) -> httpx.AsyncClient:
    return system.client()


@pytest.mark.slow
async def test_actions_settle_without_notifications(api: httpx.AsyncClient) -> None:
    items = (await api.post("/v1/actions:batch", json={"actions": [TRUE] * 20})).json()["items"]
    ids = [item["id"] for item in items]
    waited = (await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 50})).json()
    assert [action["outcome"] for action in waited["settled"]] == ["ok"] * 20


async def test_freed_resources_are_reused_without_notifications(api: httpx.AsyncClient) -> None:
    """Each action needs the whole node, so the second starts only after the scheduler sees the first end."""
    whole = [TRUE | {"demand": {"cpu": 2}}] * 2
    items = (await api.post("/v1/actions:batch", json={"actions": whole})).json()["items"]
    ids = [item["id"] for item in items]
    waited = (await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 50})).json()
    assert [action["outcome"] for action in waited["settled"]] == ["ok"] * 2


async def test_trajectory_keeps_its_environment_without_notifications(api: httpx.AsyncClient) -> None:
    body = TRUE | {"trajectory": "x", "environment": {"scope": "trajectory"}}
    items = (await api.post("/v1/actions:batch", json={"actions": [body] * 2})).json()["items"]
    ids = [item["id"] for item in items]
    waited = (await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 50})).json()
    assert [action["outcome"] for action in waited["settled"]] == ["ok"] * 2


async def test_running_action_is_cancelled_without_notifications(api: httpx.AsyncClient) -> None:
    response = await api.post("/v1/actions", json=TRUE | {"argv": ["sleep", "300"]})
    await api.delete(response.headers["location"])
    settled = (await api.get(response.headers["location"], params={"wait": 50})).json()
    assert settled["outcome"] == "cancelled"

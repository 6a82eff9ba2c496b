"""Every hint may be lost: then polls find the work, and the system is only slower."""

from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from support.postgres import Databases
from support.system import System, running_system

NOBODY = "http://127.0.0.1:9"
TRUE = {"task": "t", "argv": ["true"], "demand": {"cpu": 0.1}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def api(databases: Databases) -> AsyncIterator[httpx.AsyncClient]:
    """Admission and manager tell the scheduler nothing, and the scheduler tells the manager nothing."""
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


async def test_actions_settle(api: httpx.AsyncClient) -> None:
    items = (await api.post("/v1/actions:batch", json={"actions": [TRUE] * 20})).json()["items"]
    ids = [item["id"] for item in items]
    waited = (await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 50})).json()
    assert [action["outcome"] for action in waited["settled"]] == ["ok"] * 20


async def test_amounts_come_back(api: httpx.AsyncClient) -> None:
    """Each takes the whole node, so the next one needs the scheduler to have noticed the end."""
    whole = [TRUE | {"demand": {"cpu": 2}}] * 2
    items = (await api.post("/v1/actions:batch", json={"actions": whole})).json()["items"]
    ids = [item["id"] for item in items]
    waited = (await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 50})).json()
    assert [action["outcome"] for action in waited["settled"]] == ["ok"] * 2


async def test_a_trajectory_keeps_its_environment(api: httpx.AsyncClient) -> None:
    body = TRUE | {"trajectory": "x", "environment": {"scope": "trajectory"}}
    items = (await api.post("/v1/actions:batch", json={"actions": [body] * 2})).json()["items"]
    ids = [item["id"] for item in items]
    waited = (await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 50})).json()
    assert [action["outcome"] for action in waited["settled"]] == ["ok"] * 2


async def test_a_cancel_is_obeyed(api: httpx.AsyncClient) -> None:
    response = await api.post("/v1/actions", json=TRUE | {"argv": ["sleep", "300"]})
    await api.delete(response.headers["location"])
    settled = (await api.get(response.headers["location"], params={"wait": 50})).json()
    assert settled["outcome"] == "cancelled"

"""Test that tens of thousands of cancelled actions of one task do not delay the actions of another."""

import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import System, running_system

pytestmark = pytest.mark.slow
QUEUED, BATCH = 60_000, 1000
MAX_DELAY_S = 1.0
"""Seconds that the action of the other task may take. It took 43 s when each cancellation walked the whole queue."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    overrides = {"admission": {"TANGRAM_DEFAULT_MAX_QUEUED": str(2 * QUEUED)}}
    async with running_system(owner_url, cores=2, overrides=overrides) as system:
        yield system
    await databases.drop(owner_url)


async def test_cancelled_trajectory_does_not_delay_another_task(api: httpx.AsyncClient) -> None:
    named = {"task": "large", "trajectory": "t", "environment": {"scope": "trajectory"}}
    action = {**named, "argv": ["sleep", "60"], "timeout_s": 60}
    for _ in range(QUEUED // BATCH):
        answer = await api.post("/v1/actions:batch", json={"actions": [action] * BATCH})
        assert all("id" in item for item in answer.json()["items"]), answer.text[:500]
    delays = [await delay_of_another_task(api)]
    ended = await api.delete("/v1/trajectories/t", params={"task": "large"}, timeout=120)
    assert ended.status_code < 300, ended.text
    for _ in range(10):
        delays.append(await delay_of_another_task(api))
    assert max(delays) < MAX_DELAY_S, delays


async def delay_of_another_task(api: httpx.AsyncClient) -> float:
    began = time.monotonic()
    body = {"task": "small", "argv": ["true"], "demand": {"cpu": 0.1}}
    answer = await api.post("/v1/actions", json=body, params={"wait": 50})
    assert answer.json()["outcome"] == "ok", answer.text
    return time.monotonic() - began

"""Test the static provisioning policies through all services."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from support.postgres import Databases
from support.system import System, running_system

TASK = "pods"
HOME = {"scope": "trajectory"}


@asynccontextmanager
async def a_system(databases: Databases, policy: str, pod_cores: str) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    both = {"TANGRAM_POLICY": policy, "TANGRAM_POD_CORES": pod_cores}
    async with running_system(owner_url, cores=2, overrides={"scheduler": both, "cpu": both}) as system:
        yield system
    await databases.drop(owner_url)


async def run(api: httpx.AsyncClient, trajectory: str, *, wait_s: float, scope: str = "trajectory") -> dict[str, Any]:
    body = {"task": TASK, "trajectory": trajectory, "argv": ["true"], "environment": {"scope": scope}}
    return (await api.post("/v1/actions", params={"wait": wait_s}, json=body)).json()


@pytest.mark.slow
async def test_static_pod_stays_allocated_between_actions_of_its_trajectory(databases: Databases) -> None:
    async with a_system(databases, "static", "2") as system, system.client() as api:
        assert (await run(api, "a", wait_s=10))["outcome"] == "ok"
        second = await run(api, "b", wait_s=0)
        # The verdict of the first does not wait: it runs on the pod's own cores.
        assert (await run(api, "a", wait_s=10, scope="ephemeral"))["outcome"] == "ok"
        assert (await api.get(f"/v1/actions/{second['id']}")).json()["state"] == "queued"
        await api.delete("/v1/trajectories/a", params={"task": TASK})
        assert (await api.get(f"/v1/actions/{second['id']}", params={"wait": 20})).json()["outcome"] == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["overcommitted", "unlimited"])
async def test_pods_that_share_cores_run_concurrently(databases: Databases, policy: str) -> None:
    async with a_system(databases, policy, "2") as system, system.client() as api:
        body = {"task": TASK, "argv": ["sleep", "300"]}
        ids = [
            (await api.post("/v1/actions", json=body | {"trajectory": f"t{number}", "environment": HOME})).json()["id"]
            for number in range(5)
        ]
        async with asyncio.timeout(20):
            while True:
                answer = (await api.get("/v1/actions", params={"task": TASK, "state": "running"})).json()
                if {item["id"] for item in answer["items"]} == set(ids):
                    break
        for action_id in ids:
            await api.delete(f"/v1/actions/{action_id}")

"""Test that a stopping gateway answers all waiting requests."""

import asyncio
import signal

import pytest

from arl_tangram import AsyncTangram
from support.system import API_KEY, running_system


@pytest.mark.slow
async def test_stopping_gateway_answers_waiting_requests(database: str) -> None:
    async with running_system(database) as system, system.client() as client:
        id = (await client.post("/v1/actions", json={"task": "t", "argv": ["sleep", "60"]})).json()["id"]
        waiting = asyncio.create_task(client.get(f"/v1/actions/{id}?wait=50"))
        also = asyncio.create_task(client.post("/v1/actions:wait", json={"ids": [id], "timeout_s": 50}))
        async with asyncio.timeout(10):
            while (await client.get(f"/v1/actions/{id}")).json()["state"] != "running":
                await asyncio.sleep(0.02)
            while "waiting_requests 2" not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.02)
            system.processes["gateway"].send_signal(signal.SIGTERM)
            assert (await waiting).json()["state"] == "running"
            assert (await also).json()["pending"] == [id]
            await asyncio.to_thread(system.processes["gateway"].wait)


@pytest.mark.slow
async def test_waiting_sdk_client_survives_a_gateway_restart(database: str) -> None:
    async with running_system(database) as system, AsyncTangram(system.url, API_KEY) as tangram:
        running = asyncio.create_task(tangram.run(task="t", argv=["sleep", "2"]))
        async with asyncio.timeout(10):
            while not [action async for action in tangram.list(task="t", state="running")]:
                await asyncio.sleep(0.02)
            system.kill("gateway", signal.SIGTERM)
            await system.start("gateway")
            assert (await running).outcome == "ok"

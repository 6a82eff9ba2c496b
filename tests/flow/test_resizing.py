"""Test that a running command loses cores when others arrive and gets them back afterwards.

And what brings nothing is not given for long.
"""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from arl_tangram import AsyncTangram
from arl_wire.actions.action import SubmitActionRequest
from support.postgres import Databases
from support.system import API_KEY, System, running_system

SAYS_ITS_CORES = """
import os, time
seen = 0
while True:
    if (now := len(os.sched_getaffinity(0))) != seen:
        print(seen := now, flush=True)
    time.sleep(0.02)
"""
FROM_ONE_TO_TWO = {"cpu": {"min": 1, "max": 2}, "memory_mib": 64}
RESIZABLE = {"model": "amdahl", "parallel_fraction": 0.95, "resizable": "any"}
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    settings = {"scheduler": {"TANGRAM_POLICY": "spar_m"}, "admission": {"TANGRAM_CPU_FORM": "exclusive"}}
    async with running_system(owner_url, driver="unsafe-local", cores=2, overrides=settings) as system:
        yield system
    await databases.drop(owner_url)


async def until_cores(client: AsyncTangram, action: object, milli: int) -> None:
    """Wait until the action's allocation shows this many milli-cores."""
    async with asyncio.timeout(20):
        while ((await client.get(action)).allocation or {}).get("cpu_milli") != milli:  # type: ignore[arg-type]
            await asyncio.sleep(0.02)


@TWO_CORES
async def test_running_command_gives_up_a_core_and_gets_it_back(system: System) -> None:
    async with AsyncTangram(system.url, API_KEY) as client:
        wide = await client.submit(
            SubmitActionRequest.model_validate(
                {"task": "t", "source": SAYS_ITS_CORES, "demand": FROM_ONE_TO_TWO, "elasticity": RESIZABLE}
            )
        )
        await until_cores(client, wide.id, 2000)
        other = await client.submit(task="t", argv=["sleep", "300"], cpu=1, memory_mib=64)
        await until_cores(client, wide.id, 1000)
        async with asyncio.timeout(20):
            while (await client.get(other.id)).state != "running":
                await asyncio.sleep(0.02)
        await client.cancel(other.id)
        await until_cores(client, wide.id, 2000)
        await client.cancel(wide.id)
        (ended,) = await client.wait([wide.id], timeout_s=20)
    assert ended.result is not None
    assert ended.result.stdout.text.split() in (["2", "1", "2"], ["1", "2", "1", "2"])


@TWO_CORES
async def test_unused_cores_are_no_longer_granted_after_a_few_runs(system: System) -> None:
    """The program declares a parallel fraction but runs serially."""
    serial = "import time\nwhile time.process_time() < 0.2: pass"
    given = []
    async with AsyncTangram(system.url, API_KEY) as client, asyncio.timeout(40):
        while not given or given[-1] != 1000:
            action = await client.run(task="serial", source=serial, cpu=(1, 2), memory_mib=64, parallel_fraction=0.95)
            given.append((action.allocation or {})["cpu_milli"])
    assert given[0] == 2000

"""Test actions that name an earlier environment by id after a new one took its name."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest_asyncio

from support.cpu import Cpu, managing
from support.rows import AMOUNTS, Rows, rows_in

WHOLE_NODE = {"cpu_milli": 2000, "memory_mib": 1000, "disk_mib": 1000}


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


@pytest_asyncio.fixture
async def cpu(rows: Rows) -> AsyncIterator[Cpu]:
    async with managing(rows) as cpu:
        yield cpu


async def test_action_for_an_earlier_environment_keeps_the_current_one(cpu: Cpu, rows: Rows) -> None:
    environment = uuid4()
    fence = await cpu.running(trajectory="x", scope="trajectory", environment_id=environment)
    cpu.executor.finish(fence)
    await rows.until_state(fence.action_id, "settled")
    late: dict[str, Any] = {"scope": "trajectory", "names": uuid4()}
    action = await cpu.granted(trajectory="x", environment_id=environment, **late)
    await rows.until_state(action, "settled")
    assert await rows.state(action) == ("settled", "infra_error", "environment_lost")
    assert await rows.value("select lost_at from environments where id = $1", environment) is None
    other = await cpu.granted(trajectory="z", environment_id=uuid4(), **late)
    await rows.until_state(other, "settled")
    assert await rows.value("select count(*) from environments where trajectory = 'z'") == 0
    rest = {name: whole - AMOUNTS[name] * (name != "cpu_milli") for name, whole in WHOLE_NODE.items()}
    cpu.executor.finish(await cpu.running(amounts=rest))
    await cpu.running(trajectory="x", scope="trajectory", environment_id=environment)

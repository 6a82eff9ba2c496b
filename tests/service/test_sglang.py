"""SGLang can't be asked whether it sleeps, and ends where it is told so twice: what is known of it, and what is not."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import pytest
import pytest_asyncio

from arl_gpu.engine import Engine, EngineSpec
from arl_gpu.last_order import LastOrder
from support.engine import KEY, RunningEngine, Told, running_engine


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def process() -> AsyncIterator[RunningEngine]:
    async with running_engine("sglang") as engine:
        yield engine


@pytest_asyncio.fixture
async def sglang(process: RunningEngine) -> RunningEngine:
    """Awake, and as if it had begun just now."""
    if process.has_ended:
        await process.start()
    await process.tell(**asdict(Told()))
    if (await process.state())["asleep"]:
        await asyncio.to_thread(driver_of(process, is_asleep=True).wake().wait)
    return process


@pytest.fixture
def last(tmp_path: Path) -> LastOrder:
    return LastOrder(tmp_path / "e.json")


def driver_of(process: RunningEngine, last: LastOrder | None = None, *, is_asleep: bool = False) -> Engine:
    spec = EngineSpec(url=process.url, family="sglang", size=1, wake_s=0.5, sleep_s=0.5)
    return Engine(spec, key=KEY, is_asleep=is_asleep, last=last, on_step=lambda: None)


async def is_awake(engine: Engine) -> bool | None:
    """None where it is not sure."""
    found = await asyncio.to_thread(engine.is_awake)
    return found if engine.is_sure else None


async def test_one_without_a_seed_that_its_manager_put_to_sleep_is_asleep_to_the_next_worker_and_unknown_to_others(
    sglang: RunningEngine, last: LastOrder
) -> None:
    await sglang.tell(seed=42)
    await asyncio.to_thread(driver_of(sglang, last).sleep)
    assert await is_awake(driver_of(sglang, last, is_asleep=True)) is False
    assert await is_awake(driver_of(sglang, last)) is None


async def test_one_that_does_not_say_at_once_which_it_is_is_asked_again(sglang: RunningEngine, last: LastOrder) -> None:
    await asyncio.to_thread(driver_of(sglang, last).sleep)
    await sglang.tell(hides_its_seed=True)
    engine = driver_of(sglang, last)
    assert await is_awake(engine) is None
    await sglang.tell(hides_its_seed=False)
    assert await is_awake(engine) is False

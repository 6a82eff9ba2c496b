"""Test the tracked sleep state of SGLang, which cannot be queried and exits if told to sleep twice."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import pytest_asyncio

from arl_gpu.devices.cpu_device import CpuDevice
from arl_gpu.worker.engine_controller import EngineController, EngineError, EngineSpec, EngineWakeFailed
from arl_gpu.worker.engine_set import EngineSet
from arl_gpu.worker.engine_state_file import EngineStateFile
from arl_gpu.worker.residency import DeviceResidency
from support.engine import KEY, RunningEngine, Told, running_engine


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def process() -> AsyncIterator[RunningEngine]:
    async with running_engine("sglang") as engine:
        yield engine


@pytest_asyncio.fixture
async def sglang(process: RunningEngine) -> RunningEngine:
    """Provide the engine awake and in the state of a fresh start."""
    if process.has_ended:
        await process.start()
    await process.tell(**asdict(Told()))
    if (await process.state())["asleep"]:
        await asyncio.to_thread(driver_of(process, is_asleep=True).wake().wait)
    return process


@pytest.fixture
def last(tmp_path: Path) -> EngineStateFile:
    return EngineStateFile(tmp_path / "e.json")


def driver_of(
    process: RunningEngine,
    last: EngineStateFile | None = None,
    *,
    is_asleep: bool = False,
    on_step: Callable[[], None] = lambda: None,
) -> EngineController:
    spec = EngineSpec(url=process.url, family="sglang", size=1, wake_timeout_s=0.5, sleep_timeout_s=0.5)
    return EngineController(spec, key=KEY, is_asleep=is_asleep, state_file=last, on_progress=on_step)


async def is_awake(engine: EngineController) -> bool | None:
    """Return whether the engine is awake, or None if its state is unknown."""
    try:
        return await asyncio.to_thread(engine.is_awake)
    except EngineError as trouble:
        if "restart the engine" not in str(trouble):
            raise
        return None


async def test_engine_with_fixed_seed_is_asleep_only_for_its_manager(
    sglang: RunningEngine, last: EngineStateFile
) -> None:
    await sglang.tell(seed=42)
    await asyncio.to_thread(driver_of(sglang, last).sleep)
    assert await is_awake(driver_of(sglang, last, is_asleep=True)) is False
    assert await is_awake(driver_of(sglang, last)) is None


async def test_manager_wakes_its_sleeping_engine_without_the_state_file(
    sglang: RunningEngine, last: EngineStateFile, tmp_path: Path
) -> None:
    await asyncio.to_thread(driver_of(sglang, last).sleep)
    (tmp_path / "e.json").unlink()
    engine = driver_of(sglang, last, is_asleep=True)
    assert await is_awake(engine) is False
    await asyncio.to_thread(engine.wake().wait)
    assert (sglang.has_ended, (await sglang.state())["asleep"]) == (False, False)


async def test_engine_that_hides_its_seed_is_queried_again(sglang: RunningEngine, last: EngineStateFile) -> None:
    await asyncio.to_thread(driver_of(sglang, last).sleep)
    await sglang.tell(hides_its_seed=True)
    engine = driver_of(sglang, last)
    assert await is_awake(engine) is None
    await sglang.tell(hides_its_seed=False)
    assert await is_awake(engine) is False


async def test_engine_is_unknown_after_a_failed_sleep_or_wake(
    sglang: RunningEngine, last: EngineStateFile, tmp_path: Path
) -> None:
    engine = driver_of(sglang, last)
    await sglang.tell(slow_sleep_s=5.0)
    with pytest.raises(EngineError, match="timed out"):
        await asyncio.to_thread(engine.sleep)
    assert await is_awake(engine) is None
    (tmp_path / "e.json").unlink()
    assert await is_awake(engine) is None
    engine.mark_restarted()
    await sglang.tell(slow_sleep_s=0.0, wakes_that_fail=1)
    await asyncio.to_thread(engine.sleep)
    with pytest.raises(EngineWakeFailed, match="CUDA out of memory"):
        await asyncio.to_thread(engine.wake().wait)
    with pytest.raises(EngineError, match="restart the engine"):
        await asyncio.to_thread(engine.sleep)
    assert (await is_awake(engine), (await sglang.state())["asleep"]) == (None, True)
    await sglang.tell(seed=1 << 30)
    assert await is_awake(engine) is True, "another one has begun"


class Ends(EngineStateFile):
    """A state file whose engine process is killed just before a command is sent."""

    process: RunningEngine | None = None

    def save(self, engine: str | None, *, sleeps: bool | None) -> None:
        super().save(engine, sleeps=sleeps)
        if sleeps is None and self.process is not None:
            self.process.kill()


async def test_undelivered_command_leaves_the_previous_state_in_the_file(sglang: RunningEngine, tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    (last := Ends(path)).process = sglang
    with pytest.raises(EngineError):
        await asyncio.to_thread(driver_of(sglang, last).sleep)
    assert json.loads(path.read_text())["sleeps"] is False
    await sglang.start()
    await sglang.tell(seed=1 << 20)
    last.process = None
    await asyncio.to_thread((engine := driver_of(sglang, last)).sleep)
    last.process = sglang
    with pytest.raises(EngineWakeFailed):
        await asyncio.to_thread(engine.wake().wait)
    assert json.loads(path.read_text()) == {"engine": str(1 << 20), "sleeps": True}


async def test_engine_in_unknown_state_is_not_used_until_restarted(
    sglang: RunningEngine, last: EngineStateFile
) -> None:
    last.save(None, sleeps=True)
    residency = DeviceResidency(CpuDevice(8))
    residency.adopt_engine("e", engine := driver_of(sglang, last))
    for order in (residency.check_engine, residency.acquire_engine, residency.evict):
        with pytest.raises(EngineError, match="restart the engine"):
            await asyncio.to_thread(order, "e")
    assert residency.used == 1
    engine.mark_restarted()
    assert await asyncio.to_thread(residency.acquire_engine, "e")


async def test_next_worker_keeps_an_oversized_engine_in_use_awake(
    sglang: RunningEngine,
) -> None:
    spec = asdict(EngineSpec(url=sglang.url, family="sglang", size=9))

    def started(*held: str) -> str:
        engines = EngineSet(
            {"e": spec}, DeviceResidency(CpuDevice(8)), keys={"e": KEY}, in_use=held, on_progress=lambda: None
        )
        return engines.states["e"]

    assert (await asyncio.to_thread(started, "e"), (await sglang.state())["asleep"]) == ("resident", False)
    assert (await asyncio.to_thread(started), (await sglang.state())["asleep"]) == ("host", True)


async def test_progress_is_reported_before_a_command_and_after_its_answer(
    sglang: RunningEngine, last: EngineStateFile
) -> None:
    seen: list[bool | None] = []
    last.save(None, sleeps=False)
    engine = driver_of(sglang, last, on_step=lambda: seen.append(last.is_asleep(lambda: None, asleep=True)))
    await asyncio.to_thread(engine.sleep)
    assert seen == [False] * (len(seen) - 1) + [True]
    asked = len(seen)
    await asyncio.to_thread(engine.is_awake)
    assert len(seen) == asked + 2

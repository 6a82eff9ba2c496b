"""Test engines that share a device with a worker, which wakes them and puts them to sleep."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from arl_gpu.worker.client import WorkerClient
from arl_gpu.worker.engine_controller import EngineSpec
from arl_gpu.worker.process import MIB, WorkerConfig
from support.conditions import eventually
from support.engine import KEY, RunningEngine, running_engine

COMPANION = {"name": "own", "kind": "python", "directory": "", "options": {"callable": "builtins:len"}}
"""A service of one byte; the engine leaves only half a byte of the device free."""


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[RunningEngine]:
    async with running_engine() as engine:
        yield engine


def spec_of(engine: RunningEngine, mib: int = 6) -> dict[str, Any]:
    spec = EngineSpec(url=engine.url, family="vllm", size=mib * MIB, wake_timeout_s=5.0, sleep_timeout_s=2.0)
    return asdict(spec) | {"family": engine.family}


@asynccontextmanager
async def working(
    *engines: RunningEngine, device_mib: int = 8, limit_s: float = 30.0, directory: Path | None = None, **mib: int
) -> AsyncIterator[WorkerClient]:
    specs = {(name := f"e{at}"): spec_of(each, mib.get(name, 6)) for at, each in enumerate(engines)}
    services = {f"judge{at}": {"name": f"judge{at}", "kind": "judge", "engine": f"e{at}"} for at in range(len(specs))}
    config = WorkerConfig(
        services={**services, "own": COMPANION},
        device_mib=device_mib,
        copy_mib_per_s=None,
        engines=specs,
        engines_dir=str(directory) if directory is not None else None,
    )
    worker = WorkerClient(config, threads=1, limit_s=limit_s, engine_keys=dict.fromkeys(specs, KEY))
    try:
        yield worker
    finally:
        await worker.end()


async def held(worker: WorkerClient, engine: str) -> dict[str, Any]:
    """Acquire the engine and return the answer once it is awake or has failed to wake."""
    answers: list[dict[str, Any]] = []

    async def is_decided() -> bool:
        answers.append(await worker.acquire_engine(engine))
        return "error" in answers[-1] or answers[-1]["held"]

    await eventually(is_decided)
    return answers[-1]


async def test_awake_engine_is_resident_and_evicted_only_when_unused(
    engine: RunningEngine,
) -> None:
    async with running_engine() as other, working(engine, other) as worker:
        answer = await held(worker, "e0")
        assert (answer["states"]["judge0"], answer["used_bytes"]) == ("resident", 6 * MIB)
        assert (await engine.state())["wakes"] == 0, "it was awake already"
        assert (await other.state())["asleep"], "there is room for one of them"
        assert (await worker.acquire_engine("e1"))["error"] == "no_room"
        await worker.release_engine("e0")
        answer = await held(worker, "e1")
        assert answer["engines"] == {"e0": "host", "e1": "resident"}
        assert [(await each.state())["asleep"] for each in (engine, other)] == [True, False]


@pytest.mark.slow
async def test_unreachable_engine_keeps_its_memory_and_users_until_it_answers(
    engine: RunningEngine,
) -> None:
    async with running_engine() as other, working(engine, other) as worker:
        await held(worker, "e0")
        await worker.end()
        engine.kill()
        answer = await held(worker, "e1")
        assert (answer["error"], answer["used_bytes"], answer["unheard"]) == ("no_room", 6 * MIB, ["e0"])
        assert (await worker.evict("judge0"))["error"] == "busy", "whoever held it before does still"
        await worker.release_engine("e0")
        assert (await held(worker, "e1"))["error"] == "no_room", "nobody has heard that it sleeps"
        await engine.start()
        async with httpx.AsyncClient() as somebody:
            await somebody.post(f"{engine.url}/sleep")
        answer = await worker.check_engine("e0")
        assert (answer["engines"]["e0"], answer["used_bytes"], answer["unheard"]) == ("host", 0, [])
        assert (await held(worker, "e1"))["held"]


async def test_engine_larger_than_its_device_is_refused_by_name(engine: RunningEngine) -> None:
    async with working(engine, device_mib=5) as worker:
        for answer in (await worker.check_engine("e0"), await worker.acquire_engine("e0")):
            assert (answer["error"], answer["message"]) == (
                "engine_too_large",
                "engine e0 needs 6 MiB, but its device has only 5 MiB in total",
            )
        assert (await engine.state())["asleep"], "it could not be used, and others might"


async def test_engine_that_refuses_sleep_is_reported_without_ending_its_worker(engine: RunningEngine) -> None:
    async with working(engine) as worker:
        await worker.check_engine("e0")
        await engine.tell(refuses_sleep=True)
        answer, pid = await worker.evict("judge0"), worker.pid
        assert (answer["error"], answer["used_bytes"], answer["unheard"]) == ("engine_trouble", 6 * MIB, ["e0"])
        answer = await worker.check_engine("e0")
        assert (answer["engines"], answer["unheard"]) == ({"e0": "resident"}, [])
        assert worker.pid == pid


async def test_engine_users_are_counted_once_across_worker_restarts(engine: RunningEngine) -> None:
    async with working(engine) as worker:
        for holder in ("requests", "load"):
            assert (await worker.acquire_engine("e0", user=holder))["held"]
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        await worker.release_engine("e0", user="load")
        assert (await worker.evict("judge0"))["error"] == "busy"
        assert (await worker.acquire_engine("e0", user="requests"))["held"]
        await worker.release_engine("e0", user="requests")
        assert (await worker.evict("judge0"))["engines"] == {"e0": "host"}


async def test_engine_can_be_evicted_after_its_pinned_judge_is_removed(engine: RunningEngine) -> None:
    async with running_engine() as other, working(engine, other) as worker:
        await worker.check_engine("e0")
        await worker.pin("judge0", on=True)
        assert (await held(worker, "e1"))["error"] == "no_room"
        await worker.forget("judge0")
        assert (await held(worker, "e1"))["held"]


async def test_failed_wake_uses_no_memory_and_the_next_can_succeed(engine: RunningEngine) -> None:
    async with working(engine) as worker:
        await held(worker, "e0")
        await worker.release_engine("e0")
        await worker.evict("judge0")
        await engine.tell(wakes_that_fail=1)
        answer = await held(worker, "e0")
        assert (answer["error"], answer["used_bytes"], answer["states"]["judge0"]) == ("wake_failed", 0, "host")
        assert "CUDA out of memory" in answer["message"]
        assert (await held(worker, "e0"))["held"]


@pytest.mark.slow
async def test_engine_that_frees_nothing_keeps_its_bytes_until_checked(
    engine: RunningEngine,
) -> None:
    async with running_engine() as other, working(engine, other) as worker:
        await held(worker, "e0")
        await worker.release_engine("e0")
        await engine.tell(sleep_frees_nothing=True)
        answer = await held(worker, "e1")
        assert (answer["error"], answer["used_bytes"], answer["states"]["judge0"]) == ("no_room", 6 * MIB, "resident")
        assert (await worker.acquire_engine("e1"))["error"] == "no_room"
        assert (await engine.state())["sleeps"] == 1, "it was asked once"
        await engine.tell(sleep_frees_nothing=False)
        await worker.check_engine("e0")
        assert (await held(worker, "e1"))["used_bytes"] == 6 * MIB


@pytest.mark.slow
async def test_several_evictions_may_together_exceed_the_worker_timeout(engine: RunningEngine) -> None:
    async with (
        running_engine() as other,
        running_engine() as large,
        working(engine, other, large, device_mib=12, limit_s=3.0, e2=12) as worker,
    ):
        assert (await worker.check_engine("e2"))["used_bytes"] == 12 * MIB
        for each in (engine, other):
            await each.tell(slow_sleep_s=1.6)
        assert (await held(worker, "e2"))["engines"] == {"e0": "host", "e1": "host", "e2": "resident"}


@pytest.mark.slow
async def test_engine_put_to_sleep_by_another_client_is_woken(engine: RunningEngine) -> None:
    async with working(engine) as worker:
        await held(worker, "e0")
        await worker.release_engine("e0")
        async with httpx.AsyncClient() as other:
            await other.post(f"{engine.url}/sleep")
        assert (await held(worker, "e0"))["used_bytes"] == 6 * MIB
        assert not (await engine.state())["asleep"]


@pytest.mark.slow
async def test_waking_engine_keeps_its_memory_while_other_services_are_scored(engine: RunningEngine) -> None:
    async with working(engine) as worker:
        await worker.check_engine("e0")
        await worker.evict("judge0")
        await engine.tell(slow_wake_s=0.5)
        answer = await worker.acquire_engine("e0")
        assert (answer["held"], answer["states"]["judge0"], answer["used_bytes"]) == (False, "restoring", 6 * MIB)
        assert (await worker.evict("judge0"))["error"] == "busy", "nobody is kept waiting for it"
        scored = await worker.score("own", [{"text": "a"}])
        assert (scored["states"]["judge0"], "entries" in scored) == ("restoring", True)
        assert (await held(worker, "e0"))["held"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["vllm", "sglang"])
async def test_next_worker_knows_engines_in_use_and_asleep(family: str) -> None:
    """SGLang exits if it is told to release its memory twice, and it cannot be queried."""
    async with running_engine(family) as engine, working(engine) as worker:
        await held(worker, "e0")
        await worker.end()
        await worker.check_engine("e0")
        assert (await worker.evict("judge0"))["error"] == "busy"
        await worker.release_engine("e0")
        await worker.evict("judge0")
        await worker.end()
        assert (await worker.check_engine("e0"))["engines"] == {"e0": "host"}
        assert (await held(worker, "e0"))["held"]
        state = await engine.state()
        assert (state["sleeps"], state["wakes"], state["asleep"]) == (1, 1, False)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["vllm", "sglang"])
async def test_dead_engine_fails_to_wake_and_is_resident_after_restart(family: str) -> None:
    async with running_engine(family) as engine, working(engine) as worker:
        await held(worker, "e0")
        await worker.release_engine("e0")
        await worker.evict("judge0")
        engine.kill()
        answer = await held(worker, "e0")
        assert (answer["error"], answer["used_bytes"]) == ("wake_failed", 6 * MIB), "it may be back at any time"
        await engine.start()
        answer = await worker.check_engine("e0", restarted=True)
        assert (answer["engines"], answer["used_bytes"]) == ({"e0": "resident"}, 6 * MIB)
        assert (await held(worker, "e0"))["held"]
        assert (await engine.state())["wakes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["vllm", "sglang"])
async def test_engine_sleeps_only_after_cancelled_requests_have_ended(family: str) -> None:
    async with running_engine(family) as engine, working(engine) as worker:
        await held(worker, "e0")
        await engine.tell(hang=True, slow_abort_s=0.2)
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=engine.url, headers=headers) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/chat/completions", json={}, timeout=0.3)
        await worker.release_engine("e0")
        assert (await worker.evict("judge0"))["engines"] == {"e0": "host"}
        state = await engine.state()
        assert (state["asleep"], state["aborted"], state["in_flight"]) == (True, 1, 0)


@pytest.mark.slow
async def test_engine_without_sleep_support_reports_the_required_start_option() -> None:
    async with running_engine("sglang") as engine:
        engine.family = "vllm"
        async with working(engine) as worker:
            answer = await worker.acquire_engine("e0")
            assert (answer["error"], "VLLM_SERVER_DEV_MODE=1" in answer["message"]) == ("engine_trouble", True)


@pytest.mark.slow
async def test_sleep_state_of_sglang_is_stored_for_the_next_manager(
    tmp_path: Path,
) -> None:
    async with running_engine("sglang") as engine:
        async with working(engine, directory=tmp_path) as worker:
            await worker.check_engine("e0")
            await worker.evict("judge0")
        async with working(engine, directory=tmp_path) as worker:
            assert (await worker.check_engine("e0"))["engines"] == {"e0": "host"}
            assert (await held(worker, "e0"))["held"]
            await worker.release_engine("e0")
            await worker.evict("judge0")
        engine.kill()
        await engine.start()
        async with working(engine, directory=tmp_path) as worker:
            assert (await worker.check_engine("e0"))["engines"] == {"e0": "resident"}
            await worker.evict("judge0")
            assert (await engine.state())["asleep"]
        await engine.tell(seed=1)  # by which it could be any
        async with working(engine, directory=tmp_path) as worker:
            assert (await worker.check_engine("e0"))["engines"] == {"e0": "resident"}
            assert "unknown" in (await worker.evict("judge0"))["message"]
            assert (await engine.state())["asleep"], "it was told nothing that ends it"
            await worker.check_engine("e0", restarted=True)
        assert json.loads((tmp_path / "e0.json").read_text())["sleeps"] is False

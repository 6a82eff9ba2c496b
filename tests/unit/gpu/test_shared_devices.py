"""Many services on two small failing devices: each request is answered once with its own weights."""

import asyncio
import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from arl_core.domain.model import Fence
from arl_core.residency.occupancy import ResidencyState
from arl_gpu.devices.cpu_device import CpuDevice
from arl_gpu.devices.interface import CopyFailed
from arl_gpu.dispatch.dispatcher import BatchDispatcher
from arl_gpu.dispatch.metrics import GpuMetrics
from arl_gpu.models.interface import Item
from arl_gpu.queue.batch_scheduler import BatchScheduler
from arl_gpu.queue.score_jobs import ScoreJob, ScoreReport
from arl_gpu.worker.client import WorkerDied
from arl_gpu.worker.residency import DeviceResidency, InsufficientMemory
from arl_kit.metrics import Metrics

SERVICES = {f"service-{number}": 20_000 + 3_000 * number for number in range(7)}
CAPACITY = 100_000
HOST_BYTES = 150_000
JOBS = 60


@dataclass
class Bytes:
    content: memoryview


def weights_of(service: str) -> Bytes:
    return Bytes(memoryview(random.Random(service).randbytes(SERVICES[service])))


def score_of(service: str, text: str) -> int:
    """Return the score that only this service's weights give the text."""
    return zlib.crc32(weights_of(service).content, zlib.crc32(text.encode()))


class FailingWorker:
    """A fake `DeviceWorker` with a real residency; one in a dozen allocs, copies and forwards fails."""

    host = None

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.residency = self.new()

    def new(self) -> DeviceResidency:
        self.device = CpuDevice(CAPACITY, bytes_per_s=100e6, fault=lambda _what, _size: self.rng.random() < 1 / 12)
        return DeviceResidency(self.device, host_bytes=HOST_BYTES)

    async def score(self, service: str, items: Sequence[Item], waiting: Sequence[str] = ()) -> dict[str, Any]:
        if self.rng.random() < 1 / 12:
            self.residency.close()
            self.residency = self.new()
            raise WorkerDied("killed by the test, with all that was resident")
        try:
            answer = self.computed(service, items, waiting)
        except (InsufficientMemory, CopyFailed) as error:
            answer = {"error": "copy_failed", "message": str(error)}
        states, used = self.residency.states, self.residency.used
        there = sum(
            SERVICES[name] for name, state in states.items() if state not in (ResidencyState.HOST, ResidencyState.COLD)
        )
        assert self.device.used == used == there <= CAPACITY
        moves = {"restored_s": [], "evicted": 0, "prefetched": 0, "failed": 0, "cooled": 0}
        for _ in range(self.rng.randrange(8)):
            await asyncio.sleep(0)
        return answer | {"states": states, "used_bytes": used, "moves": moves, "fitting": self.residency.fitting}

    def computed(self, service: str, items: Sequence[Item], waiting: Sequence[str]) -> dict[str, Any]:
        if self.residency.states.get(service, ResidencyState.COLD) is ResidencyState.COLD:
            self.residency.load(service, weights_of(service))
        with self.residency.use(service, waiting=waiting) as content:
            self.residency.prefetch(waiting)
            entries = [{"score": zlib.crc32(content, zlib.crc32(item["text"].encode()))} for item in items]
        figures = dict.fromkeys(
            ("texts", "tokens", "padding", "forward_s", "forward_cpu_s", "model_cpu_s", "model_s"), 0
        )
        return {"entries": entries, "restore_s": None} | figures

    async def end(self) -> None:
        self.residency.close()


async def scored_by_failing_workers(seed: int) -> None:
    rng, reports = random.Random(seed), asyncio.Queue[ScoreReport]()
    workers = [FailingWorker(seed), FailingWorker(seed + 1)]
    turns = BatchScheduler(batch_tokens=40, max_inflight_tokens=400, model_swap_delay_s=0.002)
    scoring = BatchDispatcher(
        workers, reports.put_nowait, on_failure=pytest.fail, scheduler=turns, metrics=GpuMetrics(Metrics())
    )  # type: ignore[arg-type]
    scoring.start()
    jobs: dict[Fence, ScoreJob] = {}
    for _ in range(JOBS):
        items = [{"text": str(rng.random())} for _ in range(rng.choice((1, 1, 2, 30)))]
        job = ScoreJob(Fence(uuid4(), 1), rng.choice(list(SERVICES)), 60.0, items, [10] * len(items))
        jobs[job.fence] = job
        scoring.add(job)
        await asyncio.sleep(0)
    ends = [await asyncio.wait_for(reports.get(), 30) for _ in jobs]
    await scoring.stop()
    assert {report.fence for report in ends} == jobs.keys()
    assert reports.empty()
    for report in ends:
        job = jobs[report.fence]
        if report.outcome == "ok":
            right = [score_of(job.service, item["text"]) for item in job.items]
            assert [entry["score"] for entry in json.loads(report.scores or "")] == right
        else:
            assert (report.outcome, report.reason) in {("infra_error", "worker_died"), ("infra_error", "copy_failed")}
    assert sum(report.outcome == "ok" for report in ends) > JOBS // 4
    assert all(worker.residency.used == 0 for worker in workers)


async def test_failing_devices_answer_each_request_once_by_its_service() -> None:
    for seed in range(3):
        await scored_by_failing_workers(seed)


@pytest.mark.slow
async def test_many_failures_still_answer_each_request_once() -> None:
    for seed in range(100, 160):
        await scored_by_failing_workers(seed)

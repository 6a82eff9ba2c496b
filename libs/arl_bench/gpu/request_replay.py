"""Replay of timed requests through the manager's loop, without the rest of the system."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from arl_core.domain.model import Fence
from arl_gpu.dispatch.device_slot import DeviceWorker
from arl_gpu.dispatch.dispatcher import BatchDispatcher
from arl_gpu.dispatch.metrics import GpuMetrics
from arl_gpu.models.interface import Item
from arl_gpu.queue.batch_scheduler import BatchScheduler
from arl_gpu.queue.score_jobs import DEFAULT_MAX_TOKENS, ScoreJob, ScoreReport, item_cost
from arl_gpu.worker.client import WorkerClient
from arl_kit.metrics import Metrics

__all__ = ["CountingWorker", "RequestReplayer", "TimedRequest", "TimedResult"]

LIMIT_S = 600.0


class TimedRequest(NamedTuple):
    """A request to a service, `at` seconds after the start."""

    at: float
    service: str
    items: Sequence[Item]


class TimedResult(NamedTuple):
    """The seconds from a request's time to its scores, and the scores; None for an item without a score."""

    wait_s: float
    scores: list[float | None]
    is_ok: bool


class CountingWorker(WorkerClient):
    """A worker that counts restores, evictions and prefetches."""

    restored_s: list[float]
    evicted: int
    prefetched: int

    def reset_counters(self) -> None:
        self.restored_s, self.evicted, self.prefetched = [], 0, 0

    async def score(self, service: str, items: Sequence[Item], waiting: Sequence[str] = ()) -> dict[str, Any]:
        answer = await super().score(service, items, waiting)
        self.restored_s += answer["moves"]["restored_s"]
        self.evicted += answer["moves"]["evicted"]
        self.prefetched += answer["moves"]["prefetched"]
        return answer


class RequestReplayer:
    """A replayer with one worker for all services, or one for each service."""

    def __init__(
        self,
        worker_of: Mapping[str, DeviceWorker],
        make_scheduler: Callable[[], BatchScheduler],
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> None:
        """Create a replayer. `max_tokens`: tokens of an item that the services read."""
        self._max_tokens = max_tokens
        self._pending_reports: dict[Fence, asyncio.Future[tuple[float, ScoreReport]]] = {}
        made: dict[int, BatchDispatcher] = {}
        for worker in worker_of.values():
            if id(worker) not in made:
                made[id(worker)] = self._create_dispatcher(worker, make_scheduler())
        self._dispatcher_of = {service: made[id(worker)] for service, worker in worker_of.items()}
        self._dispatchers = [*made.values()]

    async def run(self, requests: Sequence[TimedRequest]) -> list[TimedResult]:
        """Run the requests and return their results in order."""
        for scoring in self._dispatchers:
            scoring.start()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        ends = [await self._submit(begun, request) for request in requests]
        found = []
        for request, (ended, report) in zip(requests, await asyncio.gather(*ends), strict=True):
            entries: list[dict[str, Any]] = json.loads(report.scores) if report.scores is not None else []
            scores = [entry.get("score") for entry in entries] or [None] * len(request.items)
            found.append(TimedResult(ended - begun - request.at, scores, report.outcome == "ok"))
        for scoring in self._dispatchers:
            await scoring.stop()
        return found

    async def _submit(self, started_at: float, request: TimedRequest) -> "asyncio.Future[tuple[float, ScoreReport]]":
        loop = asyncio.get_running_loop()
        await asyncio.sleep(started_at + request.at - loop.time())
        costs = [item_cost(item, self._max_tokens) for item in request.items]
        job = ScoreJob(Fence(uuid4(), 1), request.service, LIMIT_S, list(request.items), costs)
        self._pending_reports[job.fence] = loop.create_future()
        self._dispatcher_of[request.service].add(job)
        return self._pending_reports[job.fence]

    def _create_dispatcher(self, worker: DeviceWorker, scheduler: BatchScheduler) -> BatchDispatcher:
        return BatchDispatcher(
            [worker], self._on_report, on_failure=sys.exit, scheduler=scheduler, metrics=GpuMetrics(Metrics())
        )

    def _on_report(self, report: ScoreReport) -> None:
        self._pending_reports[report.fence].set_result((asyncio.get_running_loop().time(), report))

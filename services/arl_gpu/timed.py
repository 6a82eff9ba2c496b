"""Jobs at their times through the manager's own loop, without the system around it: what benchmarks replay."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from arl_core.fence import Fence
from arl_gpu.jobs import MAX_TOKENS, Job, Report, cost_of_item
from arl_gpu.kinds.model import Item
from arl_gpu.metrics import GpuMetrics
from arl_gpu.scoring import Scoring
from arl_gpu.seats import Scorer
from arl_gpu.turns import Turns
from arl_gpu.worker_client import Worker
from arl_kit.metrics import Metrics

__all__ = ["Asked", "Ended", "Timed", "Watched"]

LIMIT_S = 600.0


class Asked(NamedTuple):
    """What is asked of a service, so many seconds after the begin."""

    at: float
    service: str
    items: Sequence[Item]


class Ended(NamedTuple):
    """From its time until its scores were there; without a score where there was none."""

    wait_s: float
    scores: list[float | None]
    is_ok: bool


class Watched(Worker):
    """Adds up what came and went."""

    restored_s: list[float]
    evicted: int
    prefetched: int

    def forget_moves(self) -> None:
        self.restored_s, self.evicted, self.prefetched = [], 0, 0

    async def score(self, service: str, items: Sequence[Item], waiting: Sequence[str] = ()) -> dict[str, Any]:
        answer = await super().score(service, items, waiting)
        self.restored_s += answer["moves"]["restored_s"]
        self.evicted += answer["moves"]["evicted"]
        self.prefetched += answer["moves"]["prefetched"]
        return answer


class Timed:
    """One worker, or one for each service."""

    def __init__(
        self, worker_of: Mapping[str, Scorer], turns: Callable[[], Turns], *, max_tokens: int = MAX_TOKENS
    ) -> None:
        """`max_tokens`: that the services read of an item."""
        self._max_tokens = max_tokens
        self._ends: dict[Fence, asyncio.Future[tuple[float, Report]]] = {}
        made: dict[int, Scoring] = {}
        for worker in worker_of.values():
            if id(worker) not in made:
                made[id(worker)] = self._scoring(worker, turns())
        self._scoring_of = {service: made[id(worker)] for service, worker in worker_of.items()}
        self._all = [*made.values()]

    async def run(self, requests: Sequence[Asked]) -> list[Ended]:
        """In their order."""
        for scoring in self._all:
            scoring.start()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        ends = [await self._sent(begun, request) for request in requests]
        found = []
        for request, (ended, report) in zip(requests, await asyncio.gather(*ends), strict=True):
            entries: list[dict[str, Any]] = json.loads(report.scores) if report.scores is not None else []
            scores = [entry.get("score") for entry in entries] or [None] * len(request.items)
            found.append(Ended(ended - begun - request.at, scores, report.outcome == "ok"))
        for scoring in self._all:
            await scoring.stop()
        return found

    async def _sent(self, begun: float, request: Asked) -> "asyncio.Future[tuple[float, Report]]":
        loop = asyncio.get_running_loop()
        await asyncio.sleep(begun + request.at - loop.time())
        costs = [cost_of_item(item, self._max_tokens) for item in request.items]
        job = Job(Fence(uuid4(), 1), request.service, LIMIT_S, list(request.items), costs)
        self._ends[job.fence] = loop.create_future()
        self._scoring_of[request.service].add(job)
        return self._ends[job.fence]

    def _scoring(self, worker: Scorer, turns: Turns) -> Scoring:
        return Scoring([worker], self._ended, failed=sys.exit, turns=turns, metrics=GpuMetrics(Metrics()))

    def _ended(self, report: Report) -> None:
        self._ends[report.fence].set_result((asyncio.get_running_loop().time(), report))

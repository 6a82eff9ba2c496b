"""Requests at their times through the manager's own loop and a worker, without the system around them.

`python -m arl_gpu.replay`: a `Replay` as JSON on standard input, a `Replayed` on standard output. A benchmark compares
ways to choose who leaves a device with it: the same requests, the same model, only the policy differs.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

from arl_core.eviction import Eviction
from arl_core.fence import Fence
from arl_gpu.jobs import Job, Report, cost_of
from arl_gpu.kinds.model import Item
from arl_gpu.metrics import GpuMetrics
from arl_gpu.scoring import Scoring
from arl_gpu.services import available
from arl_gpu.turns import Turns
from arl_gpu.worker import Config
from arl_gpu.worker_client import Worker
from arl_kit.metrics import Metrics

__all__ = ["Replay", "Replayed", "replay"]

LIMIT_S = 600.0
BEGUN_TOKENS = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """`requests`: when, of which service, and its items. Each of `services` is a separate copy of `model`."""

    model: str
    services: Sequence[str]
    requests: Sequence[tuple[float, str, Sequence[tuple[str, str]]]]
    device_mib: int
    copy_mib_per_s: float | None
    eviction: str
    swap_wait_s: float
    batch_tokens: int
    threads: int = 1


@dataclass(slots=True)
class Replayed:
    """Of each request, in order: from its time until its scores were there, and those."""

    wait_s: list[float]
    scores: list[list[float | None]]
    lost: int = 0
    restored_s: list[float] = field(default_factory=list)
    evicted: int = 0
    prefetched: int = 0


class _Watched(Worker):
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


class _Run:
    def __init__(self, asked: Replay, worker: _Watched) -> None:
        self._asked, self._worker = asked, worker
        self._ends: dict[Fence, asyncio.Future[tuple[float, Report]]] = {}
        turns = Turns(batch_tokens=asked.batch_tokens, begun_tokens=BEGUN_TOKENS, swap_wait_s=asked.swap_wait_s)
        self._scoring = Scoring([worker], self._ended, failed=sys.exit, turns=turns, metrics=GpuMetrics(Metrics()))

    async def run(self) -> Replayed:
        """Every service is in host memory before the first request."""
        for name in self._asked.services:
            await self._worker.restore(name)
        self._worker.forget_moves()
        self._scoring.start()
        begun = asyncio.get_running_loop().time()
        ends = [await self._sent(begun + at, service, pairs) for at, service, pairs in self._asked.requests]
        found = Replayed([], [])
        for (at, _, pairs), (ended, report) in zip(self._asked.requests, await asyncio.gather(*ends), strict=True):
            entries = json.loads(report.scores) if report.scores is not None else [{}] * len(pairs)
            found.wait_s.append(ended - begun - at)
            found.scores.append([entry.get("score") for entry in entries])
            found.lost += report.outcome != "ok"
        await self._scoring.stop()
        worker = self._worker
        found.restored_s, found.evicted, found.prefetched = worker.restored_s, worker.evicted, worker.prefetched
        return found

    async def _sent(
        self, at: float, service: str, pairs: Sequence[tuple[str, str]]
    ) -> "asyncio.Future[tuple[float, Report]]":
        loop = asyncio.get_running_loop()
        await asyncio.sleep(at - loop.time())
        items: list[Item] = [{"text": text, "reference": reference} for text, reference in pairs]
        costs = [cost_of(text) + cost_of(reference) for text, reference in pairs]
        job = Job(Fence(uuid4(), 1), service, LIMIT_S, items, costs)
        self._ends[job.fence] = loop.create_future()
        self._scoring.add(job)
        return self._ends[job.fence]

    def _ended(self, report: Report) -> None:
        self._ends[report.fence].set_result((asyncio.get_running_loop().time(), report))


async def replay(asked: Replay) -> Replayed:
    """Raises `LookupError` where the model is not installed."""
    files = next(iter(available([asked.model])), None)
    if files is None:
        raise LookupError(f"{asked.model} is not installed")
    config = Config(
        services={name: files.spec | {"name": name} for name in asked.services},
        device_mib=asked.device_mib,
        copy_mib_per_s=asked.copy_mib_per_s,
        eviction=Eviction(asked.eviction),
    )
    return await _Run(asked, _Watched(config, threads=asked.threads, limit_s=LIMIT_S)).run()


if __name__ == "__main__":
    json.dump(asdict(asyncio.run(replay(Replay(**json.load(sys.stdin))))), sys.stdout)

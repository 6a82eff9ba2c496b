"""Batches across actions: the next one is put together when the device is free, of whatever waits by then."""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from arl_core.fence import Fence
from arl_core.residency import Residence
from arl_gpu.jobs import Job, Report
from arl_gpu.kinds.model import Item
from arl_gpu.metrics import GpuMetrics
from arl_gpu.turns import Batch, Turns
from arl_gpu.worker_client import WorkerDied

__all__ = ["Scorer", "Scoring"]

DRAIN_S = 10.0
DEATHS_APART = 2
"""Of workers, while the actions of one batch are scored apart; then it is not the actions that they die of."""

log = logging.getLogger(__name__)


class Scorer(Protocol):
    """Whatever owns the device. One order at a time."""

    async def score(self, service: str, items: Sequence[Item]) -> dict[str, Any]:
        """What `arl_gpu.worker` answers. Raises `WorkerDied`; whoever comes next may find another."""
        ...

    async def end(self) -> int | None: ...


class Scoring:
    """Every job ends in exactly one report, unless this process ends before.

    `failed` is called with the reason where no job would end any more.
    """

    def __init__(
        self,
        worker: Scorer,
        report: Callable[[Report], None],
        *,
        failed: Callable[[str], None],
        turns: Turns,
        metrics: GpuMetrics,
    ) -> None:
        self._worker, self._report, self._failed = worker, report, failed
        self._jobs = turns
        self._metrics = metrics
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._deaths = 0
        self.states: Mapping[str, Residence] = {}
        self.health = "ok"
        """Or what went wrong with the last batch."""
        self.batches: Counter[str] = Counter()
        self.scored: Counter[str] = Counter()
        """Items, by service."""

    @property
    def jobs(self) -> int:
        return len(self._jobs)

    def start(self) -> None:
        self._task = asyncio.create_task(self._forever(), name="scoring")
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Give what is here some time to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._idle.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for job in self._jobs:
            _stop_timer(job)
        await self._worker.end()

    def add(self, job: Job) -> None:
        self._jobs.add(job)
        self._idle.clear()
        self._work.set()

    def cancel(self, fences: Iterable[Fence]) -> None:
        """They end now; what the device still computes of them is for nobody."""
        for fence in fences:
            if (job := self._jobs.get(fence)) is not None:
                self._end(job, "cancelled")

    def _time_out(self, job: Job) -> None:
        """However long a forward takes, and however many are before it, is no fault of the text that is scored."""
        message = f"{len(job.entries)} of {len(job.items)} items were scored within {job.timeout_s:g} s"
        self._end(job, "infra_error", reason="score_timeout", message=message)

    async def _forever(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._jobs:
                batch = self._jobs.next_batch()
                self._begin(batch)
                try:
                    await self._run(batch)
                except Exception as error:
                    log.exception("a batch was not scored")
                    self._fail(batch, "forward_failed", f"{type(error).__name__}: {error}")

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failed(f"scoring ended: {task.exception()!r}")

    def _begin(self, batch: Batch) -> None:
        """Time that an action waited for its first batch is not its own."""
        loop = asyncio.get_running_loop()
        for job, _ in batch:
            if not job.has_begun:
                job.begun = time.monotonic()
                job.timer = loop.call_later(job.timeout_s, self._time_out, job)

    async def _run(self, batch: Batch) -> None:
        service = batch[0][0].service
        items = [item for job, count in batch for item in job.next_items(count)]
        answer = await self._answer(service, items)
        if "error" not in answer:
            self._metrics.observe_batch(answer, actions=len(batch), items=len(items))
            self.batches[service] += 1
            self.scored[service] += len(items)
            self._take_in(batch, answer["entries"], answer["forward_cpu_s"] / len(items))
        elif len(batch) == 1:
            self._fail(batch, answer["error"], answer["message"])
        else:
            await self._run_apart(batch)

    async def _answer(self, service: str, items: Sequence[Item]) -> Mapping[str, Any]:
        """The worker's, or what it died of."""
        try:
            answer = await self._worker.score(service, items)
        except WorkerDied as error:
            log.warning("the worker died: %s", error)
            self._deaths += 1
            self._metrics.worker_deaths.inc()
            self._metrics.show_residency(dict.fromkeys(self.states, Residence.COLD), used_bytes=0)
            self.states, self.health = {}, f"the worker died: {error}"
            return {"error": "worker_died", "message": str(error)}
        self._learn(answer)
        return answer

    async def _run_apart(self, batch: Batch) -> None:
        """What is wrong with one action's items must not be the end of the others."""
        before = self._deaths
        for at, (job, count) in enumerate(batch):
            if self._deaths - before >= DEATHS_APART:
                self._fail(batch[at:], "worker_died", "workers die of whatever they are given")
                return
            if job.fence in self._jobs:
                await self._run([(job, count)])

    def _learn(self, answer: Mapping[str, Any]) -> None:
        self.states = {name: Residence(state) for name, state in answer["states"].items()}
        self.health = f"{answer['error']}: {answer['message']}" if "error" in answer else "ok"
        self._metrics.show_residency(self.states, used_bytes=answer["used_bytes"])

    def _take_in(self, batch: Batch, entries: Sequence[dict[str, Any]], cpu_s: float) -> None:
        start = 0
        for job, count in batch:
            job.entries += entries[start : start + count]
            job.cpu_s += count * cpu_s
            start += count
            if len(job.entries) == len(job.items):
                self._finish(job)

    def _finish(self, job: Job) -> None:
        scores = json.dumps(job.entries)
        if any("score" in entry for entry in job.entries):
            self._end(job, "ok", scores=scores)
        else:
            message = job.entries[0]["error"]["message"]
            self._end(job, "user_error", reason="no_item_scored", message=message, scores=scores)

    def _fail(self, batch: Batch, reason: str, message: str) -> None:
        log.warning("a batch of %d actions failed: %s: %s", len(batch), reason, message)
        for job, _ in batch:
            self._end(job, "infra_error", reason=reason, message=message)

    def _end(self, job: Job, outcome: Any, **found: Any) -> None:
        """Once: whoever comes later finds that it is gone."""
        if self._jobs.remove(job.fence) is None:
            return
        _stop_timer(job)
        if not self._jobs:
            self._idle.set()
        now = time.monotonic()
        run_us, cpu_us = int((now - (job.begun or now)) * 1e6), int(job.cpu_s * 1e6)
        self._report(Report(fence=job.fence, outcome=outcome, run_us=run_us, cpu_us=cpu_us, **found))


def _stop_timer(job: Job) -> None:
    if job.timer is not None:
        job.timer.cancel()

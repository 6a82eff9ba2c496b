"""The loop that forms batches, and the cases in which it cannot continue."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest

from arl_core.domain.model import Fence
from arl_gpu.dispatch.dispatcher import BatchDispatcher
from arl_gpu.dispatch.metrics import GpuMetrics
from arl_gpu.engines.engine_dispatcher import EngineDispatcher
from arl_gpu.queue.batch_scheduler import BatchScheduler
from arl_gpu.queue.score_jobs import ScoreJob, ScoreReport
from arl_gpu.worker.client import WorkerDied
from arl_kit.metrics import Metrics
from support.gpu import NOTHING, ScriptedWorker, scored


async def test_failed_dispatcher_reports_error_and_can_be_stopped() -> None:
    failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    reports: list[ScoreReport] = []
    turns = BatchScheduler(batch_tokens=16, max_inflight_tokens=16)
    metrics = GpuMetrics(Metrics())
    scoring = BatchDispatcher(
        [ScriptedWorker()], reports.append, on_failure=failed.set_result, scheduler=turns, metrics=metrics
    )  # type: ignore[arg-type]
    scoring.start()
    broken = ScoreJob(
        fence=Fence(uuid4(), 1), service="minilm", timeout_s=1.0, items=[{"text": "a", "reference": "b"}], costs=[]
    )
    scoring.add(broken)
    assert "the scoring loop ended unexpectedly: " in await asyncio.wait_for(failed, 5)
    scoring.cancel([broken.fence])
    await scoring.stop()
    assert [report.outcome for report in reports] == ["cancelled"]


async def test_many_items_are_spread_over_devices_with_scores_in_order() -> None:
    reports: asyncio.Queue[ScoreReport] = asyncio.Queue()
    workers = [ScriptedWorker(), ScriptedWorker()]
    turns, metrics = BatchScheduler(batch_tokens=10, max_inflight_tokens=1000), GpuMetrics(Metrics())
    scoring = BatchDispatcher(workers, reports.put_nowait, on_failure=pytest.fail, scheduler=turns, metrics=metrics)  # type: ignore[arg-type]
    scoring.start()
    items = [{"text": "a" * length, "reference": "b"} for length in range(1, 9)]
    scoring.add(ScoreJob(fence=Fence(uuid4(), 1), service="minilm", timeout_s=60.0, items=items, costs=[10] * 8))
    _, late = await workers[0].next_order()
    others = [await workers[1].answer_next() for _ in range(7)]
    assert [item["text"] for [item] in others] == [item["text"] for item in items[1:]]
    late.set_result(scored(items[:1]))
    report = await asyncio.wait_for(reports.get(), 5)
    assert [entry["score"] for entry in json.loads(report.scores or "")] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    await scoring.stop()


async def test_worker_death_fails_only_its_own_batch() -> None:
    reports: asyncio.Queue[ScoreReport] = asyncio.Queue()
    workers = [ScriptedWorker(), ScriptedWorker()]
    turns, metrics = BatchScheduler(batch_tokens=10, max_inflight_tokens=1000), GpuMetrics(Metrics())
    scoring = BatchDispatcher(workers, reports.put_nowait, on_failure=pytest.fail, scheduler=turns, metrics=metrics)  # type: ignore[arg-type]
    scoring.start()
    jobs = [
        ScoreJob(fence=Fence(uuid4(), 1), service=name, timeout_s=60.0, items=[{"text": name}], costs=[10])
        for name in "ab"
    ]
    for job in jobs:
        scoring.add(job)
    (first, dies), (second, lives) = await workers[0].next_order(), await workers[1].next_order()
    dies.set_exception(WorkerDied("killed by the test"))
    lives.set_result(scored(second))
    found = [await asyncio.wait_for(reports.get(), 5) for _ in jobs]
    ends = {report.fence: report for report in found}
    assert (ends[jobs[0].fence].reason, ends[jobs[1].fence].outcome) == ("worker_died", "ok")
    assert [item["text"] for item in [*first, *second]] == ["a", "b"]
    await scoring.stop()


async def in_batches(*answers: dict[str, Any]) -> list[int]:
    """Return the batch sizes of an action of 80 items; the first batches get `answers`."""
    reports: asyncio.Queue[ScoreReport] = asyncio.Queue()
    worker, found = ScriptedWorker(), []
    turns, metrics = BatchScheduler(batch_tokens=10, max_inflight_tokens=1000, batch_s=0.1), GpuMetrics(Metrics())
    scoring = BatchDispatcher([worker], reports.put_nowait, on_failure=pytest.fail, scheduler=turns, metrics=metrics)  # type: ignore[arg-type]
    scoring.start()
    items = [{"text": "a", "reference": "b"}] * 80
    scoring.add(ScoreJob(fence=Fence(uuid4(), 1), service="minilm", timeout_s=60.0, items=items, costs=[1] * 80))
    while sum(found) < len(items):
        given, answer = await worker.next_order()
        said = answers[len(found)] if len(found) < len(answers) else {}
        found.append(len(given))
        answer.set_result(scored(given) | said)
    assert (await asyncio.wait_for(reports.get(), 5)).outcome == "ok"
    await scoring.stop()
    return found


async def test_fast_service_gets_larger_batches() -> None:
    assert await in_batches() == [10, 20, 40, 10]


async def test_batch_size_depends_on_compute_time_not_waiting_time() -> None:
    assert await in_batches({"restore_s": 3600.0}) == [10, 20, 40, 10]
    assert await in_batches({"model_s": 3600.0}) == [10] * 2 + [20, 40]


async def test_service_without_token_counts_keeps_batch_size() -> None:
    assert await in_batches(*[{"tokens": 0}] * 8) == [10] * 8


async def test_batch_growth_restarts_after_model_left_memory() -> None:
    assert await in_batches({}, {"states": {}}) == [10, 20, 20, 30]


async def test_batch_size_restarts_after_failed_batch() -> None:
    reports: asyncio.Queue[ScoreReport] = asyncio.Queue()
    worker = ScriptedWorker()
    turns, metrics = BatchScheduler(batch_tokens=10, max_inflight_tokens=1000, batch_s=0.1), GpuMetrics(Metrics())
    scoring = BatchDispatcher([worker], reports.put_nowait, on_failure=pytest.fail, scheduler=turns, metrics=metrics)  # type: ignore[arg-type]
    scoring.start()
    items = [{"text": "a", "reference": "b"}] * 30
    for _ in range(2):
        scoring.add(ScoreJob(fence=Fence(uuid4(), 1), service="minilm", timeout_s=60.0, items=items, costs=[1] * 30))
    sizes = [len(await worker.answer_next())]
    given, answer = await worker.next_order()
    answer.set_exception(WorkerDied("killed by the test"))
    sizes.append(len(given))
    for _ in range(2):
        given, answer = await worker.next_order()
        answer.set_exception(WorkerDied("killed by the test"))
    assert {(await asyncio.wait_for(reports.get(), 5)).reason for _ in range(2)} == {"worker_died"}
    scoring.add(ScoreJob(fence=Fence(uuid4(), 1), service="minilm", timeout_s=60.0, items=items[:15], costs=[1] * 15))
    assert (sizes, len(await worker.answer_next()), len(await worker.answer_next())) == ([10, 20], 10, 5)
    await scoring.stop()


NO_ROOM = NOTHING | {"error": "no_room", "message": "minilm needs more"}


async def test_job_without_room_moves_to_other_devices_before_failing() -> None:
    reports: asyncio.Queue[ScoreReport] = asyncio.Queue()
    small, large = ScriptedWorker(), ScriptedWorker()
    turns, metrics = BatchScheduler(batch_tokens=10, max_inflight_tokens=1000), GpuMetrics(Metrics())
    scoring = BatchDispatcher(
        [small, large], reports.put_nowait, on_failure=pytest.fail, scheduler=turns, metrics=metrics
    )  # type: ignore[arg-type]
    scoring.start()
    scoring.add(a_job("first"))
    _, refused = await small.next_order()
    refused.set_result(NO_ROOM)
    assert [item["text"] for item in await large.answer_next()] == ["first"]
    assert (await reports.get()).outcome == "ok"
    scoring.add(a_job("second"))
    # Without asking the small one again.
    assert [item["text"] for item in await large.answer_next()] == ["second"]
    assert (await reports.get()).outcome == "ok"
    scoring.add(a_job("third"))
    _, refused = await large.next_order()
    refused.set_result(NO_ROOM)
    report = await asyncio.wait_for(reports.get(), 5)
    assert (report.outcome, report.reason) == ("infra_error", "no_room")
    await scoring.stop()


async def test_job_that_fits_on_no_device_fails_without_looping() -> None:
    reports: asyncio.Queue[ScoreReport] = asyncio.Queue()
    workers = [ScriptedWorker(), ScriptedWorker()]
    turns, metrics = BatchScheduler(batch_tokens=10, max_inflight_tokens=1000), GpuMetrics(Metrics())
    scoring = BatchDispatcher(workers, reports.put_nowait, on_failure=pytest.fail, scheduler=turns, metrics=metrics)  # type: ignore[arg-type]
    scoring.start()
    scoring.add(a_job("nowhere"))
    for worker in workers:
        _, refused = await worker.next_order()
        scoring.forget("minilm")  # nobody remembers what was refused, as after a while
        refused.set_result(NO_ROOM)
    assert (await asyncio.wait_for(reports.get(), 5)).reason == "no_room"
    await scoring.stop()


class EngineInUse(EngineDispatcher):
    """An engine that is busy on every device until it is released."""

    released = False

    def is_busy(self, number: int) -> bool:
        return not self.released


async def test_timeout_pauses_while_job_waits_for_engine_release() -> None:
    reports: asyncio.Queue[ScoreReport] = asyncio.Queue()
    worker = ScriptedWorker()
    engine = EngineInUse({}, [worker], lambda: ())  # type: ignore[list-item]
    scoring = BatchDispatcher(
        [worker],  # type: ignore[list-item]
        reports.put_nowait,
        on_failure=pytest.fail,
        scheduler=BatchScheduler(batch_tokens=10, max_inflight_tokens=1000),
        metrics=GpuMetrics(Metrics()),
        engine_dispatcher=engine,
    )
    scoring.start()
    waits = a_job("waits")
    scoring.add(waits)
    _, refused = await worker.next_order()
    assert waits.run_started_at is not None
    refused.set_result(NO_ROOM)
    scoring.add(a_job("of another", service="relevance"))
    _, refused = await worker.next_order()  # so the first one is put off by now
    assert (waits.run_started_at, waits.timer is not None and waits.timer.cancelled()) == (None, True)
    refused.set_result(NO_ROOM)
    engine.released = True
    scoring.wake_devices()
    assert {(await worker.answer_next())[0]["text"] for _ in range(2)} == {"waits", "of another"}
    assert {(await reports.get()).outcome for _ in range(2)} == {"ok"}
    await scoring.stop()


async def test_failure_affects_only_health_of_its_service() -> None:
    reports: asyncio.Queue[ScoreReport] = asyncio.Queue()
    worker = ScriptedWorker()
    turns, metrics = BatchScheduler(batch_tokens=10, max_inflight_tokens=1000), GpuMetrics(Metrics())
    scoring = BatchDispatcher([worker], reports.put_nowait, on_failure=pytest.fail, scheduler=turns, metrics=metrics)  # type: ignore[arg-type]
    scoring.start()
    scoring.add(a_job("a", service="broken"))
    _, broken = await worker.next_order()
    broken.set_result(NOTHING | {"error": "forward_failed", "message": "no module"})
    await reports.get()
    scoring.add(a_job("b"))
    await worker.answer_next()
    await reports.get()
    assert {name: scoring.health(name) for name in ("minilm", "broken")} == {"minilm": "ok", "broken": "forward_failed"}
    scoring.forget("broken")
    assert (scoring.health("broken"), scoring.items_scored["minilm"]) == ("ok", 1)
    await scoring.stop()


def a_job(text: str, *, service: str = "minilm") -> ScoreJob:
    return ScoreJob(fence=Fence(uuid4(), 1), service=service, timeout_s=60.0, items=[{"text": text}], costs=[1])

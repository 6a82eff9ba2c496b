"""Test the engine dispatcher with two engines on one device: faults never lose or corrupt an answer."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from arl_core.domain.model import Fence
from arl_gpu.dispatch.dispatcher import BatchDispatcher
from arl_gpu.dispatch.metrics import GpuMetrics
from arl_gpu.engines.chat_completions import ChatCompletionClient, EngineRequestFailed
from arl_gpu.engines.engine_dispatcher import EngineDispatcher
from arl_gpu.models.interface import Entry
from arl_gpu.queue.batch_scheduler import BatchPart, BatchScheduler
from arl_gpu.queue.score_jobs import ScoreJob, ScoreReport
from arl_gpu.settings import EngineSettings
from arl_gpu.worker.client import WorkerClient
from arl_gpu.worker.engine_controller import EngineSpec
from arl_gpu.worker.process import MIB, WorkerConfig
from arl_kit.metrics import Metrics
from support.conditions import eventually
from support.desk import files_of, judge_texts, judging_by, said
from support.engine import KEY, RunningEngine, running_engine, verdict_of

HARMLESS = {"infra_error": {"engine_failed", "wake_failed", "no_room", "score_timeout"}}


@dataclass
class Judged:
    """One worker's device with its dispatchers and engines, without a manager."""

    engines: list[RunningEngine]
    worker: WorkerClient
    scoring: BatchDispatcher
    judging: EngineDispatcher
    reports: "asyncio.Queue[ScoreReport]"
    jobs: dict[Fence, ScoreJob] = field(default_factory=dict)

    def add(self, service: str, *texts: str, timeout_s: float = 60.0) -> ScoreJob:
        job = ScoreJob(Fence(uuid4(), 1), service, timeout_s, [{"text": text} for text in texts], [10] * len(texts))
        self.jobs[job.fence] = job
        self.scoring.add(job)
        return job

    async def ends(self) -> dict[Fence, ScoreReport]:
        """Return exactly one report per job."""
        found = [await asyncio.wait_for(self.reports.get(), 60) for _ in self.jobs]
        assert {report.fence for report in found} == self.jobs.keys()
        assert self.reports.empty()
        return {report.fence: report for report in found}

    def is_right(self, report: ScoreReport) -> bool:
        """Return True if at least one item was scored and every scored item has the right score."""
        texts = [item["text"] for item in self.jobs[report.fence].items]
        right = [1.0 if verdict_of(text) == "good" else 0.0 for text in texts]
        entries = json.loads(report.scores or "[]")
        pairs = [pair for pair in zip(entries, right, strict=True) if not is_engine_s(pair[0])]
        return bool(pairs) and all(entry["score"] == score for entry, score in pairs)


def is_engine_s(entry: Entry) -> bool:
    return bool(entry.get("error", {}).get("code") == "engine_failed")


async def test_job_cancelled_before_its_first_request_releases_its_engine() -> None:
    async with judging_by(said) as (judging, desk):
        loop = asyncio.get_running_loop()
        desk.sending = lambda job: loop.call_soon(lambda: [task.cancel() for task in job.tasks]) and None
        judge_texts(judging, "verdict: good")
        await asyncio.wait_for(desk.released.wait(), 5)
        assert not judging.is_busy(0)


async def test_unexpected_acquire_error_fails_queued_jobs_but_not_later_ones() -> None:
    async with judging_by(said) as (judging, desk):
        desk.holding = lambda: {}["surprise"]
        judge_texts(judging, "verdict: good", "verdict: bad")
        await eventually(lambda: desk.broken == ["order_failed"] * 2)
        desk.holding = lambda: None
        judge_texts(judging, "verdict: good")
        await eventually(lambda: 0 in desk.entries)
        assert desk.entries[0]["score"] == 1.0


class Surprises:
    """A callback that raises an unexpected error once, at the next matching call while it is `armed`."""

    def __init__(self, minds: Callable[..., bool] = lambda *_: True) -> None:
        self._minds, self.armed = minds, True

    def __call__(self, *given: Any) -> None:
        if self.armed and self._minds(*given):
            self.armed = False
            raise KeyError("surprise")


async def test_engine_is_released_after_an_unreadable_response() -> None:
    async with judging_by(said) as (judging, desk):
        desk.learning = Surprises(lambda answer: "held" in answer)
        judge_texts(judging, "verdict: good")
        await asyncio.wait_for(desk.released.wait(), 5)
        assert (desk.broken, desk.entries, judging.is_busy(0)) == (["order_failed"], {}, False)


@pytest.mark.parametrize("is_needed", [False, True], ids=["nobody needs it", "it is needed again at once"])
async def test_failed_engine_release_is_retried_or_replaced_by_an_acquire(is_needed: bool) -> None:
    async with judging_by(said, look_s=0.02) as (judging, desk):
        told, surprises = list[str](), Surprises()

        def release() -> None:
            told.append("release")
            if surprises.armed and is_needed:
                judge_texts(judging, "verdict: good")
            surprises()

        desk.releasing, desk.holding = release, lambda: told.append("hold")
        judge_texts(judging, "verdict: good")
        await asyncio.wait_for(desk.released.wait(), 5)
        again = ["hold", "release"] if is_needed else ["release"]
        assert (told, judging.is_busy(0)) == (["hold", "release", *again], False)


async def test_unexpected_item_error_fails_its_action_and_releases_the_engine() -> None:
    async with judging_by(said) as (judging, desk):
        job = ScoreJob(Fence(uuid4(), 1), "j", 60.0, [{"text": None}], [1])
        judging.enqueue(files_of("j", "e"), [BatchPart(job, 0, 1)])
        await asyncio.wait_for(desk.released.wait(), 5)
        assert desk.broken == ["order_failed"]


async def test_engine_health_check_continues_after_an_unexpected_error() -> None:
    async with judging_by(said, look_s=0.02) as (_, desk):
        desk.learning = Surprises()
        await eventually(lambda: len(desk.looks) > 1)


@pytest.mark.parametrize("judges", [["j"], []], ids=["nobody needs it", "no judge is served by it"])
async def test_engine_unknown_to_its_worker_is_checked(judges: Sequence[str]) -> None:
    async with judging_by(said, judges=judges) as (_, desk):
        await asyncio.wait_for(desk.looked.wait(), 5)


@pytest.mark.parametrize("dies", [True, False], ids=["its worker dies", "it stays"])
async def test_engine_checks_back_off_after_worker_deaths_or_without_progress(dies: bool) -> None:
    async with judging_by(said, look_s=0.02) as (judging, desk):
        desk.dies = dies
        await eventually(lambda: len(desk.looks) == 4)
        gaps = [later - earlier for earlier, later in pairwise(desk.looks)]
        assert all(gap >= least for gap, least in zip(gaps, (0.02, 0.04, 0.08), strict=True))
        wanted = "worker_died: it could not be started" if dies else "ok"
        assert judging.health(files_of("j", "e")) == wanted
        desk.dies = False
        judging.update_device(0, {"unheard": [], "engines": {"e": "host"}})
        await eventually(lambda: judging.health(files_of("j", "e")) == "ok")


async def test_oversized_engine_is_unhealthy_and_blocks_its_services() -> None:
    async with judging_by(said) as (judging, desk):
        desk.found = {"error": "engine_too_large", "message": "engine e takes 9 MiB"}
        await eventually(lambda: judging.health(files_of("j", "e")) == "engine_too_large: engine e takes 9 MiB")
        assert (desk.given_up, judging.blocked_services(0, makes_room=False)) == (["j"], {"j"})


async def test_invalid_engine_answer_fails_only_its_item() -> None:
    async with judging_by(said, request_timeout_s=0.3) as (judging, desk):
        judge_texts(judging, "verdict: good", "500", "long", "none", "slow", "cut off")
        await asyncio.wait_for(desk.released.wait(), 5)
        codes = [desk.entries[at]["error"]["code"] for at in range(1, 6)]
        assert codes == ["engine_failed"] * 3 + ["engine_timeout", "engine_broke_off"]
        assert (desk.entries[0]["score"], desk.broken, judging.health(files_of("j", "e"))) == (1.0, [], "ok")
        judge_texts(judging, "500", "no verdict")
        await eventually(lambda: desk.broken == ["engine_failed"])


@pytest_asyncio.fixture
async def judged() -> AsyncIterator[Judged]:
    async with running_engine() as first, running_engine("sglang") as second:
        engines = {"e0": first, "e1": second}
        specs = {n: asdict(EngineSpec(url=e.url, family=e.family, size=6 * MIB)) for n, e in engines.items()}  # type: ignore[arg-type]
        services = {f"j{at}": {"name": f"j{at}", "kind": "judge", "engine": f"e{at}"} for at in range(2)}
        config = WorkerConfig(services=services, device_mib=8, copy_mib_per_s=None, engines=specs)
        worker = WorkerClient(config, threads=1, limit_s=60, engine_keys=dict.fromkeys(engines, KEY))
        judging = EngineDispatcher(
            {
                n: EngineSettings.model_validate(e.settings(6, max_concurrent_requests=4, engine_down_timeout_s=0.3))
                for n, e in engines.items()
            },
            [worker],
            lambda: [files_of(name, str(spec["engine"])) for name, spec in services.items()],
            health_check_s=0.1,
        )
        reports: asyncio.Queue[ScoreReport] = asyncio.Queue()
        turns, metrics = (
            BatchScheduler(batch_tokens=100, max_inflight_tokens=1000, model_swap_delay_s=0.05),
            GpuMetrics(Metrics()),
        )
        scoring = BatchDispatcher(
            [worker],
            reports.put_nowait,
            on_failure=pytest.fail,
            scheduler=turns,
            metrics=metrics,
            engine_dispatcher=judging,
        )  # type: ignore[arg-type]
        scoring.start()
        yield Judged([first, second], worker, scoring, judging, reports)
        await scoring.stop()


HEARD = '{"choices": [{"message": {"content": "a"}, "finish_reason": "%s"}], "usage": %s}'


@pytest.mark.parametrize(
    "answer",
    [HEARD % ("stop", number) for number in ("NaN", "-Infinity", "1e999")]
    + [HEARD % ("stop", "[" * 70 + "]" * 70), HEARD % ("abort", "1")],
)
async def test_engine_answer_with_unstorable_values_is_an_engine_failure(answer: str) -> None:
    async with running_engine() as engine:
        await engine.tell(answer=answer)
        completions = ChatCompletionClient(EngineSettings.model_validate(engine.settings(6)))
        with pytest.raises(EngineRequestFailed) as failed:
            await completions.complete({"messages": []})
        await completions.close()
    assert failed.value.reason == "engine_failed"


async def test_chat_answers_above_the_action_size_limit_are_errors(judged: Judged) -> None:
    await judged.engines[0].tell(answer=HEARD % ("stop", json.dumps("x" * (3 << 20))))
    job = ScoreJob(Fence(uuid4(), 1), "j0", 60.0, [{"chat": {}, "messages": []} for _ in range(6)], [10] * 6)
    judged.jobs[job.fence] = job
    judged.scoring.add(job)
    entries = json.loads((await judged.ends())[job.fence].scores or "[]")
    assert [each.get("error", {}).get("code") for each in entries].count("too_much_answered") == 1


async def test_engine_that_refuses_sleep_is_reported_and_still_judges(judged: Judged) -> None:
    await judged.engines[0].tell(refuses_sleep=True)
    for service, outcome, health in (
        ("j0", "ok", "ok"),
        ("j1", "infra_error", "engine_stays: the engine answered /sleep with status 500"),
        ("j0", "ok", "engine_stays: the engine answered /sleep with status 500"),
    ):
        job = judged.add(service, "text")
        assert (await judged.ends())[job.fence].outcome == outcome
        assert judged.judging.health(files_of("j0", "e0")).startswith(health)
        judged.jobs.clear()
    assert judged.judging.health(files_of("j1", "e1")) == "ok"
    await judged.engines[0].tell(refuses_sleep=False)

    async def is_judged() -> bool:
        job = judged.add("j1", "text")
        outcome = (await judged.ends())[job.fence].outcome
        judged.jobs.clear()
        return outcome == "ok"

    await eventually(is_judged)
    assert judged.judging.health(files_of("j0", "e0")) == "ok"


@pytest.mark.slow
async def test_action_timeout_does_not_include_engine_wake_time(judged: Judged) -> None:
    await judged.engines[1].tell(slow_wake_s=1.2)
    job = judged.add("j1", "text", timeout_s=1.0)
    report = (await judged.ends())[job.fence]
    assert (report.outcome, (await judged.engines[1].state())["wakes"]) == ("ok", 1)
    assert report.run_us < 1_000_000


@pytest.mark.slow
async def test_engines_that_do_not_fit_together_alternate_on_the_device(judged: Judged) -> None:
    for each in judged.engines:
        await each.tell(chat_s=0.02)
    for at in range(40):
        judged.add(f"j{at % 2}", *(f"text {at} {item}" for item in range(at % 3 + 1)))
        await asyncio.sleep(0)
    reports = await judged.ends()
    assert all(report.outcome == "ok" and judged.is_right(report) for report in reports.values())
    states = [await each.state() for each in judged.engines]
    assert [state["chats"] for state in states] == [sum(at % 3 + 1 for at in range(n, 40, 2)) for n in range(2)]
    assert all(state["wakes"] + state["sleeps"] for state in states)
    assert all(state["most"] <= 4 for state in states)


@pytest.mark.slow
async def test_lost_engine_fails_its_actions_and_frees_the_device(judged: Judged) -> None:
    judged.engines[0].kill()
    await eventually(lambda: "j0" in judged.judging.blocked_services(0, makes_room=False))
    job = judged.add("j0", "text")
    assert (await judged.ends())[job.fence].reason == "engine_gone"
    judged.jobs.clear()
    job = judged.add("j1", "text")
    assert judged.is_right((await judged.ends())[job.fence])


@pytest.mark.slow
async def test_every_action_gets_one_correct_report_under_random_engine_faults(judged: Judged) -> None:
    rng = random.Random(7)
    first, second = judged.engines
    for _ in range(40):
        await first.tell(
            wakes_that_fail=int(rng.random() < 0.3),
            sleep_frees_nothing=rng.random() < 0.1,
            answer=rng.choice([None, None, None, "500", "garbled"]),
            chat_s=rng.choice([0.0, 0.05]),
        )
        await second.tell(answer=rng.choice([None, None, "no_choices"]))
        for _job in range(rng.randrange(6)):
            job = judged.add(f"j{rng.randrange(2)}", *(str(rng.random()) for _ in range(rng.choice((1, 1, 12)))))
            if rng.random() < 0.1:
                asyncio.get_running_loop().call_later(0.05 * rng.random(), judged.scoring.cancel, [job.fence])
        await asyncio.sleep(0.02)
    await first.tell(wakes_that_fail=0, sleep_frees_nothing=False, answer=None)
    await second.tell(answer=None)
    reports = await judged.ends()
    for report in reports.values():
        if report.outcome == "ok":
            assert judged.is_right(report)
        elif report.outcome != "cancelled":
            assert report.reason in HARMLESS[report.outcome], report
    assert sum(report.outcome == "ok" for report in reports.values()) > len(reports) // 4

    async def are_free() -> bool:
        answers = [await judged.worker.evict(f"j{at}") for at in range(2)]
        return not any("error" in answer for answer in answers) and answers[-1]["used_bytes"] == 0

    await eventually(are_free)
    assert [(await each.state())["asleep"] for each in judged.engines] == [True, True]
    assert [(await each.state())["in_flight"] for each in judged.engines] == [0, 0]

"""A job sink for judging without a manager, and a server that answers like an engine."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web
from aiohttp.test_utils import TestServer

from arl_core.domain.model import Fence
from arl_gpu.catalog.service_files import ServiceFiles
from arl_gpu.engines.chat_completions import MAX_RESPONSE_BYTES
from arl_gpu.engines.engine_dispatcher import HEALTH_CHECK_S, EngineDispatcher
from arl_gpu.models.interface import Entry
from arl_gpu.queue.batch_scheduler import BatchPart
from arl_gpu.queue.score_jobs import ScoreJob
from arl_gpu.settings import EngineSettings
from arl_gpu.worker.client import WorkerDied

__all__ = ["Desk", "files_of", "judge_texts", "judging_by", "said"]

OPTIONS = {"judge": {"prompt": "{response}", "pattern": r"verdict: (\w+)", "words": {"good": 1, "bad": 0}}}


class Desk:
    """A job sink, and a device worker whose engine is always awake."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.broken: list[str] = []
        self.released = asyncio.Event()
        self.looked = asyncio.Event()
        self.found: dict[str, Any] = {}
        self.given_up: list[str] = []
        self.looks: list[float] = []
        self.dies = False
        self.holding: Callable[[], None] = lambda: None
        self.releasing: Callable[[], None] = lambda: None
        self.learning: Callable[[Mapping[str, Any]], None] = lambda _: None
        self.sending: Callable[[ScoreJob], None] = lambda _: None

    async def acquire_engine(self, engine: str, waiting: Sequence[str] = ()) -> dict[str, Any]:
        self.holding()
        return {"held": True}

    async def release_engine(self, engine: str) -> dict[str, Any]:
        self.releasing()
        self.released.set()
        return {}

    async def check_engine(self, engine: str, *, restarted: bool = False) -> dict[str, Any]:
        self.looked.set()
        self.looks.append(time.monotonic())
        if self.dies:
            raise WorkerDied("it could not be started")
        return self.found

    def start_run_time(self, job: ScoreJob) -> None: ...

    def complete_item(self, job: ScoreJob, item_index: int, entry: Entry) -> None:
        job.done[item_index] = self.entries[item_index] = entry

    def fail_job(self, job: ScoreJob, reason: str, message: str) -> None:
        self.broken.append(reason)

    def fail_waiting(self, services: Collection[str], reason: str, message: str) -> None:
        self.given_up += services

    def is_finished(self, job: ScoreJob) -> bool:
        """Return False; the dispatcher calls this right before it sends the request of an item."""
        self.sending(job)
        return False

    def waiting_services(self, number: int) -> Sequence[str]:
        return ()

    def update_device(self, number: int, answer: Mapping[str, Any]) -> None:
        self.learning(answer)

    def wake_devices(self) -> None: ...


@asynccontextmanager
async def judging_by(
    chat: Callable[[web.Request], Awaitable[web.StreamResponse]],
    *,
    judges: Sequence[str] = ("j",),
    look_s: float = HEALTH_CHECK_S,
    **more: Any,
) -> AsyncIterator[tuple[EngineDispatcher, Desk]]:
    app, desk = web.Application(), Desk()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/health", _well)
    async with TestServer(app) as server:
        settings = {
            "url": f"http://127.0.0.1:{server.port}",
            "family": "vllm",
            "device_memory_mib": 1,
            "model": "m",
            **more,
        }
        engines = {"e": EngineSettings.model_validate(settings)}
        judging = EngineDispatcher(
            engines, [desk], lambda: [files_of(each, "e") for each in judges], health_check_s=look_s
        )
        judging.start(desk)
        yield judging, desk
        await judging.stop()


async def _well(_: web.Request) -> web.Response:
    return web.Response()


def judge_texts(judging: EngineDispatcher, *texts: str) -> ScoreJob:
    job = ScoreJob(Fence(uuid4(), 1), "j", 60.0, [{"text": text} for text in texts], [1] * len(texts))
    judging.enqueue(files_of("j", "e"), [BatchPart(job, 0, len(texts))])
    return job


async def said(request: web.Request) -> web.Response:
    """Answer with the item's text; some texts cause faults instead."""
    text = (await request.json())["messages"][-1]["content"]
    if text == "500":
        return web.Response(status=500)
    if text == "long":
        return web.Response(body=b" " * (MAX_RESPONSE_BYTES + 1))
    if text == "slow":
        await asyncio.sleep(1)
    if text == "cut off" and request.transport is not None:
        request.transport.abort()
    return web.json_response({"choices": [{"message": {"content": text}}] if text != "none" else []})


def files_of(service: str, engine: str) -> ServiceFiles:
    return ServiceFiles(
        name=service,
        kind="judge",
        package=engine,
        directory=Path(),
        max_tokens=None,
        options=OPTIONS,
        engine=engine,
        device=0,
    )

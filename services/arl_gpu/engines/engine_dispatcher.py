"""Dispatch of judge items to engines: one request for each item, while the engine is acquired.

An engine may be asleep while it is not acquired, so no request is sent then. It is acquired from its first request to
its last. If another engine needs its memory, no new request starts, and the requests in flight finish.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol

from arl_core.residency.occupancy import ResidencyState
from arl_gpu.catalog.service_files import ServiceFiles
from arl_gpu.engines.chat_completions import ChatCompletionClient, EngineRequestFailed, ItemRefused
from arl_gpu.engines.engine_judge import EngineJudge, JudgeInputError, is_chat
from arl_gpu.engines.engine_queue import EngineQueue, EngineRequest, ExponentialBackoff
from arl_gpu.models.interface import Entry, error_entry
from arl_gpu.queue.batch_scheduler import Batch
from arl_gpu.queue.score_jobs import ScoreJob
from arl_gpu.settings import EngineSettings
from arl_gpu.worker.client import WorkerDied
from arl_wire.reward_services.service import ServiceOptions

__all__ = ["EngineDispatcher", "EngineOwner", "JobSink"]

HEALTH_CHECK_S = 2.0
"""Seconds between health checks of an engine."""
MAX_BACKOFF_S = 300.0
"""Maximum backoff in seconds between checks that can cost more than a response, such as the device's worker."""
WAKE_POLL_S = 0.05
"""Seconds between checks of an engine that is waking up."""
MAX_COMPLETION_BYTES = 16 << 20
"""Maximum bytes of all completions of an action; they are settled in one statement."""
ENGINE_DOWN_CODES = frozenset({"engine_gone", "engine_unreachable"})
"""Failures of the engine itself, not of a single completion."""
WORKER_DIED = "worker_died"
ENGINE_TOO_LARGE = "engine_too_large"
"""Only other settings resolve this error, so actions do not wait for the engine."""
ENGINE_FAULT_CODES = frozenset({"wake_failed", "engine_trouble", ENGINE_TOO_LARGE})
"""Reasons for a failed acquisition that are the engine's own fault."""
COMPLETION_FAULT_CODES = frozenset({"engine_failed", "engine_timeout", "engine_broke_off"})

log = logging.getLogger(__name__)


class EngineOwner(Protocol):
    """The owner of an engine's device. Responses contain the device's state, or an `error`. Raises `WorkerDied`."""

    async def acquire_engine(self, engine: str, waiting: Sequence[str] = ()) -> dict[str, Any]: ...
    async def release_engine(self, engine: str) -> dict[str, Any]: ...
    async def check_engine(self, engine: str, *, restarted: bool = False) -> dict[str, Any]: ...


class JobSink(Protocol):
    """The source of score jobs, and the receiver of their entries."""

    def start_run_time(self, job: ScoreJob) -> None: ...
    def complete_item(self, job: ScoreJob, item_index: int, entry: Entry) -> None: ...
    def fail_job(self, job: ScoreJob, reason: str, message: str) -> None: ...
    def fail_waiting(self, services: Collection[str], reason: str, message: str) -> None: ...
    def is_finished(self, job: ScoreJob) -> bool: ...
    def waiting_services(self, number: int) -> Sequence[str]: ...
    def update_device(self, number: int, response: Mapping[str, Any]) -> None: ...
    def wake_devices(self) -> None: ...


class EngineDispatcher:
    """A dispatcher to the engines of a node. `judge_services` returns the services that engines serve now."""

    def __init__(
        self,
        engines: Mapping[str, EngineSettings],
        owners: Sequence[EngineOwner],
        judge_services: Callable[[], Iterable[ServiceFiles]],
        *,
        health_check_s: float = HEALTH_CHECK_S,
    ) -> None:
        self._owners, self._judge_services, self._health_check_s = owners, judge_services, health_check_s
        self._queues = {
            name: EngineQueue(
                name,
                each,
                ChatCompletionClient(each),
                asyncio.Semaphore(each.max_concurrent_requests),
                ExponentialBackoff(health_check_s, max_s=MAX_BACKOFF_S),
            )
            for name, each in engines.items()
        }
        self._sink: JobSink
        self._tasks: set[asyncio.Task[None]] = set()
        self._released = asyncio.Condition()

    def start(self, sink: JobSink) -> None:
        """Start to monitor the engines. Entries go to `sink`."""
        self._sink = sink
        for lane in self._queues.values():
            self._run_in_background(self._monitor(lane))

    async def stop(self) -> None:
        """Cancel all requests and close the connections."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._queues.values():
            await lane.completions.close()

    def find_judge(self, service: str) -> ServiceFiles | None:
        """Return the judge of that name, or None if a worker computes the service."""
        return next((each for each in self._judge_services() if each.name == service), None) if self._queues else None

    def health(self, service: ServiceFiles) -> str:
        """Return `ok` or the engine's error. With `engine_stays` the judges work, but the engine kept its memory."""
        if (lane := self._queues.get(service.engine or "")) is None:
            return "ok"
        stays = "ok" if lane.sleep_error is None else f"engine_stays: {lane.sleep_error}"
        return stays if lane.error is None else lane.error

    def update_device(self, number: int, response: Mapping[str, Any]) -> None:
        """Update the engines' states from any response of a device's worker."""
        for lane in self._queues.values():
            if lane.settings.device == number and "unheard" in response:
                lane.is_state_unconfirmed = lane.name in response["unheard"]
                lane.sleep_error = response.get("refusals", {}).get(lane.name)
                if response.get("engines", {}).get(lane.name) == ResidencyState.HOST:
                    lane.backoff.reset()

    def blocked_services(self, number: int, *, makes_room: bool) -> set[str]:
        """Return services that must not start on a device. `makes_room`: another service needs engine memory."""
        return (
            {each.name for each in self._judge_services() if self._is_blocked(each, number, makes_room)}
            if self._queues
            else set()
        )

    def is_busy(self, number: int) -> bool:
        """Return True if an engine of this device is in use or waking up, so that its memory will become free."""
        return any(lane.is_busy for lane in self._queues.values() if lane.settings.device == number)

    def enqueue(self, files: ServiceFiles, batch: Batch) -> None:
        """Queue a batch. Every item gets one entry, or its action fails once, unless the action ends before."""
        lane, options = self._queues[files.engine or ""], ServiceOptions.model_validate(files.options)
        judge = EngineJudge(options.judge)
        lane.pending.extend(EngineRequest(job, at, judge) for job, start, stop in batch for at in range(start, stop))
        self._run_in_background(self._send_pending(lane))

    def _is_blocked(self, files: ServiceFiles, number: int, makes_room: bool) -> bool:
        lane = self._queues[files.engine or ""]
        others = (each for each in self._queues.values() if each is not lane and each.settings.device == number)
        return (
            lane.settings.device != number
            or lane.error is not None
            or bool(lane.pending)
            or lane.running >= lane.settings.max_concurrent_requests
            or makes_room
            or any(each.is_waiting_for_room for each in others)
        )

    async def _send_pending(self, queue: EngineQueue) -> None:
        async with queue.lock:
            try:
                if queue.pending and not queue.is_acquired:
                    await self._wake(queue)
                while queue.pending:
                    if not self._sink.is_finished(queue.pending[0].job):
                        self._start_request(queue, queue.pending[0])
                    queue.pending.popleft()
            except Exception as error:  # noqa: BLE001 - a pending action has no timeout yet, so it would wait forever
                self._fail_pending(queue, "order_failed", f"{type(error).__name__}: {error}")
        await self._release_if_idle(queue)

    async def _wake(self, queue: EngineQueue) -> None:
        """Acquire the engine, or fail all pending requests."""
        while not queue.is_acquired:
            try:
                answer = await self._acquire(queue)
            except WorkerDied as error:
                queue.may_be_counted = False
                self._fail_pending(queue, WORKER_DIED, str(error))
                return
            if "error" not in answer:
                await asyncio.sleep(0 if queue.is_acquired else WAKE_POLL_S)
            elif answer["error"] != "no_room" or not await self._wait_for_room(queue):
                self._fail_pending(queue, answer["error"], answer["message"])
                return

    async def _acquire(self, queue: EngineQueue) -> Mapping[str, Any]:
        """Acquire the engine. If an error follows the acquisition, the engine stays acquired until it is released."""
        number = queue.settings.device
        queue.may_be_counted = True
        answer = await self._owners[number].acquire_engine(queue.name, self._sink.waiting_services(number))
        queue.is_acquired = queue.may_be_counted = bool(answer.get("held"))
        self._sink.update_device(number, answer)
        return answer

    async def _wait_for_room(self, queue: EngineQueue) -> bool:
        """Wait until another busy engine of the device is released. Return False if there is none."""
        others = [e for e in self._queues.values() if e is not queue and e.settings.device == queue.settings.device]
        busy = [each for each in others if each.is_busy]
        if not busy:
            return False
        queue.is_waiting_for_room = True
        try:
            async with self._released:
                await self._released.wait_for(lambda: not all(each.is_busy for each in busy))
        finally:
            queue.is_waiting_for_room = False
        return True

    def _fail_pending(self, queue: EngineQueue, reason: str, message: str) -> None:
        """Fail the pending requests. `no_room` is not an error of the engine."""
        log.warning("engine %s is not available: %s: %s", queue.name, reason, message)
        if reason in ENGINE_FAULT_CODES:
            queue.error = f"{reason}: {message}"
        waited = [request.job for request in queue.pending]
        queue.pending.clear()
        for job in waited:
            self._sink.fail_job(job, reason, message)

    def _start_request(self, queue: EngineQueue, request: EngineRequest) -> None:
        """Start a request. It is counted until its task ends, because a task can be cancelled before its first step."""
        if (job := request.job).run_started_at is None and job.started_at is not None:
            job.timeline.add("wake engine", job.started_at, time.monotonic(), engine=queue.name)
        self._sink.start_run_time(job)
        queue.running += 1
        task = self._run_in_background(self._process_request(queue, request))
        job.tasks.add(task)
        task.add_done_callback(lambda ended: self._finish_request(queue, job, ended))

    def _finish_request(self, queue: EngineQueue, job: ScoreJob, task: "asyncio.Task[None]") -> None:
        job.tasks.discard(task)
        queue.running -= 1
        self._sink.wake_devices()
        if not queue.running:
            self._run_in_background(self._release_if_idle(queue))

    async def _process_request(self, queue: EngineQueue, request: EngineRequest) -> None:
        job, begun = request.job, time.monotonic()
        try:
            entry = await self._complete_with_retry(queue, request)
        except EngineRequestFailed as error:
            if error.reason in ENGINE_DOWN_CODES:
                queue.error = queue.error or f"{error.reason}: {error}"
                queue.is_down = queue.is_down or error.reason == "engine_gone"
                _detach_current_task(job)
                self._sink.fail_job(job, error.reason, str(error))
                return
            entry = error_entry(error.reason, str(error))
        except Exception as error:
            log.exception("an item could not be judged")
            _detach_current_task(job)
            self._sink.fail_job(job, "order_failed", f"{type(error).__name__}: {error}")
            return
        _detach_current_task(job)
        code = entry["error"]["code"] if "error" in entry else None
        job.timeline.add("completion", begun, time.monotonic(), engine=queue.name, item=request.item_index, error=code)
        self._record_entry(request, entry)

    async def _complete_with_retry(self, queue: EngineQueue, request: EngineRequest) -> Entry:
        """Complete an item; retry once if the connection broke off. The retry shows whether the engine is down."""
        try:
            return await self._complete_item(queue, request)
        except EngineRequestFailed as error:
            if error.reason != "engine_broke_off":
                raise
        return await self._complete_item(queue, request)

    def _record_entry(self, request: EngineRequest, entry: Entry) -> None:
        """Record an entry. If no item has a score and an engine error occurred, fail the action; it may be retried."""
        job = request.job
        entries = [*job.done.values(), entry] if len(job.done) + 1 == len(job.items) else [{}]
        errors = [each.get("error") for each in entries]
        of_engine = next(
            (error for error in errors if error is not None and error["code"] in COMPLETION_FAULT_CODES), None
        )
        if of_engine is not None and None not in errors:
            self._sink.fail_job(job, of_engine["code"], of_engine["message"])
        else:
            self._sink.complete_item(job, request.item_index, entry)

    async def _complete_item(self, queue: EngineQueue, request: EngineRequest) -> Entry:
        try:
            body = request.judge.build_request(request.item)
            async with queue.semaphore:
                answer = await queue.completions.complete(body)
        except JudgeInputError as error:
            return error_entry(error.code, str(error))
        except ItemRefused as error:
            return error_entry("refused", str(error))
        if is_chat(request.item):
            request.job.completion_bytes += answer.size
            if request.job.completion_bytes > MAX_COMPLETION_BYTES:
                return error_entry(
                    "too_much_answered",
                    f"the completions of an action have more than {MAX_COMPLETION_BYTES >> 20} MiB in total",
                )
            return {"completion": answer.completion}
        # A pattern can take long; the thread keeps the event loop free for nodes and engines.
        return await asyncio.to_thread(request.judge.parse_entry, answer.choices)

    async def _release_if_idle(self, queue: EngineQueue) -> None:
        """Release the engine if it has no requests; then it may be evicted from its device."""
        async with queue.lock:
            if queue.running or queue.pending:
                return
            if queue.may_be_counted:
                await self._release(queue)
        async with self._released:
            self._released.notify_all()
        self._sink.wake_devices()

    async def _release(self, queue: EngineQueue) -> None:
        number, queue.is_acquired = queue.settings.device, False
        try:
            answer = await self._owners[number].release_engine(queue.name)
        except WorkerDied as error:
            log.warning("engine %s could not be released, because the worker of its device died: %s", queue.name, error)
            queue.may_be_counted = False
            return
        queue.may_be_counted = False
        self._sink.update_device(number, answer)

    async def _monitor(self, queue: EngineQueue) -> None:
        while True:
            try:
                await self._check_health(queue)
                self._enforce_down_timeout(queue)
                if queue.may_be_counted and not (queue.running or queue.pending):
                    await self._release_if_idle(queue)  # retry after a failed release
            except Exception:
                log.exception("the monitoring of engine %s failed", queue.name)
            await asyncio.sleep(self._health_check_s)

    def _enforce_down_timeout(self, queue: EngineQueue) -> None:
        """Fail the waiting actions of an engine that stays down for longer than its timeout."""
        if queue.error is None:
            queue.last_healthy_at = time.monotonic()
            return
        reason, _, message = queue.error.partition(": ")
        down_s = time.monotonic() - queue.last_healthy_at
        if reason == ENGINE_TOO_LARGE or down_s > queue.settings.engine_down_timeout_s:
            services = {each.name for each in self._judge_services() if each.engine == queue.name}
            self._sink.fail_waiting(services, reason, message)

    async def _check_health(self, queue: EngineQueue) -> None:
        """Check an engine's health. A failed engine is used again once it answers and its memory state is known."""
        try:
            await queue.completions.check_health()
        except (EngineRequestFailed, ItemRefused) as error:
            reason = error.reason if isinstance(error, EngineRequestFailed) else "engine_failed"
            queue.is_down = queue.is_down or reason == "engine_gone"
            if queue.error is None:
                log.warning("engine %s failed its health check: %s: %s", queue.name, reason, error)
            queue.error = f"{reason}: {error}"
            return
        async with queue.lock:
            if self._needs_state_check(queue) and not queue.is_acquired:
                await self._check_state(queue)

    def _needs_state_check(self, queue: EngineQueue) -> bool:
        """Return True if the engine's memory state must be checked, even if no judge uses it."""
        if queue.error is not None and not queue.error.startswith(WORKER_DIED):
            return True
        return (queue.error is not None or queue.is_state_unconfirmed) and queue.backoff.is_elapsed

    async def _check_state(self, queue: EngineQueue) -> None:
        number, was_well = queue.settings.device, queue.error is None
        try:
            answer = await self._owners[number].check_engine(queue.name, restarted=queue.is_down)
        except WorkerDied as error:
            log.warning("the check of engine %s failed, because the worker of its device died: %s", queue.name, error)
            queue.error = f"{WORKER_DIED}: {error}"
            queue.backoff.start()
            return
        self._sink.update_device(number, answer)
        if was_well:  # it can fail to sleep again on the next eviction
            queue.backoff.start()
        else:
            queue.backoff.reset()
        queue.is_down = False
        queue.error = f"{answer['error']}: {answer['message']}" if "error" in answer else None
        self._sink.wake_devices()

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name="judging")
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task of the engine dispatcher failed", exc_info=error)


def _detach_current_task(job: ScoreJob) -> None:
    """Remove the current task from the job, because ending the job cancels the job's tasks."""
    if (task := asyncio.current_task()) is not None:
        job.tasks.discard(task)

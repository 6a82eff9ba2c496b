"""Dispatch of batches across actions: when a device is free, the next batch is formed from all waiting actions."""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from arl_core.domain.model import Fence
from arl_core.residency.occupancy import ResidencyState
from arl_gpu.dispatch.device_groups import DeviceGroups
from arl_gpu.dispatch.device_slot import DeviceSlot, DeviceWorker
from arl_gpu.dispatch.device_states import DeviceStates
from arl_gpu.dispatch.metrics import GpuMetrics
from arl_gpu.engines.engine_dispatcher import EngineDispatcher
from arl_gpu.models.interface import Entry, Item
from arl_gpu.queue.batch_scheduler import Batch, BatchPart, BatchScheduler
from arl_gpu.queue.score_jobs import ScoreJob, ScoreReport

__all__ = ["BatchDispatcher"]

DRAIN_TIMEOUT_S = 10.0
MIN_WAIT_S = 0.01
MAX_WORKER_DEATHS = 2
"""Maximum worker deaths while a batch's actions are scored separately; after that, the actions are not the cause."""

REFUSAL_TTL_S = 5.0
"""Seconds for which a device that refused a service is skipped while another may have room: pins and engines change."""

log = logging.getLogger(__name__)


class BatchDispatcher:
    """A dispatcher that sends exactly one report for each job, unless this process ends first.

    `on_failure` is called with the reason if jobs can no longer end.
    """

    def __init__(
        self,
        workers: Sequence[DeviceWorker],
        on_report: Callable[[ScoreReport], None],
        *,
        on_failure: Callable[[str], None],
        scheduler: BatchScheduler,
        metrics: GpuMetrics,
        engine_dispatcher: EngineDispatcher | None = None,
        groups: DeviceGroups | None = None,
    ) -> None:
        self._devices = [DeviceSlot(number, worker) for number, worker in enumerate(workers)]
        self._on_report, self._on_failure = on_report, on_failure
        self._scheduler = scheduler
        self._metrics = metrics
        self._engine_dispatcher = engine_dispatcher or EngineDispatcher({}, workers, lambda: ())
        self._groups = groups or DeviceGroups(workers)
        self._device_states = DeviceStates(self._devices, self._groups, self._engine_dispatcher)
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._errors: dict[str, str] = {}
        self.batches: Counter[str] = Counter()
        self.items_scored: Counter[str] = Counter()
        """Number of scored items, by service."""

    @property
    def job_count(self) -> int:
        """Return the number of unfinished jobs."""
        return len(self._scheduler)

    @property
    def states(self) -> Mapping[str, ResidencyState]:
        """Best state of each service over all devices or groups; a group has its worst part's state."""
        return self._device_states.services()

    @property
    def used_bytes(self) -> int:
        """Return the used bytes of all devices."""
        return sum(device.used_bytes for device in self._devices)

    def health(self, service: str) -> str:
        """Return `ok` or the error code of the service's last batch.

        The message is omitted: all projects read the health, and a message can quote an item.
        """
        return self._errors.get(service, "ok")

    def forget(self, service: str) -> None:
        """Reset the state of a service whose name may be reused. A running batch can still report an error."""
        for device in self._devices:
            device.refused_until.pop(service, None)
        self._errors.pop(service, None)
        self.batches.pop(service, None)
        self.items_scored.pop(service, None)
        self._scheduler.forget(service)

    def start(self) -> None:
        """Start one loop for each device, and the dispatcher of engines."""
        self._engine_dispatcher.start(self)
        for device in self._devices:
            task = asyncio.create_task(self._run_device(device), name=f"scoring {device.number}")
            task.add_done_callback(self._on_loop_ended)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Give running jobs `DRAIN_TIMEOUT_S` to end, then stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await self._idle.wait()
        await self._engine_dispatcher.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for job in self._scheduler:
            job.stop_timer()
        await asyncio.gather(*(device.worker.end() for device in self._devices))
        self._groups.close()

    def add(self, job: ScoreJob) -> None:
        """Queue a job and wake the devices."""
        self._scheduler.add(job, now=time.monotonic())
        self._idle.clear()
        self.wake_devices()

    def cancel(self, fences: Iterable[Fence]) -> None:
        """Cancel jobs now. Results of items that a device still computes are dropped."""
        for fence in fences:
            if (job := self._scheduler.get(fence)) is not None:
                self._end_job(job, "cancelled")

    def _time_out(self, job: ScoreJob) -> None:
        """Report a timeout as an infrastructure error: a long forward or queue is not the fault of the item."""
        message = f"only {len(job.done)} of {len(job.items)} items were scored within {job.timeout_s:g} s"
        self._end_job(job, "infra_error", reason="score_timeout", message=message)

    async def _run_device(self, device: DeviceSlot) -> None:
        while True:
            await self._wait_for_work(device)
            while batch := self._next_batch(device):
                self._start_batch(batch)
                device.current_service = batch[0].job.service
                try:
                    await self._run_batch(device, batch)
                except Exception as error:
                    log.exception("a batch could not be scored")
                    self._fail_batch(batch, "forward_failed", f"{type(error).__name__}: {error}")
                device.current_service = None
                self.wake_devices()

    def _next_batch(self, device: DeviceSlot) -> Batch:
        while device.reassigned or (
            device.deferred and not self._device_states.has_busy_engine(device, device.deferred[0])
        ):
            taken = (device.reassigned or device.deferred).popleft()
            if batch := [part for part in taken if not self.is_finished(part.job)]:
                return batch
        return self._scheduler.next_batch(self._device_states.of(device), now=time.monotonic())

    async def _wait_for_work(self, device: DeviceSlot) -> None:
        """Wait until an action arrives or ends, or a service has waited long enough."""
        look_at = self._scheduler.next_check_at(self._device_states.of(device), now=time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if look_at is None else max(MIN_WAIT_S, look_at - time.monotonic())):
                await device.work_available.wait()
        device.work_available.clear()

    def is_finished(self, job: ScoreJob) -> bool:
        """Return True if the job has been reported."""
        return job.fence not in self._scheduler

    def start_run_time(self, job: ScoreJob) -> None:
        """Start the job's run time and its timeout, unless they have started."""
        if job.run_started_at is None:
            job.run_started_at = time.monotonic()
            job.timer = asyncio.get_running_loop().call_later(job.timeout_s, self._time_out, job)

    def complete_item(self, job: ScoreJob, item_index: int, entry: Entry) -> None:
        """Record the entry of a judge's item."""
        self.items_scored[job.service] += 1
        self._metrics.items.inc()
        self._record_entries([BatchPart(job, item_index, item_index + 1)], [entry], 0.0)

    def fail_job(self, job: ScoreJob, reason: str, message: str) -> None:
        """Fail a job with this reason; a finished job is ignored."""
        self._fail_batch([BatchPart(job, 0, len(job.items))], reason, message)

    def fail_waiting(self, services: Collection[str], reason: str, message: str) -> None:
        """Fail the waiting jobs of these services; jobs that have started continue."""
        for job in [each for each in self._scheduler if each.service in services and not each.has_started]:
            self.fail_job(job, reason, message)

    def waiting_services(self, number: int) -> Sequence[str]:
        """Return the services with work for a device, the most urgent first."""
        return self._services_waiting_for(self._devices[number])

    def wake_devices(self) -> None:
        """Wake all devices: any new or finished job may give any device work."""
        for device in self._devices:
            device.work_available.set()

    def _on_loop_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._on_failure(f"the scoring loop ended unexpectedly: {task.exception()!r}")

    def _start_batch(self, batch: Batch) -> None:
        """Record the start of a batch. The queueing delay and an engine's wake-up do not count as run time."""
        has_engine = self._engine_dispatcher.find_judge(batch[0].job.service) is not None
        for job, _, _ in batch:
            if job.started_at is None:
                job.started_at = time.monotonic()
                job.timeline.end_wait(job.started_at)
            if not has_engine:
                self.start_run_time(job)

    async def _run_batch(self, device: DeviceSlot, batch: Batch) -> None:
        service = batch[0].job.service
        if (files := self._engine_dispatcher.find_judge(service)) is not None:
            self.batches[service] += 1
            self._engine_dispatcher.enqueue(files, batch)
            return
        items = [item for job, start, stop in batch for item in job.items[start:stop]]
        was_busy, begun = self._device_states.has_busy_engine(device, batch), time.monotonic()
        answer = await self._score(device, service, items)
        if answer.get("error") == "no_room" and self._defer(device, batch, was_busy=was_busy):
            return
        device.record_batch(batch, begun, answer)
        if "error" not in answer:
            # The duration of a user's function does not depend on an item's token cost.
            if answer["tokens"]:
                self._scheduler.record_duration(batch, device.number, answer["model_s"])
            self._metrics.observe_batch(answer, actions=len(batch), items=len(items))
            self.batches[service] += 1
            self.items_scored[service] += len(items)
            self._record_entries(batch, answer["entries"], answer["forward_cpu_s"] / len(items))
        else:
            self._scheduler.record_failure(batch, device.number)
            await self._retry_one_by_one(device, batch, answer)

    def _defer(self, device: DeviceSlot, batch: Batch, *, was_busy: bool) -> bool:
        """Park the batch until an engine frees memory, or move it to another device. Return False if impossible."""
        service, now = batch[0].job.service, time.monotonic()
        if was_busy or self._device_states.has_busy_engine(device, batch):
            device.deferred.append(batch)
            self._pause_timeouts(batch)
            return True
        if service in self._groups.splits:
            return False
        device.refused_until[service] = now + REFUSAL_TTL_S
        for job, _, _ in batch:
            job.refused_by.add(device.number)
        asked = set[int]().union(*(job.refused_by for job, _, _ in batch))
        others = [
            each for each in self._devices if each.number not in asked and service not in each.refused_services(now)
        ]
        if others:
            min(others, key=lambda other: len(other.reassigned)).reassigned.append(batch)
        return bool(others)

    def _pause_timeouts(self, batch: Batch) -> None:
        """Stop the timeouts of a deferred batch; an action's clock runs only while it is computed."""
        for job, _, _ in batch:
            if not job.done:
                job.stop_timer()
                job.run_started_at = None

    async def _score(self, device: DeviceSlot, service: str, items: Sequence[Item]) -> Mapping[str, Any]:
        """Score items on the device's group. Return the response or the reason of a worker's death."""
        found = await self._groups.score(service, device.number, items, self.waiting_services)
        for number, heard in found.responses.items():
            self.update_device(number, heard)
        for number, message in found.deaths.items():
            self._record_worker_death(self._devices[number], f"{message}, while it scored a batch of {service}")
        if found.deaths:
            device.deaths += 1
        self._errors.pop(service, None)
        if "error" in found.response:
            self._errors[service] = found.response["error"]
        return found.response

    def _record_worker_death(self, device: DeviceSlot, message: str) -> None:
        log.warning("a worker died: %s", message)
        self._metrics.worker_deaths.inc()
        device.fitting = None
        device.states, device.used_bytes = dict.fromkeys(device.states, ResidencyState.COLD), 0

    def update_device(self, number: int, response: Mapping[str, Any]) -> None:
        """Update a device's state from any response of its worker."""
        device = self._devices[number]
        self._engine_dispatcher.update_device(number, response)
        device.states = {name: ResidencyState(state) for name, state in response["states"].items()}
        device.used_bytes = response["used_bytes"]
        device.fitting = set(response["fitting"]) if "fitting" in response else None
        self._scheduler.forget_budgets_except(
            {name for name, state in device.states.items() if state is not ResidencyState.COLD}, number
        )
        if response["moves"]:
            self._metrics.observe_residency(response["moves"])

    def _services_waiting_for(self, device: DeviceSlot) -> Sequence[str]:
        return self._scheduler.waiting_services(self._device_states.of(device), now=time.monotonic())

    async def _retry_one_by_one(self, device: DeviceSlot, batch: Batch, response: Mapping[str, Any]) -> None:
        """Score the actions of a failed batch separately, so that one action's items do not fail the others."""
        if len(batch) == 1:
            self._fail_batch(batch, response["error"], response["message"])
            return
        before = device.deaths
        for at, part in enumerate(batch):
            if device.deaths - before >= MAX_WORKER_DEATHS:
                self._fail_batch(batch[at:], "worker_died", "workers died repeatedly; this action was not scored")
                return
            if part.job.fence in self._scheduler:
                await self._run_batch(device, [part])

    def _record_entries(self, batch: Batch, entries: Sequence[Entry], cpu_s: float) -> None:
        begin = 0
        for part in batch:
            job = part.job
            job.done |= zip(range(part.start, part.stop), entries[begin : begin + part.items], strict=True)
            job.cpu_s += part.items * cpu_s
            begin += part.items
            if len(job.done) == len(job.items):
                self._finish_job(job)

    def _finish_job(self, job: ScoreJob) -> None:
        entries = job.entries
        scores = json.dumps(entries)
        if any("error" not in entry for entry in entries):
            self._end_job(job, "ok", scores=scores)
        else:
            message = entries[0]["error"]["message"]
            self._end_job(job, "user_error", reason="no_item_scored", message=message, scores=scores)

    def _fail_batch(self, batch: Batch, reason: str, message: str) -> None:
        log.warning("a batch of %s with %d actions failed: %s: %s", batch[0].job.service, len(batch), reason, message)
        for job, _, _ in batch:
            self._end_job(job, "infra_error", reason=reason, message=message)

    def _end_job(self, job: ScoreJob, outcome: Any, **result: Any) -> None:
        """End a job and report it. A job that has already ended is ignored."""
        if self._scheduler.remove(job.fence) is None:
            return
        job.stop_timer()
        for task in job.tasks:
            task.cancel()
        if not self._scheduler:
            self._idle.set()
        now = time.monotonic()
        run_us, cpu_us = int((now - (job.run_started_at or now)) * 1e6), int(job.cpu_s * 1e6)
        times: dict[str, Any] = {"run_us": run_us, "cpu_us": cpu_us, "timeline": job.timeline.to_json(now)}
        self._on_report(ScoreReport(fence=job.fence, outcome=outcome, **times, **result))

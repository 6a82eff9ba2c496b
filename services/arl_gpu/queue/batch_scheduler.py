"""Whose items go to which device next. Knows no device, and the time only as it is told."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from arl_core.control.batching import next_batch, next_budget
from arl_core.domain.model import Fence
from arl_gpu.queue.score_jobs import ScoreJob

__all__ = ["Batch", "BatchPart", "BatchScheduler", "DeviceState"]

REPLICA_BATCHES = 4
"""Of waiting work, from which on a service that another device holds is brought onto an idle one too."""
MAX_BATCH_FACTOR = 16
"""Times what a batch may have anyway: one that was thought to be cheap takes so much longer, and says so much more."""
SWAP_WAIT_FACTOR = 2.0
"""More of it makes fewer copies and longer waits (`tangram bench residency`)."""


class BatchPart(NamedTuple):
    """Items of one action, `start` to before `stop`."""

    job: ScoreJob
    start: int
    stop: int

    @property
    def items(self) -> int:
        return self.stop - self.start


Batch = Sequence[BatchPart]
_JobsByService = dict[str, list[ScoreJob]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """A device as its next batch is put together."""

    number: int = 0
    resident: Collection[str] = ()
    """Services that are on it."""
    restoring: Collection[str] = ()
    """Services that are on their way there."""
    replicas_elsewhere: Mapping[str, int] = field(default_factory=dict)
    """How many other devices hold a service or are being given it, where any does."""
    fitting: Collection[str] | None = None
    """Services for which there is room without an eviction; None for all."""
    blocked: Collection[str] = ()
    """Services of which nothing may begin here now, whatever waits for them."""
    members: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Numbers of the devices that compute a service together, the first of which takes its batches, by service."""
    resident_on_group: Mapping[str, Collection[str]] = field(default_factory=dict)
    """What is on all of these devices, by service."""


class _ServingPeriod(NamedTuple):
    service: str
    started_at: float


class BatchScheduler:
    """Jobs in the order in which they head a batch; costs are in tokens, times by the monotonic clock.

    Services that are on the device go before those that would have to be restored, until the oldest action of these has
    waited `model_swap_delay_s`. Where one that is in use would have to leave for it, a service is restored only then,
    or once all that waits for it has together waited `PATIENCE` times as long. A service that was restored keeps the
    device until all that waited for it by then was in a batch.

    A batch has `batch_tokens`, or more of a service of which the device computes more within `batch_s`, where that is
    not more than the device's part of what waits for it.

    Beside that whoever was served goes behind all others. An action of at most `batch_tokens` may begin at once.
    Larger ones of a service begin in their order, while what is left of all that began and is not closed there is at
    most `max_inflight_tokens`, or alone: the time of one that waits does not run.
    """

    def __init__(
        self, *, batch_tokens: int, max_inflight_tokens: int, model_swap_delay_s: float = 0.0, batch_s: float = 0.0
    ) -> None:
        self._batch_tokens, self._max_inflight_tokens, self._model_swap_delay_s = (
            batch_tokens,
            max_inflight_tokens,
            model_swap_delay_s,
        )
        self._batch_s = batch_s
        self._budgets: dict[tuple[str, int], int] = {}
        """Tokens of a batch, by service and number of the device, where one was computed."""
        self._jobs: dict[Fence, ScoreJob] = {}
        """The one that has waited the longest first."""
        self._serving: dict[int, _ServingPeriod] = {}
        """By the number of the device."""
        self._served_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[ScoreJob]:
        return iter(self._jobs.values())

    def __contains__(self, fence: Fence) -> bool:
        return fence in self._jobs

    def get(self, fence: Fence) -> ScoreJob | None:
        return self._jobs.get(fence)

    def add(self, job: ScoreJob, *, now: float = 0.0) -> None:
        job.waiting_since = now
        self._jobs[job.fence] = job

    def remove(self, fence: Fence) -> ScoreJob | None:
        """None where it is gone already."""
        return self._jobs.pop(fence, None)

    def next_batch(self, device: DeviceState, *, now: float = 0.0) -> Batch:
        """Of one service; empty where this device should do nothing now. What is in it no later one has.

        Raises where a job waits and none of its items has a cost.
        """
        every = _group_by_service(self._ready_jobs(device.blocked, now))
        queue = {name: jobs for name, jobs in every.items() if name not in device.blocked}
        service = self._choose_service(queue, every, device, now)
        if service is None:
            return []
        jobs = queue[service]
        groups = device.replicas_elsewhere.get(service, 0) // len(device.members.get(service, (device.number,)))
        share = -(-_remaining_tokens(jobs) // (1 + groups))
        budget = max(self._batch_tokens, min(self._budget(service, device.number), share))
        counts = next_batch([job.remaining_costs for job in jobs], budget=budget)
        parts = [
            BatchPart(job, job.dispatched, job.dispatched + count)
            for job, count in zip(jobs, counts, strict=True)
            if count
        ]
        if not parts:
            raise RuntimeError("jobs wait of which nothing is left")
        for job, _, stop in parts:
            job.dispatched, job.waiting_since = stop, now
            self._jobs[job.fence] = self._jobs.pop(job.fence)
        self._served_at[service] = now
        return parts

    def record_duration(self, batch: Batch, number: int, seconds: float) -> None:
        """The device to compute it."""
        service = batch[0].job.service
        self._budgets[service, number] = next_budget(
            self._budget(service, number),
            sum(sum(job.costs[start:stop]) for job, start, stop in batch),
            seconds,
            target_s=self._batch_s,
            min_budget=self._batch_tokens,
            max_budget=max(self._batch_tokens, min(MAX_BATCH_FACTOR * self._batch_tokens, self._max_inflight_tokens)),
        )

    def record_failure(self, batch: Batch, number: int) -> None:
        """It may have been too large."""
        self._budgets.pop((batch[0].job.service, number), None)

    def forget_budgets_except(self, services: Collection[str], number: int) -> None:
        """What has none of these names in a device's memory may be another model when it comes there."""
        for service, at in [*self._budgets]:
            if at == number and service not in services:
                del self._budgets[service, at]

    def forget(self, service: str) -> None:
        """It was removed."""
        self._served_at.pop(service, None)

    def _budget(self, service: str, number: int) -> int:
        return self._budgets.get((service, number), self._batch_tokens)

    def waiting_services(self, device: DeviceState, *, now: float = 0.0) -> list[str]:
        """Services with work for this device now, the one whose oldest action has waited the longest first."""
        queue = _group_by_service(self._ready_jobs(device.blocked, now))
        return [service for service in queue if self._can_run_on(service, queue, device, now)]

    def next_check_at(self, device: DeviceState, *, now: float) -> float | None:
        """When a service that waits may be restored though nothing else happens; None where nothing will change."""
        queue = self._unblocked_jobs(device, now)
        times = (
            time for jobs in queue.values() for time in (self._swap_allowed_at(jobs, now), self._swap_due_at(jobs))
        )
        return min((time for time in times if time > now), default=None)

    def _unblocked_jobs(self, device: DeviceState, now: float) -> _JobsByService:
        ready = _group_by_service(self._ready_jobs(device.blocked, now))
        return {name: jobs for name, jobs in ready.items() if name not in device.blocked}

    def _choose_service(
        self, queue: _JobsByService, all_jobs: _JobsByService, device: DeviceState, now: float
    ) -> str | None:
        """`every`: also what may not begin here."""
        own = self._unfinished_service(device.number, all_jobs)
        if own in queue:
            return own
        if own is not None and own in device.members:
            return None  # it was brought here for the batches that another device takes
        here = [
            each
            for each in queue
            if self._can_run_on(each, queue, device, now) and self._can_use_group(each, all_jobs, device)
        ]
        overdue = [each for each in here if now - queue[each][0].waiting_since >= self._model_swap_delay_s]
        resident = [each for each in here if each in device.resident]
        coming = [each for each in here if each in device.restoring]
        chosen = next(iter(overdue or resident or coming or here), None)
        if chosen is not None and chosen not in resident:
            for number in device.members.get(chosen, (device.number,)):
                self._serving[number] = _ServingPeriod(chosen, now)
        return chosen

    def _unfinished_service(self, number: int, all_jobs: _JobsByService) -> str | None:
        """The service that a device was given for what waited for it by then, while some of that still does."""
        turn = self._serving.get(number)
        if turn is None or turn.service not in all_jobs or all_jobs[turn.service][0].waiting_since >= turn.started_at:
            return None
        return turn.service

    def _can_use_group(self, service: str, all_jobs: _JobsByService, device: DeviceState) -> bool:
        """On the other devices that would compute it, too: to take one away would be a swap for each batch."""
        numbers = device.members.get(service, ())
        return all(self._unfinished_service(number, all_jobs) in (None, service) for number in numbers)

    def _can_run_on(self, service: str, queue: _JobsByService, device: DeviceState, now: float) -> bool:
        if service in device.resident or service in device.restoring:
            return True
        jobs = queue[service]
        # A second copy of a service is worth its restore where there is much to do, or nobody came to do it.
        if (
            service in device.replicas_elsewhere
            and self._is_small_backlog(service, jobs)
            and now < self._swap_due_at(jobs)
        ):
            return False
        if device.fitting is None or service in device.fitting or self._has_idle_resident(service, queue, device, now):
            return True
        return now >= self._swap_allowed_at(jobs, now)

    def _is_small_backlog(self, service: str, jobs: Sequence[ScoreJob]) -> bool:
        """For another device, beside those that hold it. No more than a part of what may have begun is ever ready."""
        largest = max((each for (name, _), each in self._budgets.items() if name == service), default=0)
        some = min(REPLICA_BATCHES * largest, self._max_inflight_tokens // 2)
        return _remaining_tokens(jobs) < max(REPLICA_BATCHES * self._batch_tokens, some)

    def _swap_allowed_at(self, jobs: Sequence[ScoreJob], now: float) -> float:
        """When these have waited for long enough, if no others come."""
        waited = sum(now - job.waiting_since for job in jobs)
        together = now + (SWAP_WAIT_FACTOR * self._model_swap_delay_s - waited) / len(jobs)
        return min(self._swap_due_at(jobs), together)

    def _swap_due_at(self, jobs: Sequence[ScoreJob]) -> float:
        """When the oldest of these has waited as long as any may."""
        return jobs[0].waiting_since + self._model_swap_delay_s

    def _has_idle_resident(self, service: str, queue: _JobsByService, device: DeviceState, now: float) -> bool:
        """A service that nobody has needed for a while is no loss, and neither is none."""
        there = device.resident_on_group.get(service, device.resident)
        if not there:
            return True
        needed = (
            queue
            if service not in device.resident_on_group
            else {job.service for job in self._ready_jobs(device.blocked, now)}
        )
        resting = (each for each in there if each not in needed)
        return any(
            now - self._served_at.get(each, now - self._model_swap_delay_s) >= self._model_swap_delay_s
            for each in resting
        )

    def _ready_jobs(self, blocked: Collection[str], now: float) -> list[ScoreJob]:
        """Those that have begun or may begin, and of which something is left.

        Large ones of a service wait for those of it that are before them; for another service's, which may not begin
        here for long, once these have waited `model_swap_delay_s`, so that they come to begin. For a closed one's,
        never.
        """
        begun = _remaining_tokens(job for job in self if job.has_started and job.service not in blocked)
        before: Counter[str] = Counter()
        found, full, all_wait = [], set[str](), False
        for job in self:
            service = job.service
            if not job.has_started and (cost := sum(job.costs)) > self._batch_tokens:
                left = begun + before[service]
                if all_wait or service in full or (left and left + cost > self._max_inflight_tokens):
                    full.add(service)
                    all_wait = all_wait or (
                        service not in blocked and now - job.waiting_since >= self._model_swap_delay_s
                    )
                    continue
                before[service] += cost
            if job.dispatched < len(job.items):
                found.append(job)
        return found


def _remaining_tokens(jobs: Iterable[ScoreJob]) -> int:
    """Tokens that no batch has had yet."""
    return sum(sum(job.remaining_costs) for job in jobs)


def _group_by_service(ready: Sequence[ScoreJob]) -> _JobsByService:
    """The service of the first job first."""
    found: _JobsByService = {}
    for job in ready:
        found.setdefault(job.service, []).append(job)
    return found

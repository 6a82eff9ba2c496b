"""Decisions which items go to which device next. This module has no device and no clock."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from arl_core.control.batching import next_batch, next_budget
from arl_core.domain.model import Fence
from arl_gpu.queue.score_jobs import ScoreJob

__all__ = ["Batch", "BatchPart", "BatchScheduler", "DeviceState"]

REPLICA_BATCHES = 4
"""Backlog in batches from which a service on another device is also loaded onto an idle device."""
MAX_BATCH_FACTOR = 16
"""Upper limit of the learned batch budget, as a multiple of `batch_tokens`; bounds the cost of one wrong estimate."""
SWAP_WAIT_FACTOR = 2.0
"""Total waiting time that justifies a swap, as a multiple of `model_swap_delay_s`.

Higher values make fewer copies and longer waits (`tangram bench residency`).
"""


class BatchPart(NamedTuple):
    """Items of one action, from index `start` to before `stop`."""

    job: ScoreJob
    start: int
    stop: int

    @property
    def items(self) -> int:
        """Return the number of items."""
        return self.stop - self.start


Batch = Sequence[BatchPart]
_JobsByService = dict[str, list[ScoreJob]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """The state of a device when its next batch is formed."""

    number: int = 0
    resident: Collection[str] = ()
    """Services that are resident on the device."""
    restoring: Collection[str] = ()
    """Services that are being copied to the device."""
    replicas_elsewhere: Mapping[str, int] = field(default_factory=dict)
    """Number of other devices that have a service or are loading it, by service."""
    fitting: Collection[str] | None = None
    """Services that fit without an eviction; None for all."""
    blocked: Collection[str] = ()
    """Services that must not start here now."""
    members: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Numbers of the devices that compute a service together, by service. The first one takes its batches."""
    resident_on_group: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Services that are resident on any device of the group, by service."""


class _ServingPeriod(NamedTuple):
    service: str
    started_at: float


class BatchScheduler:
    """The queue of jobs, in the order in which they head a batch. Costs are in tokens, times by the monotonic clock.

    Services on the device go first, until the oldest action of another service has waited `model_swap_delay_s`. A
    service whose restore would evict one in use waits equally long. It waits less if the sum of its jobs' waiting times
    reaches `SWAP_WAIT_FACTOR` times that delay. A restored service keeps the device until every job that waited for it
    at that time was in a batch.

    A batch has `batch_tokens`. It can have more if the device computes more of the service within `batch_s`, up to the
    device's share of the backlog.

    Otherwise the queue is round-robin: after a batch, its jobs move to the end. An action of at most `batch_tokens` may
    start at once. Larger actions of a service start in order, while the remaining tokens of started, unblocked actions
    are at most `max_inflight_tokens`, or if nothing else remains. A waiting action's timeout does not run.
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
        """Learned tokens of a batch, by service and device number."""
        self._jobs: dict[Fence, ScoreJob] = {}
        """Jobs by fence; the one that has waited longest comes first."""
        self._serving: dict[int, _ServingPeriod] = {}
        """Serving period by device number."""
        self._served_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[ScoreJob]:
        return iter(self._jobs.values())

    def __contains__(self, fence: Fence) -> bool:
        return fence in self._jobs

    def get(self, fence: Fence) -> ScoreJob | None:
        """Return a job, or None."""
        return self._jobs.get(fence)

    def add(self, job: ScoreJob, *, now: float = 0.0) -> None:
        """Add a job at the end of the queue; `now` is by the monotonic clock."""
        job.waiting_since = now
        self._jobs[job.fence] = job

    def remove(self, fence: Fence) -> ScoreJob | None:
        """Remove a job; return None if it was removed before."""
        return self._jobs.pop(fence, None)

    def next_batch(self, device: DeviceState, *, now: float = 0.0) -> Batch:
        """Return the next batch, of one service; empty if this device should do nothing now.

        The items of the batch are not batched again. Raises `RuntimeError` if a ready job has no items left.
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
            raise RuntimeError("a ready job has no items left")
        for job, _, stop in parts:
            job.dispatched, job.waiting_since = stop, now
            self._jobs[job.fence] = self._jobs.pop(job.fence)
        self._served_at[service] = now
        return parts

    def record_duration(self, batch: Batch, number: int, seconds: float) -> None:
        """Record the duration of a batch on a device, and adjust its budget."""
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
        """Reset the budget after a failed batch, which may have been too large."""
        self._budgets.pop((batch[0].job.service, number), None)

    def forget_budgets_except(self, services: Collection[str], number: int) -> None:
        """Forget budgets of all other services on a device: the next time, they may be different models."""
        for service, at in [*self._budgets]:
            if at == number and service not in services:
                del self._budgets[service, at]

    def forget(self, service: str) -> None:
        """Forget a removed service."""
        self._served_at.pop(service, None)

    def _budget(self, service: str, number: int) -> int:
        return self._budgets.get((service, number), self._batch_tokens)

    def waiting_services(self, device: DeviceState, *, now: float = 0.0) -> list[str]:
        """Return services with work for this device now; the one with the oldest action comes first."""
        queue = _group_by_service(self._ready_jobs(device.blocked, now))
        return [service for service in queue if self._can_run_on(service, queue, device, now)]

    def next_check_at(self, device: DeviceState, *, now: float) -> float | None:
        """Return when a waiting service may be restored without another event; None if that will not happen."""
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
        """Choose the service of the next batch. `all_jobs` includes blocked services."""
        own = self._unfinished_service(device.number, all_jobs)
        if own in queue:
            return own
        if own is not None and own in device.members:
            return None  # the group's first device takes the batches
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
        """Return the service that a device was given to, while a job from before that time still waits."""
        turn = self._serving.get(number)
        if turn is None or turn.service not in all_jobs or all_jobs[turn.service][0].waiting_since >= turn.started_at:
            return None
        return turn.service

    def _can_use_group(self, service: str, all_jobs: _JobsByService, device: DeviceState) -> bool:
        """Return True if the other devices of the group are free for it; otherwise each batch would cause a swap."""
        numbers = device.members.get(service, ())
        return all(self._unfinished_service(number, all_jobs) in (None, service) for number in numbers)

    def _can_run_on(self, service: str, queue: _JobsByService, device: DeviceState, now: float) -> bool:
        if service in device.resident or service in device.restoring:
            return True
        jobs = queue[service]
        # A replica is worth its restore only if the backlog is large or the oldest job is overdue.
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
        """Return True if the backlog is too small for a replica on another device.

        Learned budgets raise the threshold to at most half of the in-flight limit, because only a part of that is
        ready.
        """
        largest = max((each for (name, _), each in self._budgets.items() if name == service), default=0)
        some = min(REPLICA_BATCHES * largest, self._max_inflight_tokens // 2)
        return _remaining_tokens(jobs) < max(REPLICA_BATCHES * self._batch_tokens, some)

    def _swap_allowed_at(self, jobs: Sequence[ScoreJob], now: float) -> float:
        """Return when these jobs have waited long enough for a swap, if no others arrive."""
        waited = sum(now - job.waiting_since for job in jobs)
        together = now + (SWAP_WAIT_FACTOR * self._model_swap_delay_s - waited) / len(jobs)
        return min(self._swap_due_at(jobs), together)

    def _swap_due_at(self, jobs: Sequence[ScoreJob]) -> float:
        """Return when the oldest of these jobs reaches the maximum delay of a swap."""
        return jobs[0].waiting_since + self._model_swap_delay_s

    def _has_idle_resident(self, service: str, queue: _JobsByService, device: DeviceState, now: float) -> bool:
        """Return True if no service is resident, or one was not needed for `model_swap_delay_s`."""
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
        """Return jobs with items left that have started or may start.

        A large job waits for earlier large jobs of its service. It also waits for those of another service that have
        waited `model_swap_delay_s`, so that they can start. It never waits for those of a blocked service.
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
    """Return the tokens of items that no batch has had."""
    return sum(sum(job.remaining_costs) for job in jobs)


def _group_by_service(ready: Sequence[ScoreJob]) -> _JobsByService:
    """Group jobs by service; the service of the first job comes first."""
    found: _JobsByService = {}
    for job in ready:
        found.setdefault(job.service, []).append(job)
    return found

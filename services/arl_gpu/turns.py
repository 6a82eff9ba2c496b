"""Whose items go to which device next. Knows no device, and the time only as it is told."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from arl_core.batching import next_batch, next_budget
from arl_core.fence import Fence
from arl_gpu.jobs import Job

__all__ = ["Batch", "Part", "Place", "Turns"]

REPLICA_BATCHES = 4
"""Of waiting work, from which on a service that another device holds is brought onto an idle one too."""
LARGEST_BATCH = 16
"""Times what a batch may have anyway: one that was thought to be cheap takes so much longer, and says so much more."""
PATIENCE = 2.0
"""More of it makes fewer copies and longer waits (`tangram bench residency`)."""


class Part(NamedTuple):
    """Items of one action, `start` to before `stop`."""

    job: Job
    start: int
    stop: int

    @property
    def items(self) -> int:
        return self.stop - self.start


Batch = Sequence[Part]
_Queue = dict[str, list[Job]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A device as its next batch is put together."""

    number: int = 0
    resident: Collection[str] = ()
    """Services that are on it."""
    restoring: Collection[str] = ()
    """Services that are on their way there."""
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    """How many other devices hold a service or are being given it, where any does."""
    fitting: Collection[str] | None = None
    """Services for which there is room without an eviction; None for all."""
    closed: Collection[str] = ()
    """Services of which nothing may begin here now, whatever waits for them."""
    members: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Numbers of the devices that compute a service together, the first of which takes its batches, by service."""
    beside: Mapping[str, Collection[str]] = field(default_factory=dict)
    """What is on all of these devices, by service."""


class _Turn(NamedTuple):
    service: str
    begun: float


class Turns:
    """Jobs in the order in which they head a batch; costs are in tokens, times by the monotonic clock.

    Services that are on the device go before those that would have to be restored, until the oldest action of these has
    waited `swap_wait_s`. Where one that is in use would have to leave for it, a service is restored only then, or once
    all that waits for it has together waited `PATIENCE` times as long. A service that was restored keeps the device
    until all that waited for it by then was in a batch.

    A batch has `batch_tokens`, or more of a service of which the device computes more within `batch_s`, where that is
    not more than the device's part of what waits for it.

    Beside that whoever was served goes behind all others. An action of at most `batch_tokens` may begin at once.
    Larger ones of a service begin in their order, while what is left of all that began and is not closed there is at
    most `begun_tokens`, or alone: the time of one that waits does not run.
    """

    def __init__(self, *, batch_tokens: int, begun_tokens: int, swap_wait_s: float = 0.0, batch_s: float = 0.0) -> None:
        self._batch_tokens, self._begun_tokens, self._swap_wait_s = batch_tokens, begun_tokens, swap_wait_s
        self._batch_s = batch_s
        self._budgets: dict[tuple[str, int], int] = {}
        """Tokens of a batch, by service and number of the device, where one was computed."""
        self._jobs: dict[Fence, Job] = {}
        """The one that has waited the longest first."""
        self._turns: dict[int, _Turn] = {}
        """By the number of the device."""
        self._served_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __contains__(self, fence: Fence) -> bool:
        return fence in self._jobs

    def get(self, fence: Fence) -> Job | None:
        return self._jobs.get(fence)

    def add(self, job: Job, *, now: float = 0.0) -> None:
        job.waits_since = now
        self._jobs[job.fence] = job

    def remove(self, fence: Fence) -> Job | None:
        """None where it is gone already."""
        return self._jobs.pop(fence, None)

    def next_batch(self, place: Place, *, now: float = 0.0) -> Batch:
        """Of one service; empty where this device should do nothing now. What is in it no later one has.

        Raises where a job waits and none of its items has a cost.
        """
        every = _by_service(self._ready(place.closed, now))
        queue = {name: jobs for name, jobs in every.items() if name not in place.closed}
        service = self._service(queue, every, place, now)
        if service is None:
            return []
        jobs = queue[service]
        groups = place.elsewhere.get(service, 0) // len(place.members.get(service, (place.number,)))
        share = -(-_left(jobs) // (1 + groups))
        budget = max(self._batch_tokens, min(self._budget(service, place.number), share))
        counts = next_batch([job.left for job in jobs], budget=budget)
        parts = [Part(job, job.given, job.given + count) for job, count in zip(jobs, counts, strict=True) if count]
        if not parts:
            raise RuntimeError("jobs wait of which nothing is left")
        for job, _, stop in parts:
            job.given, job.waits_since = stop, now
            self._jobs[job.fence] = self._jobs.pop(job.fence)
        self._served_at[service] = now
        return parts

    def took(self, batch: Batch, number: int, seconds: float) -> None:
        """The device to compute it."""
        service = batch[0].job.service
        self._budgets[service, number] = next_budget(
            self._budget(service, number),
            sum(sum(job.costs[start:stop]) for job, start, stop in batch),
            seconds,
            wanted_s=self._batch_s,
            least=self._batch_tokens,
            most=max(self._batch_tokens, min(LARGEST_BATCH * self._batch_tokens, self._begun_tokens)),
        )

    def failed(self, batch: Batch, number: int) -> None:
        """It may have been too large."""
        self._budgets.pop((batch[0].job.service, number), None)

    def forget_all_but(self, services: Collection[str], number: int) -> None:
        """What has none of these names in a device's memory may be another model when it comes there."""
        for service, at in [*self._budgets]:
            if at == number and service not in services:
                del self._budgets[service, at]

    def forget(self, service: str) -> None:
        """It was removed."""
        self._served_at.pop(service, None)

    def _budget(self, service: str, number: int) -> int:
        return self._budgets.get((service, number), self._batch_tokens)

    def waiting(self, place: Place, *, now: float = 0.0) -> list[str]:
        """Services with work for this device now, the one whose oldest action has waited the longest first."""
        queue = _by_service(self._ready(place.closed, now))
        return [service for service in queue if self._may_be_here(service, queue, place, now)]

    def next_look(self, place: Place, *, now: float) -> float | None:
        """When a service that waits may be restored though nothing else happens; None where nothing will change."""
        queue = self._open(place, now)
        times = (time for jobs in queue.values() for time in (self._ripe_at(jobs, now), self._due_at(jobs)))
        return min((time for time in times if time > now), default=None)

    def _open(self, place: Place, now: float) -> _Queue:
        ready = _by_service(self._ready(place.closed, now))
        return {name: jobs for name, jobs in ready.items() if name not in place.closed}

    def _service(self, queue: _Queue, every: _Queue, place: Place, now: float) -> str | None:
        """`every`: also what may not begin here."""
        own = self._unfinished(place.number, every)
        if own in queue:
            return own
        if own is not None and own in place.members:
            return None  # it was brought here for the batches that another device takes
        here = [
            each
            for each in queue
            if self._may_be_here(each, queue, place, now) and self._is_nobodys_turn_there(each, every, place)
        ]
        overdue = [each for each in here if now - queue[each][0].waits_since >= self._swap_wait_s]
        resident = [each for each in here if each in place.resident]
        coming = [each for each in here if each in place.restoring]
        chosen = next(iter(overdue or resident or coming or here), None)
        if chosen is not None and chosen not in resident:
            for number in place.members.get(chosen, (place.number,)):
                self._turns[number] = _Turn(chosen, now)
        return chosen

    def _unfinished(self, number: int, every: _Queue) -> str | None:
        """The service that a device was given for what waited for it by then, while some of that still does."""
        turn = self._turns.get(number)
        if turn is None or turn.service not in every or every[turn.service][0].waits_since >= turn.begun:
            return None
        return turn.service

    def _is_nobodys_turn_there(self, service: str, every: _Queue, place: Place) -> bool:
        """On the other devices that would compute it, too: to take one away would be a swap for each batch."""
        numbers = place.members.get(service, ())
        return all(self._unfinished(number, every) in (None, service) for number in numbers)

    def _may_be_here(self, service: str, queue: _Queue, place: Place, now: float) -> bool:
        if service in place.resident or service in place.restoring:
            return True
        jobs = queue[service]
        # A second copy of a service is worth its restore where there is much to do, or nobody came to do it.
        if service in place.elsewhere and self._is_little(service, jobs) and now < self._due_at(jobs):
            return False
        if place.fitting is None or service in place.fitting or self._someone_rests(service, queue, place, now):
            return True
        return now >= self._ripe_at(jobs, now)

    def _is_little(self, service: str, jobs: Sequence[Job]) -> bool:
        """For another device, beside those that hold it. No more than a part of what may have begun is ever ready."""
        largest = max((each for (name, _), each in self._budgets.items() if name == service), default=0)
        some = min(REPLICA_BATCHES * largest, self._begun_tokens // 2)
        return _left(jobs) < max(REPLICA_BATCHES * self._batch_tokens, some)

    def _ripe_at(self, jobs: Sequence[Job], now: float) -> float:
        """When these have waited for long enough, if no others come."""
        waited = sum(now - job.waits_since for job in jobs)
        together = now + (PATIENCE * self._swap_wait_s - waited) / len(jobs)
        return min(self._due_at(jobs), together)

    def _due_at(self, jobs: Sequence[Job]) -> float:
        """When the oldest of these has waited as long as any may."""
        return jobs[0].waits_since + self._swap_wait_s

    def _someone_rests(self, service: str, queue: _Queue, place: Place, now: float) -> bool:
        """A service that nobody has needed for a while is no loss, and neither is none."""
        there = place.beside.get(service, place.resident)
        if not there:
            return True
        needed = queue if service not in place.beside else {job.service for job in self._ready(place.closed, now)}
        resting = (each for each in there if each not in needed)
        return any(now - self._served_at.get(each, now - self._swap_wait_s) >= self._swap_wait_s for each in resting)

    def _ready(self, closed: Collection[str], now: float) -> list[Job]:
        """Those that have begun or may begin, and of which something is left.

        Large ones of a service wait for those of it that are before them; for another service's, which may not begin
        here for long, once these have waited `swap_wait_s`, so that they come to begin. For a closed one's, never.
        """
        begun = _left(job for job in self if job.has_begun and job.service not in closed)
        before: Counter[str] = Counter()
        found, full, all_wait = [], set[str](), False
        for job in self:
            service = job.service
            if not job.has_begun and (cost := sum(job.costs)) > self._batch_tokens:
                left = begun + before[service]
                if all_wait or service in full or (left and left + cost > self._begun_tokens):
                    full.add(service)
                    all_wait = all_wait or (service not in closed and now - job.waits_since >= self._swap_wait_s)
                    continue
                before[service] += cost
            if job.given < len(job.items):
                found.append(job)
        return found


def _left(jobs: Iterable[Job]) -> int:
    """Tokens that no batch has had yet."""
    return sum(sum(job.left) for job in jobs)


def _by_service(ready: Sequence[Job]) -> _Queue:
    """The service of the first job first."""
    found: _Queue = {}
    for job in ready:
        found.setdefault(job.service, []).append(job)
    return found

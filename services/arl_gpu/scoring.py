"""Batches across actions: the next one is put together when the device is free, of whatever waits by then."""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from arl_core.fence import Fence
from arl_core.residency import Residence
from arl_gpu.groups import Groups
from arl_gpu.jobs import Job, Report
from arl_gpu.judging import Judging
from arl_gpu.kinds.model import Entry, Item
from arl_gpu.metrics import GpuMetrics
from arl_gpu.seats import Scorer, Seat
from arl_gpu.turns import Batch, Part, Place, Turns

__all__ = ["Scoring"]

DRAIN_S = 10.0
LOOK_AGAIN_S = 0.01
DEATHS_APART = 2
"""Of workers, while the actions of one batch are scored apart; then it is not the actions that they die of."""

REFUSED_S = 5.0
"""How long a device is not asked again to make room, while another one may have some: pins and engines change."""
NEARNESS = tuple(Residence)

log = logging.getLogger(__name__)


class Scoring:
    """Every job ends in exactly one report, unless this process ends before.

    `failed` is called with the reason where no job would end any more.
    """

    def __init__(
        self,
        workers: Sequence[Scorer],
        report: Callable[[Report], None],
        *,
        failed: Callable[[str], None],
        turns: Turns,
        metrics: GpuMetrics,
        judging: Judging | None = None,
        groups: Groups | None = None,
    ) -> None:
        self._devices = [Seat(number, worker) for number, worker in enumerate(workers)]
        self._report, self._failed = report, failed
        self._jobs = turns
        self._metrics = metrics
        self._judging = judging or Judging({}, workers, lambda: ())
        self._groups = groups or Groups(workers)
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._troubles: dict[str, str] = {}
        self.batches: Counter[str] = Counter()
        self.scored: Counter[str] = Counter()
        """Items, by service."""

    @property
    def jobs(self) -> int:
        return len(self._jobs)

    @property
    def states(self) -> Mapping[str, Residence]:
        """Of each service, where it is nearest to a forward: all parts of it, where it has several."""
        found: dict[str, Residence] = {}
        for device in self._devices:
            for name in device.states:
                parts = [self._devices[at].states for at in self._groups.members(name, device.number)]
                state = min(
                    (each.get(name, Residence.COLD) for each in parts), key=NEARNESS.index, default=Residence.COLD
                )
                found[name] = max(found.get(name, Residence.COLD), state, key=NEARNESS.index)
        return found

    @property
    def used_bytes(self) -> int:
        return sum(device.used_bytes for device in self._devices)

    def health(self, service: str) -> str:
        """`ok`, or the code of what went wrong with its last batch.

        All projects read it; a message may quote an item.
        """
        return self._troubles.get(service, "ok")

    def forget(self, service: str) -> None:
        """What has its name from now on begins anew, but for what a batch of before still says."""
        for device in self._devices:
            device.refused.pop(service, None)
        self._troubles.pop(service, None)
        self.batches.pop(service, None)
        self.scored.pop(service, None)
        self._jobs.forget(service)

    def start(self) -> None:
        self._judging.start(self)
        for device in self._devices:
            task = asyncio.create_task(self._forever(device), name=f"scoring {device.number}")
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Give what is here some time to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._idle.wait()
        await self._judging.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for job in self._jobs:
            job.stop_timer()
        await asyncio.gather(*(device.worker.end() for device in self._devices))
        self._groups.close()

    def add(self, job: Job) -> None:
        self._jobs.add(job, now=time.monotonic())
        self._idle.clear()
        self.look_again()

    def cancel(self, fences: Iterable[Fence]) -> None:
        """They end now; what the device still computes of them is for nobody."""
        for fence in fences:
            if (job := self._jobs.get(fence)) is not None:
                self._end(job, "cancelled")

    def _time_out(self, job: Job) -> None:
        """However long a forward takes, and however many are before it, is no fault of the text that is scored."""
        message = f"{len(job.done)} of {len(job.items)} items were scored within {job.timeout_s:g} s"
        self._end(job, "infra_error", reason="score_timeout", message=message)

    async def _forever(self, device: Seat) -> None:
        while True:
            await self._something_to_do(device)
            while batch := self._next_batch(device):
                self._begin(batch)
                device.serves = batch[0].job.service
                try:
                    await self._run(device, batch)
                except Exception as error:
                    log.exception("a batch was not scored")
                    self._fail(batch, "forward_failed", f"{type(error).__name__}: {error}")
                device.serves = None
                self.look_again()

    def _next_batch(self, device: Seat) -> Batch:
        while device.handed or (device.parked and not self._is_busy(device, device.parked[0])):
            taken = (device.handed or device.parked).popleft()
            if batch := [part for part in taken if not self.is_over(part.job)]:
                return batch
        return self._jobs.next_batch(self._place(device), now=time.monotonic())

    async def _something_to_do(self, device: Seat) -> None:
        """Returns when something came or ended, or when a service has been waited for long enough."""
        look_at = self._jobs.next_look(self._place(device), now=time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if look_at is None else max(LOOK_AGAIN_S, look_at - time.monotonic())):
                await device.work.wait()
        device.work.clear()

    def _place(self, device: Seat) -> Place:
        number, parked = device.number, {batch[0].job.service for batch in device.parked}
        others = [other.refusing(time.monotonic()) for other in self._devices if other is not device]
        refused = {name for name in device.refusing(time.monotonic()) if any(name not in each for each in others)}
        makes_room = any(number in self._members(other, batch) for other in self._devices for batch in other.parked)
        stuck = {batch[0].job.service for other in self._devices for batch in other.parked}
        members = {name: self._groups.members(name, number) for name in self._groups.splits if name not in stuck}
        return Place(
            members=members,
            beside={name: self._resident_on(numbers) - {name} for name, numbers in members.items()},
            closed=parked
            | refused
            | self._groups.led_elsewhere(number)
            | self._judging.closed(number, makes_room=makes_room),
            number=number,
            resident=self._on_all(device, lambda each: each.services_in(Residence.RESIDENT)),
            restoring=self._on_all(device, lambda each: each.there),
            fitting=None if device.fitting is None else self._on_all(device, lambda each: each.fitting),
            elsewhere=Counter(
                name
                for other in self._devices
                if other is not device
                for name in other.holds
                if other.number not in self._groups.members(name, number)
            ),
        )

    def _resident_on(self, numbers: Sequence[int]) -> set[str]:
        return {name for at in numbers for name in self._devices[at].services_in(Residence.RESIDENT)}

    def _on_all(self, device: Seat, services_of: Callable[[Seat], Collection[str] | None]) -> set[str]:
        """Those of the device; of one that several devices compute, where it is so on all of them. None is all."""
        found = services_of(device) or ()
        others = {name: [self._devices[at] for at in self._groups.members(name, device.number)] for name in found}
        return {
            name
            for name in found
            if all((each := services_of(other)) is None or name in each for other in others[name])
        }

    def _members(self, device: Seat, batch: Batch) -> Sequence[int]:
        """Numbers of the devices that compute it."""
        return self._groups.members(batch[0].job.service, device.number)

    def _is_busy(self, device: Seat, batch: Batch) -> bool:
        return any(self._judging.is_busy(number) for number in self._members(device, batch))

    def is_over(self, job: Job) -> bool:
        return job.fence not in self._jobs

    def runs(self, job: Job) -> None:
        """Its own time passes from now on, where it does not yet."""
        if job.runs_since is None:
            job.runs_since = time.monotonic()
            job.timer = asyncio.get_running_loop().call_later(job.timeout_s, self._time_out, job)

    def answered(self, job: Job, at: int, entry: Entry) -> None:
        """An item of a judge's."""
        self.scored[job.service] += 1
        self._metrics.items.inc()
        self._take_in([Part(job, at, at + 1)], [entry], 0.0)

    def broke(self, job: Job, reason: str, message: str) -> None:
        self._fail([Part(job, 0, len(job.items))], reason, message)

    def give_up(self, services: Collection[str], reason: str, message: str) -> None:
        """Whatever waits for these; what was begun ends by itself."""
        for job in [each for each in self._jobs if each.service in services and not each.has_begun]:
            self.broke(job, reason, message)

    def waiting_on(self, number: int) -> Sequence[str]:
        return self._waiting(self._devices[number])

    def look_again(self) -> None:
        """Whatever came or ended may be work for any device."""
        for device in self._devices:
            device.work.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failed(f"scoring ended: {task.exception()!r}")

    def _begin(self, batch: Batch) -> None:
        """Time that an action waited for its first batch is not its own, nor is what an engine takes to wake."""
        has_engine = self._judging.serving(batch[0].job.service) is not None
        for job, _, _ in batch:
            if job.begun is None:
                job.begun = time.monotonic()
                job.timeline.wait_ended(job.begun)
            if not has_engine:
                self.runs(job)

    async def _run(self, device: Seat, batch: Batch) -> None:
        service = batch[0].job.service
        if (files := self._judging.serving(service)) is not None:
            self.batches[service] += 1
            self._judging.begin(files, batch)
            return
        items = [item for job, start, stop in batch for item in job.items[start:stop]]
        was_busy, begun = self._is_busy(device, batch), time.monotonic()
        answer = await self._answer(device, service, items)
        if answer.get("error") == "no_room" and self._is_put_off(device, batch, was_busy=was_busy):
            return
        device.computed(batch, begun, answer)
        if "error" not in answer:
            # What a function of one's own takes has nothing to do with an item's cost.
            if answer["tokens"]:
                self._jobs.took(batch, device.number, answer["model_s"])
            self._metrics.observe_batch(answer, actions=len(batch), items=len(items))
            self.batches[service] += 1
            self.scored[service] += len(items)
            self._take_in(batch, answer["entries"], answer["forward_cpu_s"] / len(items))
        else:
            self._jobs.failed(batch, device.number)
            await self._broke(device, batch, answer)

    def _is_put_off(self, device: Seat, batch: Batch, *, was_busy: bool) -> bool:
        """Until an engine is released, or to another device that may have room."""
        service, now = batch[0].job.service, time.monotonic()
        if was_busy or self._is_busy(device, batch):
            device.parked.append(batch)
            self._stand_still(batch)
            return True
        if service in self._groups.splits:
            return False
        device.refused[service] = now + REFUSED_S
        for job, _, _ in batch:
            job.refused_by.add(device.number)
        asked = set[int]().union(*(job.refused_by for job, _, _ in batch))
        others = [each for each in self._devices if each.number not in asked and service not in each.refusing(now)]
        if others:
            min(others, key=lambda other: len(other.handed)).handed.append(batch)
        return bool(others)

    def _stand_still(self, batch: Batch) -> None:
        """Of what nothing is computed, no time passes."""
        for job, _, _ in batch:
            if not job.done:
                job.stop_timer()
                job.runs_since = None

    async def _answer(self, device: Seat, service: str, items: Sequence[Item]) -> Mapping[str, Any]:
        """The workers', or what one of them died of."""
        found = await self._groups.score(service, device.number, items, self.waiting_on)
        for number, heard in found.heard.items():
            self.learn(number, heard)
        for number, message in found.died.items():
            self._lost(self._devices[number], f"{message}, with a batch of {service}")
        if found.died:
            device.deaths += 1
        self._troubles.pop(service, None)
        if "error" in found.answer:
            self._troubles[service] = found.answer["error"]
        return found.answer

    def _lost(self, device: Seat, message: str) -> None:
        log.warning("the worker died: %s", message)
        self._metrics.worker_deaths.inc()
        device.fitting = None
        device.states, device.used_bytes = dict.fromkeys(device.states, Residence.COLD), 0

    def learn(self, number: int, answer: Mapping[str, Any]) -> None:
        """What is on a device now, as its worker said with any answer."""
        device = self._devices[number]
        self._judging.hear(number, answer)
        device.states = {name: Residence(state) for name, state in answer["states"].items()}
        device.used_bytes = answer["used_bytes"]
        device.fitting = set(answer["fitting"]) if "fitting" in answer else None
        self._jobs.forget_all_but(
            {name for name, state in device.states.items() if state is not Residence.COLD}, number
        )
        if answer["moves"]:
            self._metrics.observe_moves(answer["moves"])

    def _waiting(self, device: Seat) -> Sequence[str]:
        return self._jobs.waiting(self._place(device), now=time.monotonic())

    async def _broke(self, device: Seat, batch: Batch, answer: Mapping[str, Any]) -> None:
        """What is wrong with one action's items must not be the end of the others."""
        if len(batch) == 1:
            self._fail(batch, answer["error"], answer["message"])
            return
        before = device.deaths
        for at, part in enumerate(batch):
            if device.deaths - before >= DEATHS_APART:
                self._fail(batch[at:], "worker_died", "workers die of whatever they are given")
                return
            if part.job.fence in self._jobs:
                await self._run(device, [part])

    def _take_in(self, batch: Batch, entries: Sequence[Entry], cpu_s: float) -> None:
        begin = 0
        for part in batch:
            job = part.job
            job.done |= zip(range(part.start, part.stop), entries[begin : begin + part.items], strict=True)
            job.cpu_s += part.items * cpu_s
            begin += part.items
            if len(job.done) == len(job.items):
                self._finish(job)

    def _finish(self, job: Job) -> None:
        entries = job.entries
        scores = json.dumps(entries)
        if any("error" not in entry for entry in entries):
            self._end(job, "ok", scores=scores)
        else:
            message = entries[0]["error"]["message"]
            self._end(job, "user_error", reason="no_item_scored", message=message, scores=scores)

    def _fail(self, batch: Batch, reason: str, message: str) -> None:
        log.warning("a batch of %s with %d actions failed: %s: %s", batch[0].job.service, len(batch), reason, message)
        for job, _, _ in batch:
            self._end(job, "infra_error", reason=reason, message=message)

    def _end(self, job: Job, outcome: Any, **found: Any) -> None:
        """Once: whoever comes later finds that it is gone."""
        if self._jobs.remove(job.fence) is None:
            return
        job.stop_timer()
        for task in job.tasks:
            task.cancel()
        if not self._jobs:
            self._idle.set()
        now = time.monotonic()
        run_us, cpu_us = int((now - (job.runs_since or now)) * 1e6), int(job.cpu_s * 1e6)
        times: dict[str, Any] = {"run_us": run_us, "cpu_us": cpu_us, "timeline": job.timeline.written(now)}
        self._report(Report(fence=job.fence, outcome=outcome, **times, **found))

"""The GPU manager: slots of reward services, and the device that they are scored on.

An action holds a slot of its service; the device belongs to the services that are resident on it. The contract itself
is `arl_manager`'s. Nothing outlives this process, so each start is another epoch, and what an earlier one held is
taken back by the scheduler.
"""

import asyncio
import json
import logging
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from arl_core.fence import Fence
from arl_core.model import slots_of
from arl_core.residency import Residence
from arl_gpu import repository
from arl_gpu.groups import GRACE_S, Groups
from arl_gpu.jobs import Report, job_of
from arl_gpu.judging import Judging
from arl_gpu.metrics import GpuMetrics
from arl_gpu.registrations import Wish
from arl_gpu.registry import Registry
from arl_gpu.scoring import Scoring
from arl_gpu.seats import Scorer
from arl_gpu.services import ServiceFiles
from arl_gpu.settings import GpuSettings
from arl_gpu.turns import Turns
from arl_kit.metrics import Metrics
from arl_kit.peers import Peers
from arl_manager.counted import CountedNode
from arl_manager.grants import Grants, Settled
from arl_store.tx import Row, Store, WriteTx
from arl_store.wake import Notifier

__all__ = ["Manager"]

log = logging.getLogger(__name__)


class Manager(CountedNode[Report]):
    """Answers `arl_manager.grants.Hardware`."""

    def __init__(
        self,
        store: Store,
        peers: Peers,
        notifier: Notifier,
        workers: Sequence[Scorer],
        files: Sequence[ServiceFiles],
        settings: GpuSettings,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        super().__init__()
        self._late: set[Fence] = set()
        """Those that wait for what was registered."""
        metrics = metrics or Metrics()
        metrics.on_scrape(self._show)
        self._metrics = GpuMetrics(metrics)
        judging = Judging(settings.engines, workers, lambda: self.registry.judges)
        self.scoring = Scoring(
            workers,
            self._report,
            failed=self._fail,
            turns=Turns(
                batch_tokens=settings.batch_tokens,
                batch_s=settings.batch_s,
                begun_tokens=settings.begun_tokens,
                swap_wait_s=settings.swap_wait_s,
            ),
            metrics=self._metrics,
            judging=judging,
            # Of CPU devices one that has not noticed reads its weights, and will.
            groups=Groups(
                workers,
                lambda: self.registry.splits,
                grace_s=settings.batch_limit_s if "cpu" in settings.devices else GRACE_S,
            ),
        )
        self._judging = judging
        self.registry = Registry(
            files,
            workers,
            settings.models,
            learn=self.scoring.learn,
            is_idle=self._is_idle,
            forgotten=self.scoring.forget,
            engines={name: engine.device for name, engine in settings.engines.items()},
            alike=settings.alike,
        )
        self.set_capacity(self._slots())
        self._grants: Grants[Report] = Grants(
            self, store=store, peers=peers, notifier=notifier, settings=settings, metrics=metrics
        )
        self._publishing = asyncio.Lock()
        self._said: tuple[list[dict[str, Any]], dict[str, int]] = [], {}
        self._counted, self._counted_at = self._counters(), float("-inf")
        self.failed: str | None = "the manager has not registered yet"

    async def _show(self) -> None:
        self._metrics.show_residency(self.scoring.states, used_bytes=self.scoring.used_bytes)

    async def start(self) -> None:
        """Register with the services that there are, then beat."""
        node = _description(self._settings, self.capacity)
        await self._grants.until_name_is_free(node)
        async with self._store.write() as tx:
            await self._grants.register(tx, node)
            await self._say(tx)
        self.scoring.start()
        self._grants.begin(name="gpu-heartbeat")
        self.failed = None

    async def stop(self) -> None:
        await self._grants.stop_looking()
        await self.scoring.stop()
        await self._grants.end()

    async def poll(self) -> bool:
        await self._publish()
        before = self.fences
        held = await self._read()
        await self._grants.start_found(held, before=before)
        await self._grants.end_unwanted(held, before=before)
        if self.registry.is_behind:
            self._grants.in_background(self._carry_out())
        return bool(held)

    async def start_rows(self, fences: Sequence[Fence]) -> Sequence[Row]:
        async with self._store.statement() as tx:
            return await repository.start(tx, fences, epoch=self.epoch)

    async def load(self, ids: Sequence[UUID]) -> Sequence[Row]:
        async with self._store.read() as tx:
            return await repository.load(tx, ids, epoch=self.epoch)

    async def launch(self, rows: Mapping[Fence, Row]) -> None:
        if late := self._launch(rows):
            self._late.update(late)
            self._grants.in_background(self._launch_late(late))

    def _launch(self, rows: Mapping[Fence, Row]) -> dict[Fence, Row]:
        """Those that are left: their service was registered since this node last heard of it."""
        late: dict[Fence, Row] = {}
        longest = {each.name: each.max_tokens for each in self.registry.offered}
        for fence, row in rows.items():
            if fence not in self._held:
                continue
            if row.cancel or self._grants.is_killed(fence):
                self._report(Report(fence=fence, outcome="cancelled"))
                continue
            try:
                job = job_of(row, longest)
            except (LookupError, TypeError, ValueError) as error:
                message = f"its items can't be read: {type(error).__name__}: {error}"
                self._report(Report(fence=fence, outcome="infra_error", reason="setup_failed", message=message))
            else:
                if self.registry.offers(job.service, row.registered_at):
                    self.scoring.add(job)
                else:
                    late[fence] = row
        return late

    async def _launch_late(self, rows: Mapping[Fence, Row]) -> None:
        """Scored by what has the name now, and never by what had it before."""
        try:
            await self._read()
        except Exception:
            log.exception("what is registered could not be read; what waits for it is left to the next poll")
            self._grants.set_aside(self._no_longer_late(rows))
            return
        try:
            await self._offer_all()
        except Exception:
            log.exception("what is registered was not carried out")
        for fence, row in self._launch(self._no_longer_late(rows)).items():
            self._report(self._not_offered(fence, row))

    def _no_longer_late(self, rows: Mapping[Fence, Row]) -> dict[Fence, Row]:
        """Without those that were killed meanwhile, and reported."""
        still = {fence: row for fence, row in rows.items() if fence in self._late}
        self._late -= still.keys()
        return still

    def _not_offered(self, fence: Fence, row: Row) -> Report:
        reason, _, said = self.registry.health.get(json.loads(row.payload)["service"], "").partition(": ")
        if reason == "worker_died":
            message = f"the worker died before it had its service: {said}"
        else:
            reason, message = "service_changed", "its service was registered anew, and this node does not offer it now"
        return Report(fence=fence, outcome="infra_error", reason=reason, message=message)

    async def kill(self, fences: Sequence[Fence]) -> None:
        self.scoring.cancel(fences)
        for fence in self._late.intersection(fences):
            self._late.discard(fence)
            self._report(Report(fence=fence, outcome="cancelled"))

    async def settle(self, reports: Sequence[Report]) -> Settled:
        async with self._store.statement() as tx:
            return await repository.settle(tx, reports, epoch=self.epoch)

    def _report(self, report: Report) -> None:
        self._grants.in_background(self._grants.settle(report))

    def _fail(self, reason: str) -> None:
        """Nothing would be scored any more: the supervisor starts this process anew."""
        self.failed = reason
        log.critical("%s; this manager ends, to be started anew", reason)
        signal.raise_signal(signal.SIGTERM)

    async def _read(self) -> list[dict[str, Any]]:
        """What this node holds by its rows. What is wished is known with it: it would be old after the next await."""
        read = self.registry.next_read()
        async with self._store.read() as tx:
            held, wishes = await repository.poll(tx, node_id=self.node_id, epoch=self.epoch)
        self.registry.wished(wishes, read=read)
        return held

    async def _carry_out(self) -> None:
        await self._offer_all()
        await self.registry.move_all()
        await self._publish()

    async def _offer_all(self) -> None:
        """And say it at once: a slot of what is gone would be granted until the poll after the next."""
        await self.registry.offer_all()
        await self._publish()

    async def _publish(self) -> None:
        """What has changed since it was said. One at a time: what was described first is never written last."""
        async with self._publishing:
            if (self._described(), self._slots()) == self._said and not self._is_to_count():
                return
            async with self._store.statement() as tx:
                await self._say(tx)

    async def _say(self, tx: WriteTx) -> None:
        services, slots = self._described(), self._slots()
        counted, counted_at = self._counters(), time.monotonic()
        said = json.dumps([each | self._counts(each["name"]) for each in services])
        await repository.publish_services(tx, said, json.dumps(slots), node_id=self.node_id, epoch=self.epoch)
        self.set_capacity(slots)
        self._said = services, slots
        self._counted, self._counted_at = counted, counted_at

    def _is_to_count(self) -> bool:
        """Something was scored since that was last written, long enough ago."""
        counted_ago_s = time.monotonic() - self._counted_at
        return counted_ago_s >= self._settings.count_every_s and self._counters() != self._counted

    def _counters(self) -> "tuple[Counter[str], Counter[str]]":
        return self.scoring.batches.copy(), self.scoring.scored.copy()

    def _counts(self, service: str) -> dict[str, int]:
        return {"batches": self.scoring.batches[service], "scores": self.scoring.scored[service]}

    def _slots(self) -> dict[str, int]:
        return {slots_of(name): count for name, count in self.registry.slots(self._settings.slots).items()}

    def _is_idle(self, service: str) -> bool:
        return not any(slots_of(service) in held for held in self._held.values())

    def _health(self, service: ServiceFiles) -> str:
        return self.scoring.health(service.name) if service.engine is None else self._judging.health(service)

    def _described(self) -> list[dict[str, Any]]:
        states, health = self.scoring.states, self.registry.health
        offered = [
            {
                "name": each.name,
                "kind": each.kind,
                "registered": each.registered_at is not None,
                "registered_at": each.registered_at,
                "model": each.package,
                "max_tokens": each.max_tokens,
                "device": _kind(self._settings),
                "slots": self._settings.slots,
                "state": states.get(each.name, Residence.COLD),
                "health": health.get(each.name) or self._health(each),
            }
            for each in self.registry.offered
        ]
        return offered + [self._described_refused(each, health[each.name]) for each in self.registry.refused]

    def _described_refused(self, wish: Wish, health: str) -> dict[str, Any]:
        """It has no slots, so nothing waits for this node; its health is for whoever registered it."""
        return {
            "name": wish.name,
            "kind": wish.kind,
            "registered": True,
            "registered_at": wish.registered_at,
            "model": wish.source,
            "max_tokens": None,
            "device": _kind(self._settings),
            "slots": 0,
            "state": Residence.COLD,
            "health": health,
        }


def _description(settings: GpuSettings, capacity: Mapping[str, int]) -> dict[str, Any]:
    """This node's row."""
    return {
        "name": settings.node_name,
        "kind": "gpu",
        "url": settings.url,
        "epoch": uuid4(),
        "driver": _kind(settings),
        "capacity": json.dumps(capacity),
        "topology": json.dumps({"devices": [_device(name, settings) for name in settings.devices]}),
        "enforced": "[]",
        "templates": "[]",
    }


def _kind(settings: GpuSettings) -> str:
    """Of its devices: `cpu` or `cuda`."""
    return settings.devices[0].partition(":")[0]


def _device(name: str, settings: GpuSettings) -> dict[str, Any]:
    """How large a GPU is, its worker learns when it opens it."""
    return {"kind": "cpu", "memory_mib": settings.device_mib} if name == "cpu" else {"kind": "cuda", "name": name}

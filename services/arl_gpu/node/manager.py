"""The GPU manager: slots of reward services, and the devices that score their items.

An action occupies a slot of its service. The services that are resident on a device share it. `arl_node` implements the
grant lifecycle. No state outlives this process: each start is a new epoch, and the scheduler reclaims the allocations
of earlier epochs.
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

from arl_core.domain.model import Fence, slot_resource
from arl_core.residency.occupancy import ResidencyState
from arl_gpu.catalog.registrations import DesiredService
from arl_gpu.catalog.service_files import ServiceFiles
from arl_gpu.dispatch.device_groups import PEER_FAILURE_GRACE_S, DeviceGroups
from arl_gpu.dispatch.device_slot import DeviceWorker
from arl_gpu.dispatch.dispatcher import BatchDispatcher
from arl_gpu.dispatch.metrics import GpuMetrics
from arl_gpu.engines.engine_dispatcher import EngineDispatcher
from arl_gpu.node import repository
from arl_gpu.node.service_reconciler import ServiceReconciler
from arl_gpu.queue.batch_scheduler import BatchScheduler
from arl_gpu.queue.score_jobs import ScoreReport, parse_job
from arl_gpu.settings import GpuSettings
from arl_kit.metrics import Metrics
from arl_kit.service_client import ServiceClient
from arl_node.grants import GrantLifecycle
from arl_node.slot_node import SlotNode
from arl_store.tx import PostgresStore, Row, WriteTx
from arl_store.wake import WakeNotifier

__all__ = ["GpuManager"]

log = logging.getLogger(__name__)


class GpuManager(SlotNode[ScoreReport]):
    """The GPU node's implementation of `arl_node.grants.NodeBackend`."""

    def __init__(
        self,
        store: PostgresStore,
        service_client: ServiceClient,
        notifier: WakeNotifier,
        workers: Sequence[DeviceWorker],
        files: Sequence[ServiceFiles],
        settings: GpuSettings,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        super().__init__()
        self._awaiting_registration: set[Fence] = set()
        """Fences of actions that wait until this node has read their service's registration."""
        metrics = metrics or Metrics()
        metrics.add_scrape_hook(self._update_gauges)
        self._metrics = GpuMetrics(metrics)
        judging = EngineDispatcher(settings.engines, workers, lambda: self.reconciler.judges)
        self.dispatcher = BatchDispatcher(
            workers,
            self._report,
            on_failure=self._shut_down,
            scheduler=BatchScheduler(
                batch_tokens=settings.batch_tokens,
                batch_s=settings.batch_s,
                max_inflight_tokens=settings.max_inflight_tokens,
                model_swap_delay_s=settings.model_swap_delay_s,
            ),
            metrics=self._metrics,
            engine_dispatcher=judging,
            # The worker of a CPU device that has not detected the failure still reads its weights, and will detect it
            # later.
            groups=DeviceGroups(
                workers,
                lambda: self.reconciler.splits,
                grace_s=settings.batch_limit_s if "cpu" in settings.devices else PEER_FAILURE_GRACE_S,
            ),
        )
        self._engine_dispatcher = judging
        self.reconciler = ServiceReconciler(
            files,
            workers,
            settings.models,
            on_response=self.dispatcher.update_device,
            is_idle=self._is_idle,
            on_forgotten=self.dispatcher.forget,
            engines={name: engine.device for name, engine in settings.engines.items()},
            same_class_devices=settings.same_class_devices,
        )
        self.set_capacity(self._slots())
        self._grants: GrantLifecycle[ScoreReport] = GrantLifecycle(
            self, store=store, service_client=service_client, notifier=notifier, settings=settings, metrics=metrics
        )
        self._publish_lock = asyncio.Lock()
        self._published: tuple[list[dict[str, Any]], dict[str, int]] = [], {}
        self._published_counters, self._counters_published_at = self._snapshot_counters(), float("-inf")
        self.failed: str | None = "the manager has not registered yet"

    async def _update_gauges(self) -> None:
        self._metrics.set_residency(self.dispatcher.states, used_bytes=self.dispatcher.used_bytes)

    async def start(self) -> None:
        """Register the node with its services, then start the heartbeat."""
        node = _node_row(self._settings, self.capacity)
        await self._grants.prepare_registration(node)
        async with self._store.write() as tx:
            await self._grants.register(tx, node)
            await self._write_services(tx)
        self.dispatcher.start()
        self._grants.start(name="gpu-heartbeat")
        self.failed = None

    async def stop(self) -> None:
        """Stop polling, give running jobs time to end and stop the heartbeat."""
        await self._grants.stop_polling()
        await self.dispatcher.stop()
        await self._grants.stop()

    async def poll(self) -> bool:
        """Publish changes, start new grants, cancel jobs and reconcile services. Return True if there is work."""
        await self._publish()
        before = self.fences
        held = await self._read_rows()
        await self._grants.start_from_poll(held, allocated_before=before)
        await self._grants.kill_lost_or_cancelled(held, allocated_before=before)
        if self.reconciler.has_pending_changes:
            self._grants.run_in_background(self._reconcile())
        return bool(held)

    async def start_rows(self, fences: Sequence[Fence]) -> Sequence[Row]:
        """Commit `granted -> running` and return the rows that changed."""
        async with self._store.statement() as tx:
            return await repository.start(tx, fences, epoch=self.epoch)

    async def load(self, ids: Sequence[UUID]) -> Sequence[Row]:
        """Return running rows of this node."""
        async with self._store.read() as tx:
            return await repository.load(tx, ids, epoch=self.epoch)

    async def launch(self, rows: Mapping[Fence, Row]) -> None:
        """Queue the jobs of running rows. A job that cannot be scored is reported."""
        if late := self._launch(rows):
            self._awaiting_registration.update(late)
            self._grants.run_in_background(self._launch_after_refresh(late))

    def _launch(self, rows: Mapping[Fence, Row]) -> dict[Fence, Row]:
        """Start the rows whose service is offered. Return the rows whose service was registered since the last poll."""
        late: dict[Fence, Row] = {}
        longest = {each.name: each.max_tokens for each in self.reconciler.offered}
        for fence, row in rows.items():
            if fence not in self._resources_by_fence:
                continue
            if row.cancel or self._grants.is_killed(fence):
                self._report(ScoreReport(fence=fence, outcome="cancelled"))
                continue
            try:
                job = parse_job(row, longest)
            except (LookupError, TypeError, ValueError) as error:
                message = f"the items of the action cannot be parsed: {type(error).__name__}: {error}"
                self._report(ScoreReport(fence=fence, outcome="infra_error", reason="setup_failed", message=message))
            else:
                if self.reconciler.is_offered(job.service, row.registered_at):
                    self.dispatcher.add(job)
                else:
                    late[fence] = row
        return late

    async def _launch_after_refresh(self, rows: Mapping[Fence, Row]) -> None:
        """Refresh the registrations, then score the rows with the current service of that name."""
        try:
            await self._read_rows()
        except Exception:
            log.exception(
                "the registered services could not be read; actions that wait for them start after the next poll"
            )
            self._grants.release_unlaunched(self._take_awaiting(rows))
            return
        try:
            await self._apply_offers()
        except Exception:
            log.exception("changes of the registered services could not be applied")
        for fence, row in self._launch(self._take_awaiting(rows)).items():
            self._report(self._not_offered_report(fence, row))

    def _take_awaiting(self, rows: Mapping[Fence, Row]) -> dict[Fence, Row]:
        """Return the rows that still wait, without those that were cancelled and reported in the meantime."""
        still = {fence: row for fence, row in rows.items() if fence in self._awaiting_registration}
        self._awaiting_registration -= still.keys()
        return still

    def _not_offered_report(self, fence: Fence, row: Row) -> ScoreReport:
        reason, _, said = self.reconciler.health.get(json.loads(row.payload)["service"], "").partition(": ")
        if reason == "worker_died":
            message = f"the worker died before it had loaded the service: {said}"
        else:
            reason, message = "service_changed", "the service was registered again, and this node does not offer it now"
        return ScoreReport(fence=fence, outcome="infra_error", reason=reason, message=message)

    async def kill(self, fences: Sequence[Fence]) -> None:
        """Cancel jobs; each still reports."""
        self.dispatcher.cancel(fences)
        for fence in self._awaiting_registration.intersection(fences):
            self._awaiting_registration.discard(fence)
            self._report(ScoreReport(fence=fence, outcome="cancelled"))

    async def settle(self, reports: Sequence[ScoreReport], *, epoch: UUID) -> Sequence[Row]:
        """Commit outcomes and return the rows that settled or were re-queued."""
        async with self._store.statement() as tx:
            return await repository.settle(tx, reports, epoch=epoch)

    def encode_report(self, report: ScoreReport) -> bytes:
        """Return the report as bytes for the spool."""
        return report.encode()

    def decode_report(self, data: bytes) -> ScoreReport:
        """Return the report of `encode_report`."""
        return ScoreReport.decode(data)

    def _report(self, report: ScoreReport) -> None:
        self._grants.run_in_background(self._grants.settle(report))

    def _shut_down(self, reason: str) -> None:
        """Shut down this process so that the supervisor restarts it; no action would be scored any more."""
        self.failed = reason
        log.critical("%s; this manager exits so that it is restarted", reason)
        signal.raise_signal(signal.SIGTERM)

    async def _read_rows(self) -> list[dict[str, Any]]:
        """Read this node's active rows and the desired services.

        Both come from one snapshot and are applied before the next await.
        """
        read = self.reconciler.begin_read()
        async with self._store.read() as tx:
            held, wishes = await repository.poll(tx, node_id=self.node_id, epoch=self.epoch)
        self.reconciler.set_desired(wishes, read=read)
        return held

    async def _reconcile(self) -> None:
        await self._apply_offers()
        await self.reconciler.apply_moves()
        await self._publish()

    async def _apply_offers(self) -> None:
        """Apply the offers and publish them at once.

        Otherwise the scheduler could grant slots of a removed service until the poll after the next.
        """
        await self.reconciler.apply_offers()
        await self._publish()

    async def _publish(self) -> None:
        """Publish the services and slots if they changed. The lock prevents an older write after a newer one."""
        async with self._publish_lock:
            if (self._describe_services(), self._slots()) == self._published and not self._has_due_counters():
                return
            async with self._store.statement() as tx:
                await self._write_services(tx)

    async def _write_services(self, tx: WriteTx) -> None:
        services, slots = self._describe_services(), self._slots()
        counted, counted_at = self._snapshot_counters(), time.monotonic()
        said = json.dumps([each | self._service_counters(each["name"]) for each in services])
        await repository.publish_services(tx, said, json.dumps(slots), node_id=self.node_id, epoch=self.epoch)
        self.set_capacity(slots)
        self._published = services, slots
        self._published_counters, self._counters_published_at = counted, counted_at

    def _has_due_counters(self) -> bool:
        """Return True if scores are unpublished and `counter_flush_s` has passed since the last write."""
        counted_ago_s = time.monotonic() - self._counters_published_at
        return counted_ago_s >= self._settings.counter_flush_s and self._snapshot_counters() != self._published_counters

    def _snapshot_counters(self) -> "tuple[Counter[str], Counter[str]]":
        return self.dispatcher.batches.copy(), self.dispatcher.items_scored.copy()

    def _service_counters(self, service: str) -> dict[str, int]:
        return {"batches": self.dispatcher.batches[service], "scores": self.dispatcher.items_scored[service]}

    def _slots(self) -> dict[str, int]:
        return {slot_resource(name): count for name, count in self.reconciler.slots(self._settings.slots).items()}

    def _is_idle(self, service: str) -> bool:
        return not any(slot_resource(service) in held for held in self._resources_by_fence.values())

    def _health(self, service: ServiceFiles) -> str:
        return (
            self.dispatcher.health(service.name) if service.engine is None else self._engine_dispatcher.health(service)
        )

    def _describe_services(self) -> list[dict[str, Any]]:
        states, health = self.dispatcher.states, self.reconciler.health
        offered = [
            {
                "name": each.name,
                "kind": each.kind,
                "registered": each.registered_at is not None,
                "registered_at": each.registered_at,
                "model": each.package,
                "max_tokens": each.max_tokens,
                "device": _driver_name(self._settings),
                "slots": self._settings.slots,
                "state": states.get(each.name, ResidencyState.COLD),
                "health": health.get(each.name) or self._health(each),
            }
            for each in self.reconciler.offered
        ]
        return offered + [self._describe_refused(each, health[each.name]) for each in self.reconciler.refused]

    def _describe_refused(self, desired: DesiredService, health: str) -> dict[str, Any]:
        """Describe a service that this node cannot offer. It has no slots; its health tells the operator the reason."""
        return {
            "name": desired.name,
            "kind": desired.kind,
            "registered": True,
            "registered_at": desired.registered_at,
            "model": desired.source,
            "max_tokens": None,
            "device": _driver_name(self._settings),
            "slots": 0,
            "state": ResidencyState.COLD,
            "health": health,
        }


def _node_row(settings: GpuSettings, capacity: Mapping[str, int]) -> dict[str, Any]:
    """Return this node's row."""
    return {
        "name": settings.node_name,
        "kind": "gpu",
        "url": settings.url,
        "epoch": uuid4(),
        "driver": _driver_name(settings),
        "capacity": json.dumps(capacity),
        "topology": json.dumps({"devices": [_describe_device(name, settings) for name in settings.devices]}),
        "enforced": "[]",
        "templates": "[]",
    }


def _driver_name(settings: GpuSettings) -> str:
    """Return the driver of the node's devices: `cpu` or `cuda`."""
    return settings.devices[0].partition(":")[0]


def _describe_device(name: str, settings: GpuSettings) -> dict[str, Any]:
    """Describe a device. The memory of a GPU is unknown until its worker opens it."""
    return {"kind": "cpu", "memory_mib": settings.device_mib} if name == "cpu" else {"kind": "cuda", "name": name}

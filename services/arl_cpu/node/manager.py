"""The CPU manager: the allocations of its node and the execution of attempts. `arl_node` defines the contract.

The manager decides on capacity: a grant that does not fit its free resources goes back to the queue.
"""

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from arl_core.domain.model import Fence
from arl_cpu.contract.executor import (
    EnvironmentLostEvent,
    ExecSpec,
    ExecutionReport,
    Executor,
    ExecutorState,
    RunningAttempt,
    UnusedCoresEvent,
)
from arl_cpu.contract.launcher_protocol import decode_report, encode_report
from arl_cpu.egress.node_networks import NodeNetworks
from arl_cpu.images.node_images import NodeImages
from arl_cpu.node import exec_specs, repository
from arl_cpu.node.allocations import AttemptAllocation, NodeAllocations
from arl_cpu.node.attempt_resizer import AttemptResizer
from arl_cpu.node.inventory import TemplateInventory, node_capacity, node_row, read_numa_nodes, usable_cores
from arl_cpu.node.metrics import CpuMetrics
from arl_cpu.node.shared_cores import SharedCores
from arl_cpu.node.snapshots import NodeSnapshots
from arl_cpu.node.transfers import FileTransfers
from arl_cpu.settings import CpuSettings
from arl_kit.metrics import Metrics
from arl_kit.service_client import ServiceClient
from arl_node.grants import ActiveActionRow, GrantLifecycle, grant_of
from arl_store.tx import PostgresStore, Row
from arl_store.wake import WakeNotifier
from arl_wire.internal.node import CriticalChangePayload, GrantPayload, ResizePayload, ResizeResult

__all__ = ["CpuManager"]

log = logging.getLogger(__name__)


class CpuManager:
    """The CPU implementation of `arl_node.grants.NodeBackend`."""

    def __init__(
        self,
        store: PostgresStore,
        peers: ServiceClient,
        notifier: WakeNotifier,
        executor: Executor,
        settings: CpuSettings,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._settings = settings
        self._cores = usable_cores(settings)
        self._numa_nodes = {} if settings.driver == "simulated" else read_numa_nodes(self._cores)
        capacity = node_capacity(settings, self._cores)
        self._allocations = NodeAllocations(capacity, self._cores, self._numa_nodes, shares_cores=settings.shares_cores)
        self._shared_cores = SharedCores(
            self._allocations, executor, record=self._record_reclaimable, notify=self._notify_of_room
        )
        self._resizer = AttemptResizer(self._allocations, executor, self._shared_cores.apply)
        self.transfers = FileTransfers(executor, self._settle_in_background)
        how: Mapping[str, Any] = {"node_name": settings.node_name, "max_mib": settings.snapshots_mib}
        self.snapshots = NodeSnapshots(settings.snapshots_dir, **how, store=store, executor=executor)
        self._images = NodeImages(store, settings, self._notify_of_room)
        metrics = metrics or Metrics()
        self._metrics = CpuMetrics(metrics)
        self._networks = NodeNetworks(executor, metrics)
        metrics.add_scrape_hook(self._update_gauges)
        self._grants: GrantLifecycle[ExecutionReport] = GrantLifecycle(
            self, store=store, service_client=peers, notifier=notifier, settings=settings, metrics=metrics
        )
        self._event_task: asyncio.Task[None] | None = None
        self._enforced: frozenset[str] = frozenset()
        self._templates = TemplateInventory(None, can_use=False)
        self.failed: str | None = "the manager has not registered yet"

    @property
    def node_id(self) -> int:
        """Return the number of the node in the database."""
        return self._grants.node_id

    @property
    def epoch(self) -> UUID:
        """Return the epoch of this registration."""
        return self._grants.epoch

    @property
    def fenced(self) -> str | None:
        """Return the reason why this node may not start actions, or None."""
        return self._grants.fenced

    async def start(self) -> None:
        """Connect to the executor, register, adopt the state of an earlier process, then start the heartbeat."""
        state = await self._executor.connect()
        state = replace(state, capabilities=(*state.capabilities, self._images.capability(state.capabilities)))
        self._enforced = frozenset(each.name for each in state.capabilities if each.level == "enforced")
        can_use = any(each.name == "templates" and each.level != "absent" for each in state.capabilities)
        self._templates = TemplateInventory(self._settings.templates_dir, can_use=can_use)
        self._templates.published = self._templates.scan()
        topology = {"cores": list(self._cores), "numa_nodes": self._numa_nodes}
        node = node_row(self._settings, state, self._allocations.capacity, topology, self._templates.published)
        await self._grants.prepare_registration(node)
        async with self._store.write() as tx:
            await self._grants.register(tx, node)
            await repository.mark_other_epochs_lost(tx, node_id=self.node_id, epoch=self.epoch)
        await self.snapshots.start(node_id=self.node_id, epoch=self.epoch)
        await self._images.start(node_id=self.node_id, epoch=self.epoch)
        await self._adopt(state)
        self._event_task = asyncio.create_task(self._consume_events(), name="executor events")
        self._grants.start(name="cpu-heartbeat")
        self.failed = None

    async def stop(self) -> None:
        """Settle ended attempts. Running ones continue in the launcher, and the next manager adopts them."""
        await self._grants.stop_polling()
        await self._images.stop()
        if self._event_task is not None:
            self._event_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._event_task
        await self._grants.stop()
        await self._executor.close()

    async def accept_grants(self, grants: Iterable[GrantPayload], *, epoch: UUID) -> None:
        """Accept a notification with granted rows."""
        await self._grants.accept_grants(grants, epoch=epoch)

    async def resize(self, resizes: Sequence[ResizePayload], *, epoch: UUID) -> list[ResizeResult]:
        """Resize running actions. The poll applies resizes from the rows if a notification was lost."""
        if epoch != self.epoch:
            return [self._resizer.absent_response(resize) for resize in resizes]
        return await self._resizer.apply(resizes)

    async def set_critical(self, changes: Sequence[CriticalChangePayload], *, epoch: UUID) -> None:
        """Change the weights of granted actions whose trajectories became critical, or no longer are."""
        by_fence = {Fence(each.id, each.grant_no): each.is_critical for each in changes}
        if epoch == self.epoch:
            await self._executor.set_critical(self._allocations.set_critical(by_fence))

    @property
    def fences(self) -> frozenset[Fence]:
        """Return the attempts with an allocation."""
        return self._allocations.fences

    def has(self, fence: Fence) -> bool:
        """Return True if this attempt has an allocation."""
        return self._allocations.get(fence) is not None

    def allocate(self, grant: GrantPayload) -> bool:
        """Allocate the resources of a grant. Return False if they do not fit."""
        return self._allocations.allocate(exec_specs.allocation_from_grant(grant))

    def release(self, fence: Fence) -> None:
        """Release the allocation of an attempt. A second call is harmless."""
        self._allocations.release(fence)
        if not self._shared_cores.is_current:
            self._grants.run_in_background(self._shared_cores.apply())

    def readopt(self, row: ActiveActionRow) -> None:
        """Allocate the resources of a running row, even beyond the capacity."""
        self._readopt(row, None)

    async def start_rows(self, fences: Sequence[Fence]) -> Sequence[Row]:
        """Commit `granted -> running` and return the rows that changed."""
        async with self._store.statement() as tx:
            rows = await repository.start(tx, fences, node_id=self.node_id, epoch=self.epoch)
        return self._mark_recorded(rows)

    async def load(self, ids: Sequence[UUID]) -> Sequence[Row]:
        """Return running rows of this node."""
        async with self._store.read() as tx:
            rows = await repository.load(tx, ids, epoch=self.epoch)
        return self._mark_recorded(rows)

    async def launch(self, rows: Mapping[Fence, Row]) -> None:
        """Start attempts in the executor. An attempt that cannot start is reported."""
        specs: list[ExecSpec] = []
        for fence, row in rows.items():
            attempt = self._allocations.get(fence)
            if attempt is None:
                continue
            try:
                spec = self._prepare(row, attempt)
            except (LookupError, TypeError, ValueError) as error:
                message = f"the specification of the action cannot be parsed: {type(error).__name__}: {error}"
                self._settle_in_background(
                    ExecutionReport(fence=fence, outcome="infra_error", reason="setup_failed", message=message)
                )
                continue
            if spec is not None:
                specs.append(spec)
        if specs:
            await self._shared_cores.apply()
            await self._executor.start([self._allocations.with_critical(spec) for spec in specs])

    def _prepare(self, row: Row, attempt: AttemptAllocation) -> ExecSpec | None:
        """Return None if nothing is to be started: the attempt is refused or waits for its transfer."""
        if (refused := exec_specs.refusal_report(row, enforced=self._enforced)) is not None:
            self.transfers.refuse(refused)
            self._settle_in_background(refused)
            return None
        if row.kind == "environment.transfer":
            self.transfers.start(attempt.fence, row.environment_id)
            return None
        sharing = exec_specs.sharing_from_row(row) if not self._settings.has_pods else None
        spec = exec_specs.exec_spec_from_row(row, attempt, self._allocations.assign_cores(attempt, sharing), sharing)
        if (refused := exec_specs.missing_feature_report(spec, enforced=self._enforced)) is not None:
            self._settle_in_background(refused)
            return None
        self.snapshots.expect_restore(row)
        return spec

    async def _consume_events(self) -> None:
        """Handle the executor's events.

        When they end, end this process; the supervisor restarts the launcher and the manager.
        """
        try:
            async for event in self._executor.events():
                if isinstance(event, ExecutionReport):
                    self._networks.count(event)
                    self._settle_in_background(event)
                elif isinstance(event, UnusedCoresEvent):
                    self._grants.run_in_background(self._shared_cores.set_unused(event.cpu_milli))
                else:
                    self._grants.run_in_background(self._record_loss(event))
        except ConnectionError as error:
            self.failed = f"the launcher is not available: {error}"
            log.critical("%s; this manager exits so that both are restarted", self.failed)
            signal.raise_signal(signal.SIGTERM)

    def _settle_in_background(self, report: ExecutionReport) -> None:
        self._grants.run_in_background(self._restore_and_settle(report))

    async def _restore_and_settle(self, report: ExecutionReport) -> None:
        await self._grants.settle(
            await self.snapshots.complete_restore(report, is_killed=lambda: self._grants.is_killed(report.fence))
        )

    async def settle(self, reports: Sequence[ExecutionReport], *, epoch: UUID) -> Sequence[Row]:
        """Commit outcomes and return the rows that settled or were re-queued."""
        async with self._store.statement() as tx:
            return await repository.settle(tx, reports, epoch=epoch)

    def encode_report(self, report: ExecutionReport) -> bytes:
        """Return the report as bytes for the spool."""
        return json.dumps(encode_report(report)).encode()

    def decode_report(self, data: bytes) -> ExecutionReport:
        """Return the report of `encode_report`."""
        return decode_report(json.loads(data))

    def allocated_core_s(self, fence: Fence) -> float:
        """Return the core-seconds that this attempt has allocated so far."""
        return self._allocations.core_seconds(fence)

    def on_settled(self, report: ExecutionReport) -> None:
        """Release an environment that was lost with its attempt."""
        attempt = self._allocations.get(report.fence)
        if report.environment_lost and attempt is not None and attempt.environment is not None:
            self._allocations.release_environment(attempt.environment)

    async def acknowledge(self, fences: Sequence[Fence]) -> None:
        """Acknowledge attempts whose reports are durable."""
        await self._executor.acknowledge(fences)

    async def kill(self, fences: Sequence[Fence]) -> None:
        """Kill attempts and cancel their transfers; each still reports."""
        self.transfers.cancel(fences)
        await self._executor.kill(fences)

    async def _update_gauges(self) -> None:
        self._metrics.environments.set(len(self._allocations.environments))
        self._metrics.show_resources(capacity=self._allocations.capacity, available=self._allocations.available)

    def _mark_recorded(self, rows: Sequence[Row]) -> Sequence[Row]:
        for row in rows:
            if row.environment_live:
                self._allocations.mark_recorded(row.environment_id)
        return rows

    async def _record_loss(self, event: EnvironmentLostEvent) -> None:
        """Record a lost environment.

        The launcher never recreates it, so a late row costs at most one action that then fails.
        """
        async with self._store.write() as tx:
            await repository.mark_environments_lost(tx, [event.id], reason=event.lost_reason, epoch=self.epoch)
        self._allocations.release_environment(event.id)

    async def poll(self) -> bool:
        """Process the rows: grants without a notification, cancel requests, lost fences, environments to end."""
        await self._publish_templates()
        before, recorded = self._allocations.fences, self._allocations.recorded_environments
        async with self._store.read() as tx:
            found = await repository.poll(tx, node_id=self.node_id, epoch=self.epoch)
        await self._resizer.apply_rows(await self._grants.start_from_poll(found.active_rows, allocated_before=before))
        await self._grants.kill_lost_or_cancelled(found.active_rows, allocated_before=before)
        if found.environments_to_end:
            await self._end_environments(found.environments_to_end)
        await self._destroy_lost(recorded - found.live_environments)
        await self._networks.apply(found.networks)
        if found.snapshots_to_delete:
            await self.snapshots.remove(found.snapshots_to_delete)
        return self._images.follow(found.image_requests) or bool(found.active_rows or found.environments_to_end)

    async def _publish_templates(self) -> None:
        """Publish the templates if any was imported or removed since the last scan."""
        if (templates := self._templates.scan()) == self._templates.published:
            return
        async with self._store.write() as tx:
            await repository.publish_templates(tx, json.dumps(templates), node_id=self.node_id, epoch=self.epoch)
        self._templates.published = templates
        self._grants.notify_freed([], requeued=[])

    async def _end_environments(self, ending: Sequence[tuple[UUID, str]]) -> None:
        idle = [entry for entry in ending if not self._allocations.is_busy(entry[0])]
        if not idle:
            return
        ids = frozenset(environment for environment, _ in idle)
        self._allocations.begin_termination(ids)
        try:
            await self._executor.destroy(sorted(ids))
            async with self._store.write() as tx:
                await repository.end_environments(tx, idle, epoch=self.epoch)
        finally:
            self._allocations.end_termination(ids)
        for environment in ids:
            self._allocations.release_environment(environment)
        self._grants.notify_freed([], requeued=[])

    async def _destroy_lost(self, lost: frozenset[UUID]) -> None:
        """Destroy environments that the rows no longer count as this node's: it was unreachable for too long."""
        idle = [each for each in sorted(lost & self._allocations.environments) if not self._allocations.is_busy(each)]
        if not idle:
            return
        await self._executor.destroy(idle)
        for environment in idle:
            self._allocations.release_environment(environment)

    async def _adopt(self, state: ExecutorState) -> None:
        """Reconcile rows and executor: the executor is authoritative for what runs, the rows for what is valid."""
        async with self._store.read() as tx:
            found = await repository.poll(tx, node_id=self.node_id, epoch=self.epoch)
            homes = await repository.list_live_environments(tx, node_id=self.node_id, epoch=self.epoch)
            begun = [*(each.fence for each in state.reports), *(each.fence for each in state.running)]
            for begins in await repository.load(tx, [fence.action_id for fence in begun], epoch=self.epoch):
                self.snapshots.expect_restore(begins)
        for home in homes:
            self._allocations.adopt_environment(home.id, {"memory_mib": home.memory_mib, "disk_mib": home.disk_mib})
        rows = {Fence(UUID(row["id"]), row["grant_no"]): row for row in found.active_rows}
        running = {each.fence: each for each in state.running}
        for fence, row in rows.items():
            if row["state"] == "running":
                self._readopt(row, running.get(fence))
        for report in state.reports:
            self._settle_in_background(report)
        strays = [each for each in state.running if each.fence not in rows]
        for each in strays:
            # It will be killed and occupies its cores until it has ended.
            stray = AttemptAllocation(each.fence, {"cpu_milli": each.cpu_milli}, None)
            self._allocations.readopt(stray, each.cores, sharing=each.sharing)
        await self._grants.kill({each.fence for each in strays})
        in_use = self._allocations.environments | {each.environment for each in running.values()}
        await self._executor.destroy([home for home in state.environments if home not in in_use])
        reported = {report.fence for report in state.reports}
        await self._shared_cores.apply()
        await self._grants.launch_missing(
            [f for f in self._allocations.fences if f not in running and f not in reported]
        )
        log.info("adopted %d running attempts and %d reports", len(running), len(reported))

    def _readopt(self, row: Mapping[str, Any], running: RunningAttempt | None) -> None:
        """Readopt an attempt with the executor's amounts: the row of a confirmed shrink may not be written yet."""
        attempt = exec_specs.allocation_from_grant(grant_of(row))
        if running is not None:
            amounts = {**attempt.resources, "cpu_milli": running.cpu_milli}
            attempt = replace(attempt, resources=amounts, resize_seq=running.amounts_seq)
        cores, sharing = (running.cores, running.sharing) if running is not None else ((), None)
        granted_ago_s = max(0.0, row["granted_ago_s"])
        self._allocations.readopt(attempt, cores, granted_ago_s=granted_ago_s, sharing=sharing)

    async def _record_reclaimable(self, cpu_milli: int) -> None:
        async with self._store.statement() as tx:
            await repository.record_reclaimable(tx, cpu_milli, node_id=self.node_id, epoch=self.epoch)

    def _notify_of_room(self) -> None:
        self._grants.notify_freed([], requeued=[])

"""The grant lifecycle of a manager: accept, start after the running commit, settle once, kill if lost or cancelled.

Each service implements `NodeBackend` for its resources and for the statements of its transitions.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, Generic, Protocol
from uuid import UUID

from arl_core.domain.model import Fence
from arl_core.domain.states import COMPLETED_OUTCOMES, ActionState
from arl_kit.batcher import Batcher
from arl_kit.failpoints import Failpoints
from arl_kit.loops import PollLoop
from arl_kit.metrics import Metrics
from arl_kit.service_client import ServiceClient
from arl_node import repository
from arl_node.heartbeat import LeaseHeartbeat, wait_until_name_is_free
from arl_node.metrics import ManagerMetrics
from arl_node.result_spool import ResultSpool
from arl_node.settings import ManagerSettings
from arl_node.settlement import AttemptReport, ReportCodec, ReportSettler, ReportT
from arl_store.tx import PostgresStore, Row, WriteTx
from arl_store.wake import WakeNotifier
from arl_wire.internal.node import GrantPayload
from arl_wire.internal.scheduler import FencePayload, ResourcesFreedNotification, RunReport

__all__ = ["ActiveActionRow", "GrantLifecycle", "NodeBackend", "fence_of", "grant_of"]

MAX_START_BATCH = 32
"""Attempts per start statement. The statement returns their specs, and each may have megabytes."""

log = logging.getLogger(__name__)

ActiveActionRow = Mapping[str, Any]
"""A granted or running row as a poll reads it: the columns of `arl_node.repository.ACTIVE_ON_NODE`."""


class NodeBackend(ReportCodec[ReportT], Protocol[ReportT]):
    """The part of a manager that depends on the node: allocations, execution, and the statements of its transitions."""

    @property
    def fences(self) -> frozenset[Fence]:
        """Attempts with an allocation."""
        ...

    def has(self, fence: Fence) -> bool:
        """Return True if this attempt has an allocation."""
        ...

    def allocate(self, grant: GrantPayload) -> bool:
        """Allocate the amounts of a grant. Return False if they do not fit. Never waits."""
        ...

    def readopt(self, row: ActiveActionRow) -> None:
        """Allocate the amounts of a running row, even beyond the capacity."""

    def release(self, fence: Fence) -> None:
        """Release the allocation of an attempt. A second call is harmless."""

    async def poll(self) -> bool:
        """Read the node's rows. Return True if there is work."""
        ...

    async def start_rows(self, fences: Sequence[Fence]) -> Sequence[Row]:
        """Commit `granted -> running` and return the rows that changed."""
        ...

    async def load(self, ids: Sequence[UUID]) -> Sequence[Row]:
        """Return running rows of this node, with the columns of `start_rows`."""
        ...

    async def launch(self, rows: Mapping[Fence, Row]) -> None:
        """Run attempts that are running by their rows and have an allocation.

        An attempt that cannot run is reported and does not block the others.
        """

    async def kill(self, fences: Sequence[Fence]) -> None:
        """End attempts; each still reports."""

    async def settle(self, reports: Sequence[ReportT], *, epoch: UUID) -> Sequence[Row]:
        """Commit outcomes and return the rows of `arl_node.repository.EDGE_ROWS`; a lost fence has none.

        `epoch` is the node's epoch under which the attempts were granted.
        """
        ...

    def allocated_core_s(self, fence: Fence) -> float:
        """Return the core-seconds that this attempt has allocated so far; 0 on a node without cores."""
        ...

    def on_settled(self, report: ReportT) -> None:
        """Handle a committed outcome, before the allocation is released."""

    async def acknowledge(self, fences: Sequence[Fence]) -> None:
        """Acknowledge attempts whose reports are durable."""


class GrantLifecycle(Generic[ReportT]):
    """The lifecycle of grants on a node. The node decides on capacity: grants that it refuses are re-queued."""

    def __init__(
        self,
        backend: NodeBackend[ReportT],
        *,
        store: PostgresStore,
        service_client: ServiceClient,
        notifier: WakeNotifier,
        settings: ManagerSettings,
        metrics: Metrics,
    ) -> None:
        self._backend = backend
        self._store, self._service_client, self._notifier = store, service_client, notifier
        self._settings = settings
        self._failpoints = Failpoints(settings.failpoints)
        self._killed: set[Fence] = set()
        self._start_batcher: Batcher[Fence, None] = Batcher(self._start_batch, max_batch=MAX_START_BATCH)
        self._settler = ReportSettler(
            self._settle_in_one_statement,
            backend,
            ResultSpool(settings.spool_path, max_bytes=settings.spool_mib << 20),
            epoch=lambda: self.epoch,
            metrics=metrics,
        )
        self._poll_loop = PollLoop(
            "manager poll", backend.poll, busy_s=settings.poll_busy_s, idle_s=settings.poll_idle_s
        )
        self._metrics = ManagerMetrics(metrics, store)
        metrics.track_total(self._metrics.poll_failures, lambda: self._poll_loop.failures_total)
        metrics.add_scrape_hook(self._update_gauges)
        self._heartbeat: LeaseHeartbeat | None = None
        self._background_tasks: set[asyncio.Task[None]] = set()
        self.node_id = 0
        self.epoch = UUID(int=0)

    @property
    def fenced(self) -> str | None:
        """Return the reason why this node may not start actions, if another node has its lease."""
        return self._heartbeat.fenced if self._heartbeat is not None else None

    @property
    def can_start(self) -> bool:
        """Return True if the node's lease is valid. Only then do its allocations belong to it."""
        return self._heartbeat is not None and self._heartbeat.can_start()

    @property
    def lease_lapses(self) -> int:
        """Return the number of times that the lease lapsed and was renewed."""
        return self._heartbeat.lease_lapses if self._heartbeat is not None else 0

    async def prepare_registration(self, node: Mapping[str, Any]) -> None:
        """Settle the results that an earlier process spooled, then return when the node may register.

        A new registration may take the fences of that process. Raises `NodeNameTaken` if another live node has the
        name.
        """
        await self._settler.replay()
        await wait_until_name_is_free(
            self._store, node, ttl_s=self._settings.node_ttl_s, check_interval_s=self._settings.beat_s / 2
        )

    async def register(self, tx: WriteTx, node: Mapping[str, Any]) -> None:
        """Register the node. It may write transitions after the commit."""
        self.node_id = await repository.register(
            tx, node, ttl_s=self._settings.node_ttl_s, ends_in_s=self._settings.ends_in_s
        )
        self.epoch = node["epoch"]

    def start(self, *, name: str) -> None:
        """Start the heartbeat and the poll. Attempts of an earlier process must be re-adopted before."""
        url, how = self._settings.database_url.get_secret_value(), self._settings
        self._heartbeat = LeaseHeartbeat(
            url, name=name, node_id=self.node_id, epoch=self.epoch, beat_s=how.beat_s, ttl_s=how.node_ttl_s
        )
        self._heartbeat.start()
        self._poll_loop.start()
        self.notify_freed([], requeued=[])

    async def stop_polling(self) -> None:
        """Stop polling; grants from notifications are still accepted."""
        await self._poll_loop.stop()

    async def stop(self) -> None:
        """Settle or spool the results of ended attempts, then stop the heartbeat."""
        if self._background_tasks:
            await asyncio.wait(self._background_tasks, timeout=5.0)
        await self._settler.stop()
        if self._heartbeat is not None:
            self._heartbeat.stop()

    async def accept_grants(self, grants: Iterable[GrantPayload], *, epoch: UUID) -> None:
        """Accept copies of granted rows. Known fences are ignored; grants that do not fit are re-queued.

        Nothing is accepted while results are only in memory that belong on disk: more would then be lost in a crash.
        """
        if epoch != self.epoch or not self.can_start or self._settler.has_unspooled:
            return
        refused = []
        grants = list(grants)
        if not grants:
            # An empty notification means that rows changed which only a poll reads: environments that must end.
            self._poll_loop.poll_now()
        for grant in grants:
            fence = fence_of(grant)
            if self._backend.has(fence):
                continue
            if not self._backend.allocate(grant):
                refused.append(fence)
                continue
            self._poll_loop.poll_soon()
            self.run_in_background(self._start_batcher.submit(fence))
        if refused:
            self._metrics.refused.inc(len(refused))
            async with self._store.write() as tx:
                await repository.refuse(tx, refused, epoch=self.epoch)
            self.notify_freed(refused, requeued=refused)

    async def start_from_poll(
        self, active_rows: Iterable[ActiveActionRow], *, allocated_before: frozenset[Fence]
    ) -> dict[Fence, ActiveActionRow]:
        """Start granted rows that a poll found without a notification. Return the running rows of that poll.

        `allocated_before` has the fences that were allocated when the poll was sent.
        """
        rows = {_fence_of_row(row): row for row in active_rows}
        granted = [
            grant_of(row) for fence, row in rows.items() if row["state"] == "granted" and fence not in allocated_before
        ]
        if granted:
            await self.accept_grants(granted, epoch=self.epoch)
        running = {fence: row for fence, row in rows.items() if row["state"] == "running"}
        await self._start_stranded(running)
        return running

    async def kill_lost_or_cancelled(
        self, active_rows: Iterable[ActiveActionRow], *, allocated_before: frozenset[Fence]
    ) -> None:
        """Kill attempts that are lost or must be cancelled according to the same poll."""
        rows = {_fence_of_row(row): row for row in active_rows}
        lost = {fence for fence in allocated_before if fence not in rows}
        wished = {fence for fence, row in rows.items() if row["cancel"]}
        await self.kill((lost | wished) & self._backend.fences)

    async def launch_missing(self, fences: Sequence[Fence]) -> None:
        """Launch attempts that are running by their rows but were never launched."""
        if not fences:
            return
        try:
            rows = await self._backend.load([fence.action_id for fence in fences])
        except Exception:
            self.release_unlaunched(fences)
            raise
        found = {Fence(row.id, row.grant_no): row for row in rows}
        for fence in fences:
            if fence not in found:
                self._release(fence)
        await self._backend.launch(found)

    def release_unlaunched(self, fences: Iterable[Fence]) -> None:
        """Release attempts that are running by their rows but not launched, so that the next poll finds them."""
        for fence in fences:
            self._release(fence)

    async def kill(self, fences: Set[Fence]) -> None:
        """Kill attempts; each is killed only once."""
        new = sorted(fences - self._killed)
        if new:
            self._killed.update(new)
            await self._backend.kill(new)

    def is_killed(self, fence: Fence) -> bool:
        """Return True if the attempt was killed by this process."""
        return fence in self._killed

    async def settle(self, report: ReportT) -> None:
        """Return when the database has accepted the report. Failures are retried."""
        await self._settler.settle(report)

    def notify_freed(self, fences: Iterable[Fence], *, requeued: Iterable[Fence], runs: Iterable[ReportT] = ()) -> None:
        """Notify the scheduler that the resources of these attempts are free, best effort."""
        body = ResourcesFreedNotification(
            fences=_fence_bodies(fences), requeued=_fence_bodies(requeued), runs=[_run_body(report) for report in runs]
        )
        self._service_client.notify(f"{self._settings.scheduler_url}/internal/freed", body, audience="scheduler")

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task that is kept until it ends; its failure is logged."""
        task = asyncio.create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._on_background_done)

    async def _start_batch(self, fences: Sequence[Fence]) -> Sequence[None]:
        """Start attempts after their guarded `granted -> running` has committed."""
        self._metrics.start_batch_size.observe(len(fences))
        try:
            rows = await self._backend.start_rows(fences)
        except Exception:
            # The commit may have succeeded. The poll reads the rows and starts those that are running and unknown here.
            for fence in fences:
                self._release(fence)
            raise
        self._failpoints.hit("manager.after_running")
        started = {Fence(row.id, row.grant_no): row for row in rows}
        for fence in fences:
            if fence not in started:
                self._release(fence)
        await self._backend.launch(started)
        return [None] * len(fences)

    async def _settle_in_one_statement(self, reports: Sequence[ReportT], epoch: UUID) -> Set[Fence]:
        """Settle reports and release their attempts. Return the fences whose rows changed."""
        self._failpoints.hit("manager.after_exit_before_settle")
        rows = await self._backend.settle(reports, epoch=epoch)
        settled = {Fence(row.id, row.grant_no) for row in rows if row.state == ActionState.SETTLED}
        requeued = {Fence(row.id, row.grant_no) for row in rows} - settled
        cpu_us = {report.fence: report.cpu_us for report in reports}
        core_times = self._metrics.core_times(rows, cpu_us, self._backend.allocated_core_s)
        fences = [report.fence for report in reports]
        for report in reports:
            self._backend.on_settled(report)
            self._release(report.fence)
        self._notifier.notify()
        runs = {each.fence: each for each in reports if each.fence in settled and each.outcome in COMPLETED_OUTCOMES}
        self.notify_freed([each for each in fences if each not in runs], requeued=requeued, runs=runs.values())
        self._metrics.record_settled(rows, core_times, batch_size=len(reports))
        with suppress(ConnectionError):  # the executor has ended, and its reports with it
            await self._backend.acknowledge(fences)
        return settled | requeued

    async def _update_gauges(self) -> None:
        self._metrics.running.set(len(self._backend.fences))

    def _release(self, fence: Fence) -> None:
        self._backend.release(fence)
        self._killed.discard(fence)

    async def _start_stranded(self, running: Mapping[Fence, ActiveActionRow]) -> None:
        """Re-adopt and launch running rows that are unknown here.

        Their commit was not confirmed, so nothing has started.
        """
        missing = [fence for fence in running if not self._backend.has(fence)]
        for fence in missing:
            self._backend.readopt(running[fence])
        await self.launch_missing(missing)

    def _on_background_done(self, task: asyncio.Task[None]) -> None:
        self._background_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("background work failed: %r", error)


def fence_of(grant: GrantPayload) -> Fence:
    """Return the fence of a grant."""
    return Fence(grant.id, grant.grant_no)


def grant_of(row: ActiveActionRow) -> GrantPayload:
    """Return the grant of a granted or running row, equal to its notification."""
    return GrantPayload.model_validate({key: row[key] for key in GrantPayload.model_fields if key in row})


def _fence_of_row(row: ActiveActionRow) -> Fence:
    return Fence(UUID(row["id"]), row["grant_no"])


def _fence_bodies(fences: Iterable[Fence]) -> list[FencePayload]:
    return [FencePayload(id=fence.action_id, grant_no=fence.grant_no) for fence in fences]


def _run_body(report: AttemptReport) -> RunReport:
    fence, run_us = report.fence, report.counted_us if report.counted_us is not None else report.run_us
    wall_us = report.run_us if run_us != report.run_us else None
    return RunReport(id=fence.action_id, grant_no=fence.grant_no, run_us=run_us, cpu_us=report.cpu_us, wall_us=wall_us)

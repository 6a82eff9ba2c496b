"""The CPU manager: takes grants, starts them after the running commit, settles what ends.

It has the last word on capacity: what does not fit its own free amounts goes back to the queue.
"""

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any
from uuid import UUID

from arl_core.fence import Fence
from arl_cpu import repository
from arl_cpu.executor import EnvironmentStatus, ExecSpec, Executor, ExecutorState, Report, RunningAttempt
from arl_cpu.heartbeat import Heartbeat
from arl_cpu.holdings import Attempt, Holdings
from arl_cpu.inventory import TemplateShelf, capacity_of, cores_of, description, numa_nodes_of
from arl_cpu.metrics import CpuMetrics
from arl_cpu.resizes import Resizes
from arl_cpu.settings import CpuSettings
from arl_cpu.snapshots import Snapshots
from arl_cpu.specs import attempt_of, exec_spec, grant_of, refusal
from arl_cpu.transfers import Transfers
from arl_kit.batcher import Batcher
from arl_kit.failpoints import Failpoints
from arl_kit.loops import PollLoop
from arl_kit.metrics import Metrics
from arl_kit.peers import Peers
from arl_store.tx import Row, Store, is_temporary
from arl_store.wake import Notifier
from arl_wire.internal import FenceBody, FreedHint, GrantBody, ResizeAnswer, ResizeBody

__all__ = ["Manager"]

RETRY_S = 0.5
START_BATCH = 32
"""Their specs come back with the running edge, and each may be megabytes."""

log = logging.getLogger(__name__)


class Manager:
    def __init__(
        self,
        store: Store,
        peers: Peers,
        notifier: Notifier,
        executor: Executor,
        settings: CpuSettings,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._peers = peers
        self._notifier = notifier
        self._executor = executor
        self._settings = settings
        self._failpoints = Failpoints(settings.failpoints)
        self._cores = cores_of(settings)
        self._nodes = {} if settings.driver == "simulated" else numa_nodes_of(self._cores)
        capacity = capacity_of(settings, self._cores)
        self._holdings = Holdings(capacity, self._cores, self._nodes, shares_cores=settings.shares_cores)
        self._resizes = Resizes(self._holdings, executor)
        self.transfers = Transfers(executor, self._report)
        how: Mapping[str, Any] = {"node_name": settings.node_name, "max_mib": settings.snapshots_mib}
        self.snapshots = Snapshots(settings.snapshots_dir, **how, store=store, executor=executor)
        self._killed: set[Fence] = set()
        self._starts: Batcher[Fence, None] = Batcher(self._start, max_batch=START_BATCH)
        self._settles: Batcher[Report, None] = Batcher(self._settle, max_batch=200)
        self._polls = PollLoop("manager poll", self._poll, busy_s=settings.poll_busy_s, idle_s=settings.poll_idle_s)
        metrics = metrics or Metrics()
        self._metrics = CpuMetrics(metrics)
        metrics.follow(self._metrics.poll_failures, lambda: self._polls.failures_total)
        metrics.on_scrape(self._show)
        self._heartbeat: Heartbeat | None = None
        self._events: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._enforced: frozenset[str] = frozenset()
        self._templates = TemplateShelf(None, can_use=False)
        self.node_id = 0
        self.epoch = UUID(int=0)
        self.failed: str | None = "the manager has not registered yet"

    async def start(self) -> None:
        """Connect to the executor, register, adopt what an earlier life left, then beat."""
        state = await self._executor.connect()
        self.epoch = state.node_epoch
        self._enforced = frozenset(each.name for each in state.capabilities if each.level == "enforced")
        can_use = any(each.name == "templates" and each.level != "absent" for each in state.capabilities)
        self._templates = TemplateShelf(self._settings.templates_dir, can_use=can_use)
        self._templates.said = self._templates.look()
        topology = {"cores": list(self._cores), "numa_nodes": self._nodes}
        node = description(self._settings, state, self._holdings.capacity, topology, self._templates.said)
        async with self._store.write() as tx:
            self.node_id = await repository.register(tx, node)
        await self.snapshots.start(node_id=self.node_id, epoch=self.epoch)
        await self._adopt(state)
        url = self._settings.database_url.get_secret_value()
        self._heartbeat = Heartbeat(
            url, node_id=self.node_id, epoch=self.epoch, beat_s=self._settings.beat_s, ttl_s=self._settings.node_ttl_s
        )
        self._heartbeat.start()
        self._events = asyncio.create_task(self._follow(), name="executor events")
        self._polls.start()
        self.failed = None
        self._hint_freed([], requeued=[])

    async def stop(self) -> None:
        """Settle what has ended. What still runs goes on in the launcher, for the next manager to adopt."""
        await self._polls.stop()
        if self._events is not None:
            self._events.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._events
        if self._background:
            await asyncio.wait(self._background, timeout=5.0)
        if self._heartbeat is not None:
            self._heartbeat.stop()
        await self._executor.close()

    async def offer(self, grants: Iterable[GrantBody], *, epoch: UUID) -> None:
        """A copy of granted rows. A fence already seen is nothing new; one that does not fit goes back."""
        if epoch != self.epoch or self._heartbeat is None or not self._heartbeat.may_start():
            return
        refused = []
        for grant in grants:
            attempt = attempt_of(grant)
            if self._holdings.attempt(attempt.fence) is not None:
                continue
            if not self._holdings.take(attempt):
                refused.append(attempt.fence)
                continue
            self._polls.hurry()
            self._in_background(self._starts.submit(attempt.fence))
        if refused:
            self._metrics.refused.inc(len(refused))
            async with self._store.write() as tx:
                await repository.refuse(tx, refused, epoch=self.epoch)
            self._hint_freed(refused, requeued=refused)

    async def resize(self, resizes: Sequence[ResizeBody], *, epoch: UUID) -> list[ResizeAnswer]:
        """Give running actions other cores. The poll applies what no call brought, from the rows."""
        if epoch != self.epoch:
            return [self._resizes.absent(resize) for resize in resizes]
        return await self._resizes.apply(resizes)

    async def _start(self, fences: Sequence[Fence]) -> Sequence[None]:
        """Nothing starts before its guarded `granted -> running` has committed."""
        self._metrics.starts.observe(len(fences))
        try:
            async with self._store.statement() as tx:
                rows = await repository.start(tx, fences, node_id=self.node_id, epoch=self.epoch)
        except Exception:
            # Not known whether it committed: the poll reads the rows and starts what is running and not here.
            for fence in fences:
                self._give_back(fence)
            raise
        self._failpoints.hit("manager.after_running")
        started = {Fence(row.id, row.grant_no): row for row in rows}
        for row in rows:
            self._holdings.recorded(row.environment_id)
        for fence in fences:
            if fence not in started:
                self._give_back(fence)
        await self._launch(started)
        return [None] * len(fences)

    async def _launch(self, rows: Mapping[Fence, Row]) -> None:
        specs: list[ExecSpec] = []
        for fence, row in rows.items():
            attempt = self._holdings.attempt(fence)
            if attempt is None:
                continue
            refused = refusal(row, enforced=self._enforced)
            if refused is not None:
                self.transfers.miss(refused)
                self._report(refused)
                continue
            if row.kind == "environment.transfer":
                self.transfers.start(fence, row.environment_id)
                continue
            self.snapshots.expect(row)
            specs.append(exec_spec(row, attempt, self._holdings.assign_cores(attempt)))
        if specs:
            await self._executor.start(specs)

    async def _follow(self) -> None:
        """Take in what the executor says. Its end is the end of this process: the supervisor starts both anew."""
        try:
            async for event in self._executor.events():
                if isinstance(event, Report):
                    self._report(event)
                else:
                    self._in_background(self._lose(event))
        except ConnectionError as error:
            self.failed = f"the launcher is gone: {error}"
            log.critical("%s; this manager ends too, for both to be started anew", self.failed)
            signal.raise_signal(signal.SIGTERM)

    def _report(self, report: Report) -> None:
        self._in_background(self._settle_until_done(report))

    async def _settle_until_done(self, report: Report) -> None:
        report = await self.snapshots.restored(report, is_killed=lambda: report.fence in self._killed)
        while True:
            try:
                await self._settles.submit(report, weight=report.weight)
            except Exception as error:  # noqa: BLE001 - the report is kept until the database takes it
                log.warning("settle of %s failed, trying again: %r", report.fence, error)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _settle(self, reports: Sequence[Report]) -> Sequence[Exception | None]:
        """One that can't be written must not keep the others: then each goes alone."""
        try:
            await self._settle_together(reports)
        except Exception as error:  # noqa: BLE001 - each reporter hears of it and tries again
            if len(reports) == 1 or is_temporary(error):
                return [error] * len(reports)
            return [(await self._settle([report]))[0] for report in reports]
        return [None] * len(reports)

    async def _settle_together(self, reports: Sequence[Report]) -> None:
        self._failpoints.hit("manager.after_exit_before_settle")
        async with self._store.statement() as tx:
            settled, requeued = await repository.settle(tx, reports, epoch=self.epoch)
        self._count(reports, settled, requeued)
        fences = [report.fence for report in reports]
        for report in reports:
            attempt = self._holdings.attempt(report.fence)
            if report.environment_lost and attempt is not None and attempt.environment is not None:
                self._holdings.forget_environment(attempt.environment)
            self._give_back(report.fence)
        self._notifier.notify()
        self._hint_freed(fences, requeued=requeued)
        await self._executor.acknowledge(fences)

    def _count(self, reports: Sequence[Report], settled: Set[Fence], requeued: Set[Fence]) -> None:
        self._metrics.settles.observe(len(reports))
        self._metrics.requeued.inc(len(requeued))
        for report in reports:
            if report.fence in settled:
                self._metrics.settled.labels(report.outcome).inc()

    async def _show(self) -> None:
        self._metrics.running.set(len(self._holdings.fences))
        self._metrics.environments.set(len(self._holdings.environments))
        self._metrics.show_amounts(capacity=self._holdings.capacity, free=self._holdings.free)

    def _give_back(self, fence: Fence) -> None:
        self._holdings.give_back(fence)
        self._killed.discard(fence)

    async def _lose(self, status: EnvironmentStatus) -> None:
        """The launcher makes it anew for nobody, so a row that is late only lets one action find that out."""
        async with self._store.write() as tx:
            await repository.lose_environments(tx, [status.id], reason=status.lost_reason, epoch=self.epoch)
        self._holdings.forget_environment(status.id)

    async def _poll(self) -> bool:
        """The truth: grants that no hint brought, cancel wishes, fences lost, environments to end."""
        await self._publish_templates()
        before, recorded = self._holdings.fences, self._holdings.recorded_environments
        async with self._store.read() as tx:
            found = await repository.poll(tx, node_id=self.node_id, epoch=self.epoch)
        rows = {Fence(UUID(row["id"]), row["grant_no"]): row for row in found.held}
        granted = [grant_of(row) for fence, row in rows.items() if row["state"] == "granted" and fence not in before]
        if granted:
            await self.offer(granted, epoch=self.epoch)
        running = {fence: row for fence, row in rows.items() if row["state"] == "running"}
        await self._start_stranded(running)
        await self._resizes.follow(running)
        lost = {fence for fence in before if fence not in rows}
        wished = {fence for fence, row in rows.items() if row["cancel"]}
        await self._kill((lost | wished) & self._holdings.fences)
        if found.ending:
            await self._end(found.ending)
        await self._destroy_lost(recorded - found.live)
        if found.unwanted:
            await self.snapshots.remove(found.unwanted)
        return bool(found.held or found.ending)

    async def _publish_templates(self) -> None:
        """Those that were imported or removed since the last look."""
        if (templates := self._templates.look()) == self._templates.said:
            return
        async with self._store.write() as tx:
            await repository.publish_templates(tx, json.dumps(templates), node_id=self.node_id, epoch=self.epoch)
        self._templates.said = templates
        self._hint_freed([], requeued=[])

    async def _kill(self, fences: set[Fence]) -> None:
        new = sorted(fences - self._killed)
        if new:
            self._killed.update(new)
            self.transfers.cancel(new)
            await self._executor.kill(new)

    async def _end(self, ending: Sequence[tuple[UUID, str]]) -> None:
        idle = [entry for entry in ending if not self._holdings.is_busy(entry[0])]
        if not idle:
            return
        ids = frozenset(environment for environment, _ in idle)
        self._holdings.begin_ending(ids)
        try:
            await self._executor.destroy(sorted(ids))
            async with self._store.write() as tx:
                await repository.end_environments(tx, idle, epoch=self.epoch)
        finally:
            self._holdings.stop_ending(ids)
        for environment in ids:
            self._holdings.forget_environment(environment)
        self._hint_freed([], requeued=[])

    async def _destroy_lost(self, gone: frozenset[UUID]) -> None:
        """Environments that rows no longer count as ours: this node was away for too long."""
        idle = [each for each in sorted(gone & self._holdings.environments) if not self._holdings.is_busy(each)]
        if not idle:
            return
        await self._executor.destroy(idle)
        for environment in idle:
            self._holdings.forget_environment(environment)

    async def _adopt(self, state: ExecutorState) -> None:
        """Bring rows and executor together: the executor knows what runs, the rows know what counts."""
        async with self._store.read() as tx:
            found = await repository.poll(tx, node_id=self.node_id, epoch=self.epoch)
            homes = await repository.live_environments(tx, node_id=self.node_id, epoch=self.epoch)
            begun = [*(each.fence for each in state.reports), *(each.fence for each in state.running)]
            for begins in await repository.load(tx, [fence.action_id for fence in begun], epoch=self.epoch):
                self.snapshots.expect(begins)
        for home in homes:
            self._holdings.adopt_environment(home.id, {"memory_mib": home.memory_mib, "disk_mib": home.disk_mib})
        rows = {Fence(UUID(row["id"]), row["grant_no"]): row for row in found.held}
        running = {each.fence: each for each in state.running}
        for fence, row in rows.items():
            if row["state"] == "running":
                self._readopt(row, running.get(fence))
        for report in state.reports:
            self._report(report)
        strays = [each for each in state.running if each.fence not in rows]
        for each in strays:
            # It is to end, and has its cores until it has ended.
            self._holdings.readopt(Attempt(each.fence, {"cpu_milli": each.cpu_milli}, None), each.cores)
        await self._kill({each.fence for each in strays})
        in_use = self._holdings.environments | {each.environment for each in running.values()}
        await self._executor.destroy([home for home in state.environments if home not in in_use])
        reported = {report.fence for report in state.reports}
        await self._launch_missing([f for f in self._holdings.fences if f not in running and f not in reported])
        log.info("adopted %d running attempts and %d reports", len(running), len(reported))

    def _readopt(self, row: Mapping[str, Any], running: RunningAttempt | None) -> None:
        """What runs has what the executor says: the row of a confirmed shrink may still be to be written."""
        attempt = attempt_of(grant_of(row))
        if running is not None:
            amounts = {**attempt.amounts, "cpu_milli": running.cpu_milli}
            attempt = replace(attempt, amounts=amounts, amounts_seq=running.amounts_seq)
        self._holdings.readopt(attempt, running.cores if running is not None else ())

    async def _start_stranded(self, running: Mapping[Fence, Mapping[str, Any]]) -> None:
        """Rows that are running and unknown here: their commit was lost sight of, so nothing has started."""
        missing = [fence for fence in running if self._holdings.attempt(fence) is None]
        for fence in missing:
            self._readopt(running[fence], None)
        await self._launch_missing(missing)

    async def _launch_missing(self, fences: Sequence[Fence]) -> None:
        if not fences:
            return
        async with self._store.read() as tx:
            rows = await repository.load(tx, [fence.action_id for fence in fences], epoch=self.epoch)
        found = {Fence(row.id, row.grant_no): row for row in rows}
        for row in rows:
            self._holdings.recorded(row.environment_id)
        for fence in fences:
            if fence not in found:
                self._give_back(fence)
        await self._launch(found)

    def _hint_freed(self, fences: Iterable[Fence], *, requeued: Iterable[Fence]) -> None:
        body = FreedHint(fences=_bodies(fences), requeued=_bodies(requeued))
        self._peers.hint(f"{self._settings.scheduler_url}/internal/freed", body)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("background work failed: %r", error)


def _bodies(fences: Iterable[Fence]) -> list[FenceBody]:
    return [FenceBody(id=fence.action_id, grant_no=fence.grant_no) for fence in fences]

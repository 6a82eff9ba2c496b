"""The CPU manager: what its node holds, and how attempts run there. The contract itself is `arl_manager`'s.

It has the last word on capacity: what does not fit its own free amounts goes back to the queue.
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

from arl_core.fence import Fence
from arl_cpu import repository
from arl_cpu.executor import EnvironmentStatus, ExecSpec, Executor, ExecutorState, Report, RunningAttempt
from arl_cpu.holdings import Attempt, Holdings
from arl_cpu.inventory import TemplateShelf, capacity_of, cores_of, description, numa_nodes_of
from arl_cpu.metrics import CpuMetrics
from arl_cpu.resizes import Resizes
from arl_cpu.settings import CpuSettings
from arl_cpu.snapshots import Snapshots
from arl_cpu.specs import attempt_of, exec_spec, refusal
from arl_cpu.transfers import Transfers
from arl_kit.metrics import Metrics
from arl_kit.peers import Peers
from arl_manager.grants import Grants, HeldRow, Settled, grant_of
from arl_store.tx import Row, Store
from arl_store.wake import Notifier
from arl_wire.internal import GrantBody, ResizeAnswer, ResizeBody

__all__ = ["Manager"]

log = logging.getLogger(__name__)


class Manager:
    """Answers `arl_manager.grants.Hardware`."""

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
        self._executor = executor
        self._settings = settings
        self._cores = cores_of(settings)
        self._nodes = {} if settings.driver == "simulated" else numa_nodes_of(self._cores)
        capacity = capacity_of(settings, self._cores)
        self._holdings = Holdings(capacity, self._cores, self._nodes, shares_cores=settings.shares_cores)
        self._resizes = Resizes(self._holdings, executor)
        self.transfers = Transfers(executor, self._report)
        how: Mapping[str, Any] = {"node_name": settings.node_name, "max_mib": settings.snapshots_mib}
        self.snapshots = Snapshots(settings.snapshots_dir, **how, store=store, executor=executor)
        metrics = metrics or Metrics()
        self._metrics = CpuMetrics(metrics)
        metrics.on_scrape(self._show)
        self._grants: Grants[Report] = Grants(
            self, store=store, peers=peers, notifier=notifier, settings=settings, metrics=metrics
        )
        self._events: asyncio.Task[None] | None = None
        self._enforced: frozenset[str] = frozenset()
        self._templates = TemplateShelf(None, can_use=False)
        self.failed: str | None = "the manager has not registered yet"

    @property
    def node_id(self) -> int:
        return self._grants.node_id

    @property
    def epoch(self) -> UUID:
        return self._grants.epoch

    @property
    def fenced(self) -> str | None:
        return self._grants.fenced

    async def start(self) -> None:
        """Connect to the executor, register, adopt what an earlier life left, then beat."""
        state = await self._executor.connect()
        self._enforced = frozenset(each.name for each in state.capabilities if each.level == "enforced")
        can_use = any(each.name == "templates" and each.level != "absent" for each in state.capabilities)
        self._templates = TemplateShelf(self._settings.templates_dir, can_use=can_use)
        self._templates.said = self._templates.look()
        topology = {"cores": list(self._cores), "numa_nodes": self._nodes}
        node = description(self._settings, state, self._holdings.capacity, topology, self._templates.said)
        await self._grants.until_name_is_free(node)
        async with self._store.write() as tx:
            await self._grants.register(tx, node)
            await repository.lose_other_epochs(tx, node_id=self.node_id, epoch=self.epoch)
        await self.snapshots.start(node_id=self.node_id, epoch=self.epoch)
        await self._adopt(state)
        self._events = asyncio.create_task(self._follow(), name="executor events")
        self._grants.begin(name="cpu-heartbeat")
        self.failed = None

    async def stop(self) -> None:
        """Settle what has ended. What still runs goes on in the launcher, for the next manager to adopt."""
        await self._grants.stop_looking()
        if self._events is not None:
            self._events.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._events
        await self._grants.end()
        await self._executor.close()

    async def offer(self, grants: Iterable[GrantBody], *, epoch: UUID) -> None:
        """A copy of granted rows."""
        await self._grants.offer(grants, epoch=epoch)

    async def resize(self, resizes: Sequence[ResizeBody], *, epoch: UUID) -> list[ResizeAnswer]:
        """Give running actions other cores. The poll applies what no call brought, from the rows."""
        if epoch != self.epoch:
            return [self._resizes.absent(resize) for resize in resizes]
        return await self._resizes.apply(resizes)

    @property
    def fences(self) -> frozenset[Fence]:
        return self._holdings.fences

    def has(self, fence: Fence) -> bool:
        return self._holdings.attempt(fence) is not None

    def take(self, grant: GrantBody) -> bool:
        return self._holdings.take(attempt_of(grant))

    def give_back(self, fence: Fence) -> None:
        self._holdings.give_back(fence)

    def readopt(self, row: HeldRow) -> None:
        self._readopt(row, None)

    async def start_rows(self, fences: Sequence[Fence]) -> Sequence[Row]:
        async with self._store.statement() as tx:
            rows = await repository.start(tx, fences, node_id=self.node_id, epoch=self.epoch)
        return self._recorded(rows)

    async def load(self, ids: Sequence[UUID]) -> Sequence[Row]:
        async with self._store.read() as tx:
            rows = await repository.load(tx, ids, epoch=self.epoch)
        return self._recorded(rows)

    async def launch(self, rows: Mapping[Fence, Row]) -> None:
        specs: list[ExecSpec] = []
        for fence, row in rows.items():
            attempt = self._holdings.attempt(fence)
            if attempt is None:
                continue
            try:
                spec = self._prepared(row, attempt)
            except (LookupError, TypeError, ValueError) as error:
                message = f"its specification can't be read: {type(error).__name__}: {error}"
                self._report(Report(fence=fence, outcome="infra_error", reason="setup_failed", message=message))
                continue
            if spec is not None:
                specs.append(spec)
        if specs:
            await self._executor.start(specs)

    def _prepared(self, row: Row, attempt: Attempt) -> ExecSpec | None:
        """None where nothing is to be started: it is refused, or waits for its transfer."""
        refused = refusal(row, enforced=self._enforced)
        if refused is not None:
            self.transfers.miss(refused)
            self._report(refused)
            return None
        if row.kind == "environment.transfer":
            self.transfers.start(attempt.fence, row.environment_id)
            return None
        spec = exec_spec(row, attempt, self._holdings.assign_cores(attempt))
        self.snapshots.expect(row)
        return spec

    async def _follow(self) -> None:
        """Take in what the executor says. Its end is the end of this process: the supervisor starts both anew."""
        try:
            async for event in self._executor.events():
                if isinstance(event, Report):
                    self._report(event)
                else:
                    self._grants.in_background(self._lose(event))
        except ConnectionError as error:
            self.failed = f"the launcher is gone: {error}"
            log.critical("%s; this manager ends too, for both to be started anew", self.failed)
            signal.raise_signal(signal.SIGTERM)

    def _report(self, report: Report) -> None:
        self._grants.in_background(self._settle(report))

    async def _settle(self, report: Report) -> None:
        await self._grants.settle(
            await self.snapshots.restored(report, is_killed=lambda: self._grants.is_killed(report.fence))
        )

    async def settle(self, reports: Sequence[Report]) -> Settled:
        async with self._store.statement() as tx:
            return await repository.settle(tx, reports, epoch=self.epoch)

    def settling(self, report: Report) -> None:
        attempt = self._holdings.attempt(report.fence)
        if report.environment_lost and attempt is not None and attempt.environment is not None:
            self._holdings.forget_environment(attempt.environment)

    async def acknowledge(self, fences: Sequence[Fence]) -> None:
        await self._executor.acknowledge(fences)

    async def kill(self, fences: Sequence[Fence]) -> None:
        self.transfers.cancel(fences)
        await self._executor.kill(fences)

    async def _show(self) -> None:
        self._metrics.environments.set(len(self._holdings.environments))
        self._metrics.show_amounts(capacity=self._holdings.capacity, free=self._holdings.free)

    def _recorded(self, rows: Sequence[Row]) -> Sequence[Row]:
        for row in rows:
            if row.environment_live:
                self._holdings.recorded(row.environment_id)
        return rows

    async def _lose(self, status: EnvironmentStatus) -> None:
        """The launcher makes it anew for nobody, so a row that is late only lets one action find that out."""
        async with self._store.write() as tx:
            await repository.lose_environments(tx, [status.id], reason=status.lost_reason, epoch=self.epoch)
        self._holdings.forget_environment(status.id)

    async def poll(self) -> bool:
        """The truth: grants that no hint brought, cancel wishes, fences lost, environments to end."""
        await self._publish_templates()
        before, recorded = self._holdings.fences, self._holdings.recorded_environments
        async with self._store.read() as tx:
            found = await repository.poll(tx, node_id=self.node_id, epoch=self.epoch)
        running = await self._grants.start_found(found.held, before=before)
        await self._resizes.follow(running)
        await self._grants.end_unwanted(found.held, before=before)
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
        self._grants.hint_freed([], requeued=[])

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
        self._grants.hint_freed([], requeued=[])

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
        await self._grants.kill({each.fence for each in strays})
        in_use = self._holdings.environments | {each.environment for each in running.values()}
        await self._executor.destroy([home for home in state.environments if home not in in_use])
        reported = {report.fence for report in state.reports}
        await self._grants.launch_missing([f for f in self._holdings.fences if f not in running and f not in reported])
        log.info("adopted %d running attempts and %d reports", len(running), len(reported))

    def _readopt(self, row: Mapping[str, Any], running: RunningAttempt | None) -> None:
        """What runs has what the executor says: the row of a confirmed shrink may still be to be written."""
        attempt = attempt_of(grant_of(row))
        if running is not None:
            amounts = {**attempt.amounts, "cpu_milli": running.cpu_milli}
            attempt = replace(attempt, amounts=amounts, amounts_seq=running.amounts_seq)
        self._holdings.readopt(attempt, running.cores if running is not None else ())

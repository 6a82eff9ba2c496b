"""The CPU manager: takes grants, starts them after the running commit, settles what ends.

It has the last word on capacity: what does not fit its own free amounts goes back to the queue.
"""

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Row

from arl_core.fence import Fence
from arl_core.ledger import Ledger, fits
from arl_core.model import ENVIRONMENT_RESOURCES, Amounts
from arl_cpu import repository
from arl_cpu.cores import CoreMap
from arl_cpu.executor import EnvironmentStatus, ExecSpec, Executor, ExecutorState, Report
from arl_cpu.heartbeat import Heartbeat
from arl_cpu.inventory import capacity_of, cores_of
from arl_cpu.settings import CpuSettings
from arl_cpu.specs import exec_spec
from arl_kit.batcher import Batcher
from arl_kit.loops import PollLoop
from arl_kit.peers import Peers
from arl_store.tx import Store
from arl_store.wake import Notifier
from arl_wire.internal import FenceBody, FreedHint, GrantBody

__all__ = ["Manager"]

NODE = 0
RETRY_S = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Attempt:
    fence: Fence
    amounts: Amounts
    environment: UUID | None


class Manager:
    def __init__(
        self, store: Store, peers: Peers, notifier: Notifier, executor: Executor, settings: CpuSettings
    ) -> None:
        self._store = store
        self._peers = peers
        self._notifier = notifier
        self._executor = executor
        self._settings = settings
        self._cores = cores_of(settings)
        self._core_map = CoreMap(self._cores)
        self._ledger = Ledger()
        self._ledger.set_capacity(NODE, capacity_of(settings, self._cores))
        self._attempts: dict[Fence, _Attempt] = {}
        self._busy: dict[UUID, Fence] = {}
        self._homes: set[UUID] = set()
        self._killed: set[Fence] = set()
        self._starts: Batcher[Fence, None] = Batcher(self._start)
        self._settles: Batcher[Report, None] = Batcher(self._settle, max_batch=200)
        self._polls = PollLoop("manager poll", self._poll, busy_s=settings.poll_busy_s, idle_s=settings.poll_idle_s)
        self._heartbeat: Heartbeat | None = None
        self._events: asyncio.Task[None] | None = None
        self._settling: set[asyncio.Task[None]] = set()
        self.node_id = 0
        self.epoch = UUID(int=0)
        self.failed: str | None = "the manager has not registered yet"

    async def start(self) -> None:
        """Connect to the executor, register, adopt what an earlier life left, then beat."""
        state = await self._executor.connect()
        self.epoch = state.node_epoch
        async with self._store.write() as tx:
            self.node_id = await repository.register(tx, self._describe(state))
        await self._adopt(state)
        url = self._settings.database_url.get_secret_value()
        self._heartbeat = Heartbeat(
            url, node_id=self.node_id, epoch=self.epoch, beat_s=self._settings.beat_s, ttl_s=self._settings.node_ttl_s
        )
        self._heartbeat.start()
        self._events = asyncio.create_task(self._follow(), name="executor events")
        self._polls.start()
        self.failed = None

    async def stop(self) -> None:
        """Settle what has ended. What still runs goes on in the launcher, for the next manager to adopt."""
        await self._polls.stop()
        if self._events is not None:
            self._events.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._events
        if self._settling:
            await asyncio.wait(self._settling, timeout=5.0)
        if self._heartbeat is not None:
            self._heartbeat.stop()
        await self._executor.close()

    async def offer(self, grants: Iterable[GrantBody], *, epoch: UUID) -> None:
        """A copy of granted rows. A fence already seen is nothing new; one that does not fit goes back."""
        if epoch != self.epoch or self._heartbeat is None or not self._heartbeat.may_start():
            return
        refused = []
        for grant in grants:
            fence = Fence(grant.id, grant.grant_no)
            if fence in self._attempts:
                continue
            if not self._take(_Attempt(fence, grant.amounts, grant.environment_id)):
                refused.append(fence)
                continue
            self._polls.hurry()
            _background(self._settling, self._starts.submit(fence))
        if refused:
            async with self._store.write() as tx:
                await repository.refuse(tx, refused, epoch=self.epoch)
            self._hint_freed(refused)

    def _take(self, attempt: _Attempt) -> bool:
        needed = dict(attempt.amounts)
        environment = attempt.environment
        if environment is not None:
            if environment in self._busy:
                return False
            if environment in self._homes:
                needed = _split(needed, environment=False)
        if not fits(needed, self._ledger.free(NODE)):
            return False
        self._attempts[attempt.fence] = attempt
        if environment is None:
            self._ledger.take(attempt.fence, NODE, needed)
            return True
        self._busy[environment] = attempt.fence
        self._ledger.take(attempt.fence, NODE, _split(needed, environment=False))
        if environment not in self._homes:
            self._homes.add(environment)
            self._ledger.take(environment, NODE, _split(needed, environment=True))
        return True

    def _give_back(self, fence: Fence) -> None:
        attempt = self._attempts.pop(fence, None)
        self._killed.discard(fence)
        if attempt is None:
            return
        self._ledger.release(fence)
        self._core_map.release(fence)
        if attempt.environment is not None:
            self._busy.pop(attempt.environment, None)

    async def _start(self, fences: Sequence[Fence]) -> Sequence[None]:
        """Nothing starts before its guarded `granted -> running` has committed."""
        try:
            async with self._store.write() as tx:
                rows = await repository.start(tx, fences, node_id=self.node_id, epoch=self.epoch)
        except Exception:
            # Not known whether it committed: the poll reads the rows and starts what is running and not here.
            for fence in fences:
                self._give_back(fence)
            raise
        started = {Fence(row.id, row.grant_no): row for row in rows}
        for fence in fences:
            if fence not in started:
                self._give_back(fence)
        await self._launch(started)
        return [None] * len(fences)

    async def _launch(self, rows: dict[Fence, Row[Any]]) -> None:
        specs: list[ExecSpec] = []
        for fence, row in rows.items():
            attempt = self._attempts[fence]
            refusal = self._not_runnable(fence, row)
            if refusal is not None:
                self._report(refusal)
                continue
            cores = self._core_map.assign(fence, attempt.amounts.get("cpu_milli", 0))
            specs.append(exec_spec(row, attempt.amounts, cores))
        if specs:
            await self._executor.start(specs)

    def _not_runnable(self, fence: Fence, row: Row[Any]) -> Report | None:
        if row.cancel:
            return Report(fence=fence, outcome="cancelled")
        if not row.environment_live:
            return Report(
                fence=fence,
                outcome="infra_error",
                reason="environment_lost",
                message="the trajectory's environment is gone; delete the trajectory to begin anew",
                environment_lost=True,
            )
        return None

    async def _follow(self) -> None:
        """Take in what the executor says. Its end is the end of this process: the supervisor starts both anew."""
        try:
            async for event in self._executor.events():
                if isinstance(event, Report):
                    self._report(event)
                else:
                    _background(self._settling, self._lose(event))
        except ConnectionError as error:
            self.failed = f"the launcher is gone: {error}"
            log.critical("%s; this manager ends too, for both to be started anew", self.failed)
            signal.raise_signal(signal.SIGTERM)

    def _report(self, report: Report) -> None:
        _background(self._settling, self._settle_until_done(report))

    async def _settle_until_done(self, report: Report) -> None:
        while True:
            try:
                await self._settles.submit(report, weight=len(report.stdout.kept) + len(report.stderr.kept))
            except Exception as error:  # noqa: BLE001 - the report is kept until the database takes it
                log.warning("settle of %s failed, trying again: %r", report.fence, error)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _settle(self, reports: Sequence[Report]) -> Sequence[None]:
        async with self._store.write() as tx:
            await repository.settle(tx, reports, epoch=self.epoch)
        fences = [report.fence for report in reports]
        for report in reports:
            attempt = self._attempts.get(report.fence)
            if report.environment_lost and attempt is not None and attempt.environment is not None:
                self._forget_home(attempt.environment)
            self._give_back(report.fence)
        self._notifier.notify()
        self._hint_freed(fences)
        await self._executor.acknowledge(fences)
        return [None] * len(reports)

    async def _lose(self, status: EnvironmentStatus) -> None:
        async with self._store.write() as tx:
            await repository.lose_environments(tx, [status.id], reason=status.lost_reason, epoch=self.epoch)
        self._forget_home(status.id)

    def _forget_home(self, environment: UUID) -> None:
        self._homes.discard(environment)
        self._ledger.release(environment)

    async def _poll(self) -> bool:
        """The truth: grants that no hint brought, cancel wishes, fences lost, environments to end."""
        before = set(self._attempts)
        async with self._store.read() as tx:
            found = await repository.poll(tx, node_id=self.node_id, epoch=self.epoch)
        rows = {Fence(UUID(row["id"]), row["grant_no"]): row for row in found.held}
        granted = [_grant(row) for fence, row in rows.items() if row["state"] == "granted" and fence not in before]
        if granted:
            await self.offer(granted, epoch=self.epoch)
        await self._start_stranded({f: row for f, row in rows.items() if row["state"] == "running"})
        lost = {fence for fence in before if fence not in rows}
        wished = {fence for fence, row in rows.items() if row["cancel"] and fence in self._attempts}
        await self._kill((lost | wished) & self._attempts.keys())
        if found.ending:
            await self._end(found.ending)
        return bool(found.held or found.ending)

    async def _kill(self, fences: set[Fence]) -> None:
        new = sorted(fences - self._killed)
        if new:
            self._killed.update(new)
            await self._executor.kill(new)

    async def _end(self, ending: Sequence[tuple[UUID, str]]) -> None:
        idle = [(environment, reason) for environment, reason in ending if environment not in self._busy]
        if not idle:
            return
        await self._executor.destroy([environment for environment, _ in idle])
        async with self._store.write() as tx:
            await repository.end_environments(tx, idle, epoch=self.epoch)
        for environment, _ in idle:
            self._forget_home(environment)
        self._peers.hint(f"{self._settings.scheduler_url}/internal/freed", FreedHint(fences=[]))

    async def _adopt(self, state: ExecutorState) -> None:
        """Bring rows and executor together: the executor knows what runs, the rows know what counts."""
        async with self._store.read() as tx:
            found = await repository.poll(tx, node_id=self.node_id, epoch=self.epoch)
            homes = await repository.live_environments(tx, node_id=self.node_id, epoch=self.epoch)
        for home in homes:
            self._homes.add(home.id)
            self._ledger.take(home.id, NODE, {"memory_mib": home.memory_mib, "disk_mib": home.disk_mib})
        rows = {Fence(UUID(row["id"]), row["grant_no"]): row for row in found.held}
        running = dict(state.running)
        for fence, row in rows.items():
            if row["state"] == "running":
                self._readopt(fence, _grant(row))
        for report in state.reports:
            self._report(report)
        await self._executor.kill([fence for fence in running if fence not in rows])
        in_use = self._homes | set(running.values())
        await self._executor.destroy([home for home in state.environments if home not in in_use])
        reported = {report.fence for report in state.reports}
        await self._launch_missing([f for f in self._attempts if f not in running and f not in reported])
        log.info("adopted %d running attempts and %d reports", len(running), len(reported))

    def _readopt(self, fence: Fence, grant: GrantBody) -> None:
        attempt = _Attempt(fence, grant.amounts, grant.environment_id)
        if not self._take(attempt):
            # Rows win over our arithmetic: it runs, so it holds.
            self._attempts[fence] = attempt
            self._ledger.take(fence, NODE, attempt.amounts)
        self._core_map.assign(fence, attempt.amounts.get("cpu_milli", 0))

    async def _start_stranded(self, running: dict[Fence, dict[str, Any]]) -> None:
        """Rows that are running and unknown here: their commit was lost sight of, so nothing has started."""
        missing = [fence for fence in running if fence not in self._attempts]
        for fence in missing:
            self._readopt(fence, _grant(running[fence]))
        await self._launch_missing(missing)

    async def _launch_missing(self, fences: Sequence[Fence]) -> None:
        if not fences:
            return
        async with self._store.read() as tx:
            rows = await repository.load(tx, [fence.action_id for fence in fences], epoch=self.epoch)
        found = {Fence(row.id, row.grant_no): row for row in rows}
        for fence in fences:
            self._core_map.release(fence)
            if fence not in found:
                self._give_back(fence)
        await self._launch({fence: row for fence, row in found.items() if fence in self._attempts})

    def _hint_freed(self, fences: Sequence[Fence]) -> None:
        body = FreedHint(fences=[FenceBody(id=fence.action_id, grant_no=fence.grant_no) for fence in fences])
        self._peers.hint(f"{self._settings.scheduler_url}/internal/freed", body)

    def _describe(self, state: ExecutorState) -> dict[str, Any]:
        return {
            "name": self._settings.node_name,
            "url": self._settings.url,
            "epoch": state.node_epoch,
            "driver": state.driver,
            "capacity": json.dumps(self._ledger.capacity(NODE)),
            "topology": json.dumps({"cores": list(self._cores)}),
            "enforced": json.dumps([asdict(capability) for capability in state.capabilities]),
        }


def _grant(row: dict[str, Any]) -> GrantBody:
    return GrantBody.model_validate({key: row[key] for key in ("id", "grant_no", "amounts", "environment_id")})


def _split(amounts: Amounts, *, environment: bool) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if (name in ENVIRONMENT_RESOURCES) == environment}


def _background(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(lambda done: _forget(tasks, done))


def _forget(tasks: set[asyncio.Task[None]], done: asyncio.Task[None]) -> None:
    tasks.discard(done)
    if not done.cancelled() and (error := done.exception()) is not None:
        log.warning("background work failed: %r", error)

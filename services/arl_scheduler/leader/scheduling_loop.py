"""The leader's loop: notifications and polls as input, one UPDATE per round as output.

The loop owns all state. Load -> decide -> apply -> notify; no transaction is open while it decides or calls other
services. After any error the index is discarded and rebuilt from rows.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from uuid import UUID

from arl_core.capacity.gangs import limit_grants
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.control.reclaim import ReclaimDecision
from arl_core.domain.model import Fence
from arl_core.domain.states import ActionOutcome
from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.spar import SparPolicy
from arl_kit.action_metrics import ActionMetrics, TaskLabels
from arl_kit.failpoints import Failpoints
from arl_kit.metrics import Metrics
from arl_kit.service_client import ServiceClient
from arl_kit.telemetry import current_traceparent, new_traceparent
from arl_scheduler.index.image_table import wanted_images
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.leader.backlog import read_backlog
from arl_scheduler.leader.duration_learner import DurationLearner
from arl_scheduler.leader.election import DatabaseClock, LeaderElection
from arl_scheduler.leader.image_coordinator import ImageCoordinator
from arl_scheduler.leader.leader_gauges import LeaderGauges
from arl_scheduler.leader.node_failures import HeartbeatWatch, find_failed, reclaimed_core_times
from arl_scheduler.leader.notification_inbox import (
    NotificationInbox,
    PendingNotifications,
    notify_environment_ends,
    notify_grants,
)
from arl_scheduler.leader.partition_maintenance import PartitionMaintenance
from arl_scheduler.leader.resize_coordinator import ResizeCoordinator
from arl_scheduler.leader.round_writer import RoundWriter
from arl_scheduler.leader.scheduler_traces import SchedulerTraces
from arl_scheduler.leader.step_coordinator import StepCoordinator
from arl_scheduler.leader.straggler_detector import StragglerDetector
from arl_scheduler.metrics import SchedulerMetrics
from arl_scheduler.queries import leader_queries, repository
from arl_scheduler.queries.leader_queries import TermLostError
from arl_scheduler.queries.poll_result import PollResult, ResizeUpdate
from arl_scheduler.settings import SchedulerSettings
from arl_store.tx import PostgresStore
from arl_store.wake import WakeNotifier

__all__ = ["SchedulingLoop"]

STANDBY_S = 2.0
DEADLINE_RETRY_S = 1.0
"""Seconds before a deadline is checked again that has passed by our clock and not by the database's."""
ERROR_BACKOFF_S = 0.5

log = logging.getLogger(__name__)


class SchedulingLoop:
    """The loop of a scheduler: it tries to lead, and runs rounds while it leads."""

    def __init__(
        self,
        store: PostgresStore,
        peers: ServiceClient,
        notifier: WakeNotifier,
        settings: SchedulerSettings,
        policy: SchedulingPolicy | None = None,
        *,
        metrics: Metrics | None = None,
        traces: SchedulerTraces | None = None,
    ) -> None:
        self._store = store
        self._peers = peers
        self._notifier = notifier
        self._settings = settings
        self._policy = policy or FirstComeFirstServed()
        self.election = LeaderElection(store, ttl_s=settings.leader_ttl_s)
        self._refused_queued: set[UUID] = set()
        """Actions that the last round was refused and that are still queued."""
        self._failpoints = Failpoints(settings.failpoints)
        metrics = metrics or Metrics()
        self._metrics = SchedulerMetrics(metrics)
        self._writer = RoundWriter(store, self.election, self._failpoints, self._metrics)
        self._action_metrics = ActionMetrics(metrics, TaskLabels(store))
        self._gauges = LeaderGauges(self._action_metrics.task_labels, self._metrics)
        metrics.add_scrape_hook(self._collect_metrics)
        self._traces = traces or SchedulerTraces()
        self.duration_learner = DurationLearner(store)
        self.straggler_detector = StragglerDetector()
        self.steps = StepCoordinator(store, peers, is_boosting=settings.step_aware and isinstance(policy, SparPolicy))
        self.inbox = NotificationInbox()
        self._resizer = ResizeCoordinator(peers, self.inbox)
        self._index: SchedulerIndex | None = None
        self._clock = DatabaseClock()
        self._watch = HeartbeatWatch()
        self._images = ImageCoordinator(store, peers, self.election)
        self._next_poll = 0.0
        self._poll_interval = settings.poll_busy_s
        self._partitions = PartitionMaintenance(store)
        self._has_more_to_settle = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the loop in the running event loop."""
        self._task = asyncio.create_task(self._run(), name="rounds")

    async def stop(self) -> None:
        """Stop the loop, save the estimates and resign, so that a standby takes over at once."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._resizer.stop()
        with contextlib.suppress(Exception):
            await self.duration_learner.save(self.election, force=True)
            await self.steps.save(self.election, force=True)
        await self.election.resign()

    def view(self) -> tuple[SchedulerIndex, CellSnapshot] | None:
        """Return the index and a round's view; None if this scheduler does not lead or has not read everything yet."""
        index = self._index
        if index is None or self.election.term is None:
            return None
        return index, self._snapshot(index)

    def _snapshot(self, index: SchedulerIndex) -> CellSnapshot:
        times = {"now": self._clock.now(), "watching_since": self._watch.since}
        return index.snapshot(silent_after_s=self._settings.node_ttl_s, **times)

    async def _run(self) -> None:
        while True:
            try:
                await self._iterate()
            except TermLostError:
                self.election.mark_lost()
                self._index = None
            except Exception as error:
                # It is unknown whether a commit succeeded; only the rows show it.
                self._metrics.round_failures.inc()
                log.warning(
                    "scheduling round failed, rebuilding the index: %r", error, exc_info=self._index is not None
                )
                self._index = None
                await asyncio.sleep(ERROR_BACKOFF_S)

    async def _iterate(self) -> None:
        if self.election.term is None and not await self.election.acquire():
            self.inbox.drain()
            await asyncio.sleep(STANDBY_S)
            return
        current_traceparent.set(new_traceparent())
        if not await self.election.renew_if_due():
            self._index = None
            return
        index = self._index
        if index is None or self.inbox.is_poll_requested or time.monotonic() >= self._next_poll:
            index = await self._poll()
        index.curves.now = self._clock.now()
        mail = self._drain_inbox(index)
        await self._write_confirmed_resizes(index, mail)
        await self._settle_due(index)
        await self.steps.update(index, now=self._clock.now())
        granted = await self._run_round(index)
        if not granted:
            await self._wait_for_work(index)

    async def _wait_for_work(self, index: SchedulerIndex) -> None:
        if self._has_more_to_settle:
            return
        if index.images.is_poll_needed:
            self.inbox.is_poll_requested = True
        due = 0.0 if self.inbox.is_poll_requested else self._next_poll - time.monotonic()
        deadline = index.next_deadline()
        if deadline is not None:
            due = min(due, deadline - self._clock.now() + 0.001)
        if (refilled := index.rate_limit_timer.next_refill_at()) is not None:
            due = min(due, refilled - time.monotonic())
        if (projected_s := self.steps.next_projection_in_s()) is not None:
            due = min(due, projected_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(due, 0.0)):
                await self.inbox.wait()

    def _drain_inbox(self, index: SchedulerIndex) -> PendingNotifications:
        mail = self.inbox.drain()
        if mail:
            self._poll_interval = self._settings.poll_busy_s
            self._next_poll = min(self._next_poll, time.monotonic() + self._poll_interval)
        self.steps.end_notified(mail, now=self._clock.now())
        index.admit(mail.admitted)
        index.release_attempts(mail.freed, requeued=mail.requeued)
        self._report_released(index, mail)
        return mail

    async def _write_confirmed_resizes(self, index: SchedulerIndex, notifications: PendingNotifications) -> None:
        """Write confirmed resizes. Resources of a shrink become available only here."""
        self._resizer.mark_unconfirmed(notifications.unanswered)
        written, asked = self._resizer.process_responses(index.allocations, notifications.resized)
        if written:
            self._failpoints.hit("scheduler.before_shrink_commit")
            async with self._store.write() as tx:
                await leader_queries.lock_term(tx, cell=self.election.cell, term=self._require_term())
                taken = await repository.resize(tx, written, confirmed=True)
            self._apply_resizes(index, [change for change in written if change.fence in taken], "shrunk")
        self._resizer.send(index.allocations, index.nodes, asked)

    def _apply_resizes(self, index: SchedulerIndex, changes: Sequence[ResizeUpdate], direction: str) -> None:
        """Apply resizes that were written to their rows."""
        for change in changes:
            index.allocations.apply_resize(change.fence, change.resources, seq=change.seq, now=self._clock.now())
        self._metrics.resizes.labels(direction).inc(len(changes))

    def _report_released(self, index: SchedulerIndex, notifications: PendingNotifications) -> None:
        """Report the released allocations to traces and to the learner."""
        released = index.allocations.take_released()
        if released:
            self._traces.mark_finished(hold.fence.action_id for hold in released)
        self.duration_learner.record_released(
            released, notifications.runs, notified=frozenset(notifications.freed), now=self._clock.now()
        )
        self.steps.record_released(index, released, notifications, now=self._clock.now())

    async def _poll(self) -> SchedulerIndex:
        await self.duration_learner.begin(term=self._require_term())
        await self.steps.begin(term=self._require_term())
        learner, cell = self.duration_learner, self._settings.cell
        rebuilding = self._index is None
        index = self._index or SchedulerIndex(
            self._policy, learner.curves, learner.min_run_time_s, cell=cell, steps=self.steps.begin_index()
        )
        index.begin_poll()
        images = wanted_images(index.candidates.queue).keys()
        self.inbox.is_poll_requested = False
        with self._metrics.polls.time():
            async with self._store.read() as tx:
                found = await repository.poll(tx, checkpoint=index.checkpoint, in_pages=rebuilding, images=images)
            self._clock.set(found.now)
            late_s = self._poll_interval + self._settings.node_ttl_s / 2
            self._watch.update(found.now, is_rebuilding=rebuilding, max_pause_s=late_s)
            index.rate_limit_timer.refill(time.monotonic())
            index.images.begin(images, found.images)
            index.reconcile(found)
            self.steps.apply_poll(found)
            notify_environment_ends(self._peers, index.nodes, found)
            if rebuilding:
                self._traces.reset()
                self._resizer.begin(index.allocations)
                await read_backlog(self._store, self.election, index, page_rows=self._settings.recovery_page_size)
        self._index = index
        busy = bool(found.queued or found.allocations or index.queued_count)
        step = self._settings.poll_busy_s
        self._poll_interval = step if busy else min(self._poll_interval * 2, self._settings.poll_idle_s)
        self._next_poll = time.monotonic() + self._poll_interval
        await self._reclaim(index, found)
        await self._settle(index, dict.fromkeys(found.cancelled, (ActionOutcome.CANCELLED, None)))
        await self._settle(index, await self._images.update(index, self._snapshot(index)))
        if len(found.cancelled) == repository.SETTLE_PAGE:
            self._next_poll = 0.0  # more are cancelled; a round runs before the next page
        if rebuilding:
            await self._settle(index, index.candidates.incomplete_gangs())
        self._resizer.retry_unconfirmed(index.allocations, index.nodes)
        await self.duration_learner.read_missed_runs(now=self._clock.now())
        self.straggler_detector.update(index.allocations, self.duration_learner.estimates, now=self._clock.now())
        self._traces.mark_stragglers(self.straggler_detector)
        await self.duration_learner.save(self.election)
        await self.steps.save(self.election)
        if await self._partitions.ensure_if_due():
            await self.duration_learner.delete_old(self.election)
            await self.steps.delete_old(self.election)
        return index

    async def _reclaim(self, index: SchedulerIndex, poll: PollResult) -> None:
        ttl_s, away_s = self._settings.node_ttl_s, self._settings.environment_loss_after_s
        verdicts, away = find_failed(
            index, poll, watching_since=self._watch.since, ttl_s=ttl_s, environment_loss_after_s=away_s
        )
        if verdicts or away:
            await self._apply_reclaim(index, verdicts, away)

    async def _apply_reclaim(
        self, index: SchedulerIndex, decisions: tuple[ReclaimDecision, ...], lost_nodes: list[int]
    ) -> None:
        async with self._store.write() as tx:
            await leader_queries.lock_term(tx, cell=self.election.cell, term=self._require_term())
            if lost_nodes:
                await repository.mark_environments_lost(tx, lost_nodes, away_s=self._settings.environment_loss_after_s)
            rows = await repository.reclaim(tx, decisions) if decisions else ()
        reclaimed = frozenset(Fence(row.id, row.grant_no) for row in rows)
        self._action_metrics.record(rows, reclaimed_core_times(rows))
        self._metrics.reclaimed.inc(len(reclaimed))
        log.warning("reclaimed %d attempts; the environments of nodes %s are lost", len(reclaimed), lost_nodes)
        requeued = {verdict.fence for verdict in decisions if verdict.requeue}
        index.release_attempts(reclaimed, requeued=requeued & reclaimed)
        self._next_poll = 0.0
        self._notifier.notify()

    async def _settle_due(self, index: SchedulerIndex) -> None:
        stranded = index.environments.stranded_actions(limit=repository.SETTLE_PAGE)
        self._has_more_to_settle = len(stranded) == repository.SETTLE_PAGE
        await self._settle(index, stranded)
        # Actions that did not settle were no longer queued: a notification was late.
        index.drop_refused(stranded)
        overdue = index.take_missed_deadlines(now := self._clock.now(), limit=repository.SETTLE_PAGE)
        settled = await self._settle(index, {id: (ActionOutcome.DEADLINE_IN_QUEUE, why) for id, why in overdue.items()})
        index.deadlines.reschedule(overdue.keys() - settled, now + DEADLINE_RETRY_S)

    async def _settle(
        self, index: SchedulerIndex, due: Mapping[UUID, tuple[ActionOutcome, str | None]]
    ) -> frozenset[UUID]:
        if not due:
            return frozenset()
        async with self._store.write() as tx:
            await leader_queries.lock_term(tx, cell=self.election.cell, term=self._require_term())
            rows = [*await repository.settle_queued(tx, due)]
            if mates := index.candidates.gang_failures({row.id: due[row.id] for row in rows}):
                rows += await repository.settle_queued(tx, mates)
        settled = frozenset(row.id for row in rows)
        index.drop_refused(settled)
        self._traces.mark_finished(settled)
        self._action_metrics.record(rows)
        if settled:
            self._notifier.notify()
        return settled

    async def _run_round(self, index: SchedulerIndex) -> bool:
        """Run a round. Return True if it made grants, so that the inbox is read again at once."""
        if not index.queued_count and not index.allocations.has_resizable:
            return False
        with self._metrics.rounds.time():
            return await self._decide(index)

    async def _decide(self, index: SchedulerIndex) -> bool:
        began = now = self._clock.now()
        index.rate_limit_timer.refill(time.monotonic())
        plan = index.plan(now=now, silent_after_s=self._settings.node_ttl_s, watching_since=self._watch.since)
        decided = limit_grants(plan.grants, self._settings.round_limit)
        critical = index.critical_grants(decided)
        growths = self._resizer.growths(index.allocations, plan.resizes)
        shrinks = self._resizer.shrinks(index.allocations, plan.resizes)
        decided_at = self._clock.now()
        granted, grown = await self._writer.write(index, decided, growths, critical)
        index.rate_limit_timer.mark_committed(time.monotonic())
        taken = [grant for grant in decided if grant.fence in granted]
        index.apply_grants(taken, now=now)
        growths = [change for change in growths if change.fence in grown]
        self._apply_resizes(index, growths, "grown")
        if taken:
            self._traces.export_round(taken, started=began, decided=decided_at, ended=self._clock.now())
        notify_grants(self._peers, index.nodes, taken, index.expected_cpu_s, critical=critical)
        self._resizer.send(index.allocations, index.nodes, [*shrinks, *growths])
        missing = [grant.fence for grant in decided if grant.fence not in granted]
        await self._drop_refused(index, {fence.action_id: fence.grant_no for fence in missing})
        return bool(decided)

    async def _drop_refused(self, index: SchedulerIndex, refused: Mapping[UUID, int]) -> None:
        """Settle or forget actions that Postgres refused to grant.

        They are cancelled, late, settled, or affected by a request that no poll has read. If the same action is refused
        after the next poll, the index is stale and is rebuilt.
        """
        left = refused.keys() - await self._settle(index, dict.fromkeys(refused, (ActionOutcome.CANCELLED, None)))
        left -= await self._settle(index, dict.fromkeys(left, (ActionOutcome.DEADLINE_IN_QUEUE, None)))
        if not left:
            self._refused_queued = set()
            return
        async with self._store.read() as tx:
            waiting = await repository.still_queued(tx, {id: refused[id] for id in left})
        index.drop_refused(left - waiting)
        self.inbox.is_poll_requested = True
        doubted, self._refused_queued = self._refused_queued, waiting
        if waiting & doubted:
            log.warning("Postgres refused %d grants that the index considers valid, rebuilding the index", len(waiting))
            self._index = None
            await asyncio.sleep(ERROR_BACKOFF_S)

    async def _collect_metrics(self) -> None:
        """Update the gauges for a scrape. Only the leader has an index."""
        await self._gauges.update(
            self._index if self.election.term is not None else None,
            is_leader=self.election.term is not None,
            stragglers=len(self.straggler_detector),
            classes=self.duration_learner.estimates.class_count,
            critical=self.steps.critical_count,
            now=self._clock.now,
        )

    def _require_term(self) -> int:
        if self.election.term is None:
            raise TermLostError
        return self.election.term

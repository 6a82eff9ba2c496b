"""The leader's loop: mailbox and poll in, one UPDATE per round out.

All state belongs to this one loop. Load -> decide -> apply -> hint; no transaction is open while it
decides or calls out. After any error the index is thrown away and rebuilt from rows.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from uuid import UUID

from arl_core.fence import Fence
from arl_core.gangs import within
from arl_core.model import Grant
from arl_core.plan import FirstComeFirstServed, Policy
from arl_core.reclaim import Verdict
from arl_core.snapshot import Snapshot
from arl_core.states import Outcome
from arl_kit.failpoints import Failpoints
from arl_kit.metrics import Metrics
from arl_kit.peers import Peers
from arl_kit.telemetry import current_traceparent, new_traceparent
from arl_scheduler import repository, terms
from arl_scheduler.backlog import read_backlog
from arl_scheduler.clock import DatabaseClock
from arl_scheduler.hints import hint_ends, hint_grants
from arl_scheduler.index import Index
from arl_scheduler.leader import Leadership
from arl_scheduler.learning import Learning
from arl_scheduler.losses import lost
from arl_scheduler.mailbox import Mail, Mailbox
from arl_scheduler.metrics import SchedulerMetrics
from arl_scheduler.resizing import Resizing
from arl_scheduler.rows import NewAmounts, PollResult
from arl_scheduler.settings import SchedulerSettings
from arl_scheduler.straggling import Straggling
from arl_scheduler.terms import TermLost
from arl_scheduler.traces import Traces
from arl_store.tx import Store, is_temporary
from arl_store.wake import Notifier

__all__ = ["Rounds"]

STANDBY_S = 2.0
LATE_AGAIN_S = 1.0
"""Before what is late by our clock, and was not by that of Postgres, is looked at again."""
AFTER_ERROR_S = 0.5
PARTITIONS_EVERY_S = 6 * 3600
PARTITIONS_AGAIN_S = 300
"""After somebody had the tables locked, as a backup has."""
PARTITIONS_AHEAD = 7

log = logging.getLogger(__name__)


class Rounds:
    def __init__(
        self,
        store: Store,
        peers: Peers,
        notifier: Notifier,
        settings: SchedulerSettings,
        policy: Policy | None = None,
        *,
        metrics: Metrics | None = None,
        traces: Traces | None = None,
    ) -> None:
        self._store = store
        self._peers = peers
        self._notifier = notifier
        self._settings = settings
        self._policy = policy or FirstComeFirstServed()
        self.leadership = Leadership(store, cell=settings.cell, ttl_s=settings.leader_ttl_s)
        self._doubted: set[UUID] = set()
        """What the last round was refused that waits all the same."""
        self._failpoints = Failpoints(settings.failpoints)
        metrics = metrics or Metrics()
        self._metrics = SchedulerMetrics(metrics)
        metrics.on_scrape(self._show)
        self._traces = traces or Traces()
        self._queue_names: dict[int, tuple[str, str]] = {}
        self.learning = Learning(store)
        self.straggling = Straggling()
        self.mailbox = Mailbox()
        self._resizing = Resizing(peers, self.mailbox)
        self._index: Index | None = None
        self._clock = DatabaseClock()
        self._watching_since = 0.0
        self._next_poll = 0.0
        self._poll_interval = settings.poll_busy_s
        self._polled_at = time.monotonic()
        self._partitions_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._forever(), name="rounds")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._resizing.stop()
        with contextlib.suppress(Exception):
            await self.learning.keep(self.leadership, at_once=True)
        await self.leadership.resign()

    def view(self) -> tuple[Index, Snapshot] | None:
        """What a round would look at now; None of a scheduler that does not lead, or has not read everything yet."""
        index, ttl_s = self._index, self._settings.node_ttl_s
        if index is None or self.leadership.term is None:
            return None
        times = {"now": self._clock.now(), "watching_since": self._watching_since}
        return index, index.snapshot(silent_after_s=ttl_s, **times)

    async def _forever(self) -> None:
        while True:
            try:
                await self._turn()
            except TermLost:
                self.leadership.lost()
                self._index = None
            except Exception as error:
                # Whether a commit took is unknown now; rows know.
                self._metrics.round_failures.inc()
                log.warning("round failed, rebuilding the index: %r", error, exc_info=self._index is not None)
                self._index = None
                await asyncio.sleep(AFTER_ERROR_S)

    async def _turn(self) -> None:
        if self.leadership.term is None and not await self.leadership.acquire():
            self.mailbox.empty()
            await asyncio.sleep(STANDBY_S)
            return
        current_traceparent.set(new_traceparent())
        if not await self.leadership.renew_if_due():
            self._index = None
            return
        index = self._index
        if index is None or self.mailbox.asked or time.monotonic() >= self._next_poll:
            index = await self._poll()
        index.curves.now = self._clock.now()
        mail = self._empty_mailbox(index)
        await self._write_confirmed(index, mail)
        await self._settle_due(index)
        granted = await self._round(index)
        if not granted:
            await self._wait(index)

    async def _wait(self, index: Index) -> None:
        due = 0.0 if self.mailbox.asked else self._next_poll - time.monotonic()
        deadline = index.next_deadline()
        if deadline is not None:
            due = min(due, deadline - self._clock.now() + 0.001)
        if (refilled := index.tokens.next_at()) is not None:
            due = min(due, refilled - time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(due, 0.0)):
                await self.mailbox.wait()

    def _empty_mailbox(self, index: Index) -> Mail:
        mail = self.mailbox.empty()
        if mail:
            self._poll_interval = self._settings.poll_busy_s
            self._next_poll = min(self._next_poll, time.monotonic() + self._poll_interval)
        index.admit(mail.admitted)
        index.freed(mail.freed, requeued=mail.requeued)
        self._ended(index, mail)
        return mail

    async def _write_confirmed(self, index: Index, mail: Mail) -> None:
        """What managers said of resizes: only now is free what shrinks gave back."""
        self._resizing.unanswered(mail.unanswered)
        written, asked = self._resizing.confirmed(index.holds, mail.resized)
        if written:
            self._failpoints.hit("scheduler.before_shrink_commit")
            async with self._store.write() as tx:
                await terms.hold_term(tx, cell=self.leadership.cell, term=self._term())
                taken = await repository.resize(tx, written, confirmed=True)
            self._resized(index, [change for change in written if change.fence in taken], "shrunk")
        self._resizing.ask(index.holds, index.nodes, asked)

    def _resized(self, index: Index, changes: Sequence[NewAmounts], how: str) -> None:
        """Their rows say so."""
        for change in changes:
            index.holds.resized(change.fence, change.amounts, seq=change.seq, now=self._clock.now())
        self._metrics.resizes.labels(how).inc(len(changes))

    def _ended(self, index: Index, mail: Mail) -> None:
        """Tell everybody who cares what is held no longer."""
        released = index.holds.released()
        if released:
            self._traces.over(hold.fence.action_id for hold in released)
        self.learning.ended(released, mail.runs, told=frozenset(mail.freed), now=self._clock.now())

    async def _poll(self) -> Index:
        await self.learning.begin(term=self._term())
        index = self._index or Index(self._policy, self.learning.curves, self.learning.usual_s)
        rebuilding = self._index is None
        index.poll_begins()
        self.mailbox.asked = False
        with self._metrics.polls.time():
            async with self._store.read() as tx:
                found = await repository.poll(tx, mark=index.mark, in_pages=rebuilding)
            self._clock.set(found.now)
            self._watch(found, begun=rebuilding)
            index.tokens.refill(time.monotonic())
            index.reconcile(found)
            hint_ends(self._peers, index.nodes, found)
            if rebuilding:
                self._traces.begins_anew()
                self._resizing.begin(index.holds)
                await read_backlog(self._store, self.leadership, index, page_rows=self._settings.rebuild_page)
        self._index = index
        busy = bool(found.queued or found.held or index.waiting)
        step = self._settings.poll_busy_s
        self._poll_interval = step if busy else min(self._poll_interval * 2, self._settings.poll_idle_s)
        self._next_poll = time.monotonic() + self._poll_interval
        await self._reclaim(index, found)
        await self._settle(index, dict.fromkeys(found.cancelled, (Outcome.CANCELLED, None)))
        if rebuilding:
            await self._settle(index, index.offers.torn())
        self._resizing.look(index.holds, index.nodes)
        await self.learning.look(now=self._clock.now())
        self.straggling.look(index.holds, self.learning.estimates, now=self._clock.now())
        self._traces.straggle(self.straggling)
        await self.learning.keep(self.leadership)
        await self._keep_partitions()
        return index

    def _watch(self, found: PollResult, *, begun: bool) -> None:
        """Silence counts only while this leader could have seen a beat.

        A poll that comes late, because this process, its loop or Postgres stood still, gives every node a whole lease.
        """
        now = time.monotonic()
        late = now - self._polled_at > self._poll_interval + self._settings.node_ttl_s / 2
        if begun or late:
            self._watching_since = found.now
        self._polled_at = now

    async def _reclaim(self, index: Index, found: PollResult) -> None:
        ttl_s, away_s = self._settings.node_ttl_s, self._settings.node_away_s
        verdicts, away = lost(index, found, watching_since=self._watching_since, ttl_s=ttl_s, away_s=away_s)
        if verdicts or away:
            await self._apply_reclaim(index, verdicts, away)

    async def _apply_reclaim(self, index: Index, verdicts: tuple[Verdict, ...], away: list[int]) -> None:
        async with self._store.write() as tx:
            await terms.hold_term(tx, cell=self.leadership.cell, term=self._term())
            if away:
                await repository.lose_environments(tx, away, away_s=self._settings.node_away_s)
            reclaimed = await repository.reclaim(tx, verdicts) if verdicts else frozenset()
        self._metrics.reclaimed.inc(len(reclaimed))
        log.warning("reclaimed %d attempts; environments of nodes %s are lost", len(reclaimed), away)
        requeued = {verdict.fence for verdict in verdicts if verdict.requeue}
        index.freed(reclaimed, requeued=requeued & reclaimed)
        self._next_poll = 0.0
        self._notifier.notify()

    async def _settle_due(self, index: Index) -> None:
        stranded = index.homes.stranded()
        await self._settle(index, dict.fromkeys(stranded, (Outcome.INFRA_ERROR, "environment_lost")))
        # What did not settle now was no longer queued: a hint that came late.
        index.refused(stranded)
        overdue = index.overdue(now := self._clock.now())
        settled = await self._settle(index, {id: (Outcome.DEADLINE_IN_QUEUE, why) for id, why in overdue.items()})
        index.deadlines.look_again(overdue.keys() - settled, now + LATE_AGAIN_S)

    async def _settle(self, index: Index, due: Mapping[UUID, tuple[Outcome, str | None]]) -> frozenset[UUID]:
        if not due:
            return frozenset()
        async with self._store.write() as tx:
            await terms.hold_term(tx, cell=self.leadership.cell, term=self._term())
            settled = await repository.settle_queued(tx, due)
            if mates := index.offers.broken({id: due[id] for id in settled}):
                due = {**due, **mates}
                settled |= await repository.settle_queued(tx, mates)
        index.refused(settled)
        self._traces.over(settled)
        for id in settled:
            self._metrics.settled.labels(due[id][0].value).inc()
        if settled:
            self._notifier.notify()
        return settled

    async def _round(self, index: Index) -> bool:
        """True if something was granted, so that the mailbox is looked at again at once."""
        if not index.waiting and not index.holds.any_resizable:
            return False
        with self._metrics.rounds.time():
            return await self._decide(index)

    async def _decide(self, index: Index) -> bool:
        began = now = self._clock.now()
        index.tokens.refill(time.monotonic())
        plan = index.plan(now=now, silent_after_s=self._settings.node_ttl_s, watching_since=self._watching_since)
        decided = within(plan.grants, self._settings.round_limit)
        growths = self._resizing.growths(index.holds, plan.resizes)
        shrinks = self._resizing.shrinks(index.holds, plan.resizes)
        decided_at = self._clock.now()
        granted, grown = await self._commit(index, decided, growths)
        index.tokens.committed(time.monotonic())
        taken = [grant for grant in decided if grant.fence in granted]
        index.granted(taken, now=now)
        growths = [change for change in growths if change.fence in grown]
        self._resized(index, growths, "grown")
        if taken:
            self._traces.round(taken, began=began, decided=decided_at, ended=self._clock.now())
        hint_grants(self._peers, index.nodes, taken)
        self._resizing.ask(index.holds, index.nodes, [*shrinks, *growths])
        missing = [grant.fence for grant in decided if grant.fence not in granted]
        await self._drop_refused(index, {fence.action_id: fence.grant_no for fence in missing})
        return bool(decided)

    async def _commit(
        self, index: Index, decided: Sequence[Grant], growths: Sequence[NewAmounts]
    ) -> tuple[frozenset[Fence], frozenset[Fence]]:
        """The grants that took, and the growths: both from what was free, in one commit."""
        granted: frozenset[Fence] = frozenset()
        grown: frozenset[Fence] = frozenset()
        if not decided and not growths:
            return granted, grown
        epochs = {node.id: node.epoch for node in index.nodes.values()}
        self._failpoints.hit("leader.between_decision_and_lock")
        async with self._store.write() as tx:
            await terms.hold_term(tx, cell=self.leadership.cell, term=self._term())
            self._failpoints.hit("leader.between_lock_and_update")
            if decided:
                granted = await repository.grant(tx, decided, epochs=epochs)
            if growths:
                grown = await repository.resize(tx, growths, confirmed=False)
        self._failpoints.hit("scheduler.after_grant_commit")
        if grown:
            self._failpoints.hit("scheduler.after_growth_commit")
        self._metrics.grants.inc(len(granted))
        return granted, grown

    async def _drop_refused(self, index: Index, refused: Mapping[UUID, int]) -> None:
        """What Postgres did not grant was cancelled or is late, is over, or waits for a wish that the next poll reads.

        Refused after that poll too, it shows that the index is stale.
        """
        left = refused.keys() - await self._settle(index, dict.fromkeys(refused, (Outcome.CANCELLED, None)))
        left -= await self._settle(index, dict.fromkeys(left, (Outcome.DEADLINE_IN_QUEUE, None)))
        if not left:
            self._doubted = set()
            return
        async with self._store.read() as tx:
            waiting = await repository.still_queued(tx, {id: refused[id] for id in left})
        index.refused(left - waiting)
        self.mailbox.asked = True
        doubted, self._doubted = self._doubted, waiting
        if waiting & doubted:
            log.warning("%d actions that seem to fit are refused, rebuilding the index", len(waiting))
            self._index = None
            await asyncio.sleep(AFTER_ERROR_S)

    async def _keep_partitions(self) -> None:
        if time.monotonic() - self._partitions_at < PARTITIONS_EVERY_S:
            return
        self._partitions_at = time.monotonic()
        try:
            async with self._store.write() as tx:
                await repository.ensure_partitions(tx, days=PARTITIONS_AHEAD + 1)
        except Exception as error:
            if not is_temporary(error):
                raise
            self._partitions_at += PARTITIONS_AGAIN_S - PARTITIONS_EVERY_S
            log.info("partitions are made later: %s", error)
        await self.learning.forget(self.leadership)

    async def _show(self) -> None:
        """For a scrape: the queues by name, of the leader only."""
        index = self._index if self.leadership.term is not None else None
        self._metrics.leader.set(self.leadership.term is not None)
        self._metrics.held.set(index.held if index is not None else 0)
        self._metrics.stragglers.set(len(self.straggling) if index is not None else 0)
        self._metrics.classes.set(self.learning.estimates.classes if index is not None else 0)
        self._metrics.depth.clear()
        self._metrics.oldest.clear()
        queues = index.queues() if index is not None else {}
        if unnamed := queues.keys() - self._queue_names.keys():
            async with self._store.read() as tx:
                self._queue_names |= await repository.queue_names(tx, unnamed)
        for queue, (depth, submitted) in queues.items():
            names = self._queue_names[queue]
            self._metrics.depth.labels(*names).set(depth)
            self._metrics.oldest.labels(*names).set(max(0.0, self._clock.now() - submitted))

    def _term(self) -> int:
        if self.leadership.term is None:
            raise TermLost
        return self.leadership.term

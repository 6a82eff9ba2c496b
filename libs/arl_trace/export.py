"""Spans of what settled, sent once to a collector: off the hot path, in batches, from rows.

At least once while this process lives, and with the same ids each time. A collector that is away costs memory for
some ids and nothing else; what does not fit any more is counted and can still be read at `/trace`.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from uuid import UUID

from arl_core.states import State
from arl_kit.metrics import Metrics
from arl_kit.otlp import Batch, Collector, Link, Refused, Sampler, Unreachable
from arl_store.tx import Row, Store
from arl_trace import repository
from arl_trace.life import Life, context_of, root_id, spans_of

__all__ = ["Exporter", "Round"]

PAGE = 500
"""Lives in one statement and in one request."""
LINGER_S = 0.5
"""After the first one, so that a page fills."""
WAITING = 65_536
"""Ids that may wait for a collector."""
LINKS = 128
ROUND_S = 5.0
"""How long a round waits for its actions' traces to be read anyway."""
ROUNDS = 4096
LOOK_BACK_S, ADMITTED_BACK_S, LOOK_BACK = 30.0, 600.0, 10_000
LONGEST_PAUSE_S = 30.0
STOP_S = 2.0
YIELD_EVERY = 25
"""Rows between which the process that decides has its turn."""

_LIMIT = "tangram.straggler.limit_ms"
"""Of an attempt that ran far longer than others of its class: after so long it was a straggler."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Round:
    """A round of the scheduler that granted something; seconds since the epoch, by the database's clock."""

    link: Link
    """Its own trace and span."""
    began: float
    decided: float
    ended: float
    granted: Sequence[tuple[UUID, int]]
    """Actions and their grant_no."""
    links: dict[UUID, Link] = field(default_factory=dict)


class Exporter:
    """Told what is over; reads the rows, keeps what the sampler takes, what failed and what was slow, and sends it.

    The store is its own, and closed with it.
    """

    def __init__(
        self, store: Store, collector: Collector, sampler: Sampler, *, slow_s: float, metrics: Metrics
    ) -> None:
        self._store = store
        self._collector = collector
        self._sampler = sampler
        self._slow_s = slow_s
        self._ids: dict[UUID, None] = {}
        self._rounds: deque[tuple[float, Round]] = deque()
        """With when they came, by the monotonic clock."""
        self._round_of: dict[UUID, dict[int, Round]] = {}
        self._straggled_s: dict[UUID, dict[int, float]] = {}
        """After how long an attempt was a straggler."""
        self._woken = asyncio.Event()
        self._looks_back = False
        self._pause_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._sent = metrics.counter("spans_exported", "Spans that the collector took")
        self._lost = metrics.counter("spans_lost", "Spans that were not sent, or actions whose spans were not", "why")
        self._failures = metrics.counter("span_export_failures", "Times that the collector was not to be reached")

    async def start(self) -> None:
        await self._collector.start()
        self._task = asyncio.create_task(self._forever(), name="span export")

    async def stop(self) -> None:
        """What is waiting goes out if that is quick."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            with contextlib.suppress(Exception):
                async with asyncio.timeout(STOP_S):
                    await self._flush()
        await self._collector.stop()
        await self._store.close()

    def over(self, ids: Iterable[UUID]) -> None:
        """These may have settled: their rows are looked at soon."""
        self._ids.update(dict.fromkeys(ids))
        if self._ids:
            self._forget_oldest()
            self._woken.set()

    def round(self, done: Round) -> None:
        self._rounds.append((time.monotonic(), done))
        for id, grant_no in done.granted:
            self._round_of.setdefault(id, {})[grant_no] = done
        if len(self._rounds) > ROUNDS:
            self._rounds.popleft()
            self._lost.labels("full").inc()
        while len(self._round_of) > WAITING:
            del self._round_of[next(iter(self._round_of))]
        self._woken.set()

    def straggles(self, id: UUID, grant_no: int, *, limit_s: float) -> None:
        """This attempt runs for longer than that: its span will say so, and is kept."""
        self._straggled_s.setdefault(id, {})[grant_no] = limit_s
        while len(self._straggled_s) > WAITING:
            del self._straggled_s[next(iter(self._straggled_s))]

    def look_back(self) -> None:
        """What settled just now was told to somebody else, who may not have sent it."""
        self._looks_back = True
        self._woken.set()

    async def _forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROUND_S if self._rounds else None):
                    await self._woken.wait()
            self._woken.clear()
            await asyncio.sleep(LINGER_S + self._pause_s)
            try:
                await self._flush()
            except Unreachable as error:
                self._failures.inc()
                self._pause_s = min(2 * self._pause_s or 1.0, LONGEST_PAUSE_S) * random.uniform(0.8, 1.0)  # noqa: S311
                log.debug("spans wait, the collector is not to be reached: %s", error)
                self._woken.set()
            except Exception as error:  # noqa: BLE001 - traces are never worth an outage
                log.warning("spans are not exported: %r", error)
                self._pause_s = LONGEST_PAUSE_S
                self._woken.set()
            else:
                self._pause_s = 0.0

    async def _flush(self) -> None:
        if self._looks_back:
            async with self._store.read() as tx:
                self.over(
                    await repository.settled_lately(
                        tx, settled_s=LOOK_BACK_S, admitted_s=ADMITTED_BACK_S, limit=LOOK_BACK
                    )
                )
            self._looks_back = False
        while self._ids:
            page = [id for id, _ in zip(self._ids, range(PAGE), strict=False)]
            # What settles while the page is on its way is told anew, and comes again.
            for id in page:
                del self._ids[id]
            try:
                await self._export(page)
            except Unreachable:
                self._ids = dict.fromkeys(page) | self._ids
                raise
            except Exception:
                self._lost.labels("unreadable").inc(len(page))
                raise
        await self._export_rounds()

    async def _export(self, ids: Sequence[UUID]) -> None:
        async with self._store.read() as tx:
            rows = await repository.lives(tx, ids)
        batch = self._collector.batch()
        granted_by = {id: dict(self._round_of[id]) for id in ids if id in self._round_of}
        for count, row in enumerate(rows):
            # What went back to the queue comes again.
            if row["state"] == State.SETTLED:
                self._add(batch, repository.life_of(row))
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        try:
            await self._send(batch)
        except Unreachable:
            # Whatever is sent again is linked again.
            self._round_of = granted_by | self._round_of
            raise
        for row in rows:
            if row["state"] == State.SETTLED:
                self._straggled_s.pop(row["id"], None)

    def _add(self, batch: Batch, life: Life) -> None:
        context = life.context
        rounds = self._round_of.pop(life.id, {})
        for done in rounds.values():
            done.links[life.id] = (context.trace_id, root_id(life.id))
        taken = self._sampler.takes(context.trace_id, parent=context.sampled)
        straggled_s = self._straggled_s.get(life.id, {})
        if not taken and not life.failed and life.act_s < self._slow_s and not straggled_s:
            return
        end = life.settled_at or life.created_at
        for span in spans_of(life, context):
            granted_by = rounds.get(span.attempt or 0) if span.name == "grant" else None
            limit_s = straggled_s.get(span.attempt or 0) if span.name == "process action" else None
            batch.add(
                span.name,
                (span.start, span.end or end),
                ids=(context.trace_id, span.span_id, span.parent_id),
                kind=span.kind,
                attributes=span.attributes,
                own=(*span.own, (_LIMIT, round(1000 * limit_s))) if limit_s is not None else span.own,
                error=span.error,
                links=(granted_by.link,) if granted_by is not None else (),
            )
            if context.parent_id is not None and life.tracestate:
                batch.say_state(life.tracestate)

    async def _export_rounds(self) -> None:
        """Those whose actions were read, and the old ones; for these the traces of actions that still run are read."""
        old = time.monotonic() - ROUND_S
        ripe: list[Round] = []
        entries = []
        while self._rounds and (self._rounds[0][0] < old or not _unlinked(self._rounds[0][1])):
            entries.append(self._rounds.popleft())
            ripe.append(entries[-1][1])
        kept = [done for done in ripe if self._sampler.takes(done.link[0])]
        if missing := {id for done in kept for id in _unlinked(done)}:
            async with self._store.read() as tx:
                found = {row.id: row for row in await repository.traceparents(tx, missing)}
            for done in kept:
                done.links |= {id: _root_of(found[id]) for id in _unlinked(done) if id in found}
        batch = self._collector.batch()
        for done in kept:
            _add_round(batch, done)
        try:
            await self._send(batch)
        except Unreachable:
            self._rounds.extendleft(reversed(entries))
            raise

    async def _send(self, batch: Batch) -> None:
        if not len(batch):
            return
        try:
            taken = await self._collector.send(batch)
        except Refused as error:
            log.warning("the collector refuses spans: %s", error)
            taken = 0
        self._sent.inc(taken)
        if taken < len(batch):
            self._lost.labels("refused").inc(len(batch) - taken)

    def _forget_oldest(self) -> None:
        for id in [id for id, _ in zip(self._ids, range(len(self._ids) - WAITING), strict=False)]:
            del self._ids[id]
            self._round_of.pop(id, None)
            self._lost.labels("full").inc()


def _add_round(batch: Batch, done: Round) -> None:
    trace_id, span_id = done.link
    began, decided, ended = (datetime.fromtimestamp(at, UTC) for at in (done.began, done.decided, done.ended))
    batch.add(
        "scheduler round",
        (began, ended),
        ids=(trace_id, span_id, None),
        attributes=(("messaging.system", "tangram"),),
        own=(("tangram.granted", len(done.granted)),),
        links=done.links.values(),
    )
    commit = blake2b(span_id, digest_size=8).digest()
    batch.add("commit grants", (decided, ended), ids=(trace_id, commit, span_id))


def _unlinked(done: Round) -> list[UUID]:
    """Of those that are linked at most: a collector takes so many links of one span."""
    return [id for id, _ in done.granted[:LINKS] if id not in done.links]


def _root_of(row: Row) -> Link:
    return context_of(row.id, row.traceparent, row.tracestate).trace_id, root_id(row.id)

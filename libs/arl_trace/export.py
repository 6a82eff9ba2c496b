"""Export of settled actions' spans: off the hot path, in batches, from rows, by any exporter of the OpenTelemetry SDK.

Spans are exported at least once while this process lives, with the same ids each time. While exporting fails, action
ids wait in a bounded queue. Spans that are given up are counted and can still be read at `/trace`.
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
from itertools import islice
from uuid import UUID

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import Decision

from arl_core.domain.states import ActionState
from arl_kit.metrics import Metrics
from arl_kit.telemetry.otel import TracePipeline
from arl_store.tx import PostgresStore, Row
from arl_trace import repository
from arl_trace.export_thread import ExportThread
from arl_trace.history import ActionHistory, TraceContext, context_of, root_span_id
from arl_trace.readable_spans import SpanBuilder, SpanIds

__all__ = ["Exporter", "Round"]

PAGE = 500
"""Actions per statement and per export request."""
LINKS = 128
"""Links of a round's span. The SDK's default limit is the same."""
ROUND_S = 5.0
"""Seconds until the traces of a round's actions are read even if they have not settled."""
ROUNDS = 4096
LOOK_BACK_S, ADMITTED_BACK_S, LOOK_BACK = 30.0, 600.0, 10_000
LONGEST_PAUSE_S = 30.0
RETRY_S = 600.0
"""Seconds from an action's first failed export until its spans are dropped: the collector may refuse only these."""
STOP_S, SHUT_DOWN_S = 2.0, 1.0
"""Limits in seconds of the last flush and of the exporters' shutdown."""
YIELD_EVERY = 25
"""Rows between which the event loop runs other work, such as scheduling decisions."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Round:
    """A round of the scheduler that granted actions; times are seconds since the epoch, by the database's clock."""

    link: SpanIds
    """Trace id and span id of the round."""
    began: float
    decided: float
    ended: float
    granted: Sequence[tuple[UUID, int]]
    """Granted actions and their grant_no."""
    links: dict[UUID, SpanIds] = field(default_factory=dict)


class ExportFailed(Exception):
    """An exporter did not accept the spans. A later attempt may succeed."""


class Exporter:
    """The exporter of settled actions' spans: those that the sampler takes, that failed, were slow or straggled.

    It owns its store and closes it.
    """

    def __init__(
        self, store: PostgresStore, pipeline: TracePipeline, *, version: str, slow_s: float, metrics: Metrics
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._builder = SpanBuilder(
            sampler=pipeline.sampler, resource=pipeline.resource, limits=pipeline.limits, version=version
        )
        self._thread = ExportThread(pipeline.exporters, batch_spans=pipeline.batch_spans)
        self._slow_s = slow_s
        self._ids: dict[UUID, float | None] = {}
        """Settled actions, with the time of the first failed export by the monotonic clock."""
        self._rounds: deque[tuple[float, Round]] = deque()
        """Rounds, with their arrival times by the monotonic clock."""
        self._round_of: dict[UUID, dict[int, Round]] = {}
        self._straggled_s: dict[UUID, dict[int, float]] = {}
        """Seconds after which an attempt counted as a straggler, by action and grant_no."""
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._looks_back = False
        self._pause_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._sent = metrics.counter("spans_exported", "Spans accepted by the exporters")
        self._lost = metrics.counter(
            "spans_lost", "Spans that were not exported, or actions whose spans were not exported, by reason", "why"
        )
        self._failures = metrics.counter("span_export_failures", "Failed exports; most are tried again")

    async def start(self) -> None:
        """Start the export thread and the task that reads rows."""
        self._thread.start()
        self._task = asyncio.create_task(self._forever(), name="span export")

    async def stop(self) -> None:
        """Export the queued actions, at most for `STOP_S`, and shut the exporters down."""
        self._stopping.set()
        self._woken.set()
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._task
        if self._ids or self._rounds:
            log.warning("spans of %d actions are not exported because the process ends", len(self._ids))
            self._lost.labels("stopped").inc(len(self._ids) + len(self._rounds))
        self._thread.stop()
        await asyncio.to_thread(self._pipeline.shut_down, within_s=SHUT_DOWN_S)
        await self._store.close()

    def over(self, ids: Iterable[UUID]) -> None:
        """Queue actions that may have settled; their rows are read soon."""
        self._ids.update((id, self._ids.get(id)) for id in ids)
        if self._ids:
            self._forget_oldest()
            self._woken.set()

    def round(self, done: Round) -> None:
        """Queue a round for export. Beyond the limits, the oldest rounds are dropped."""
        self._rounds.append((time.monotonic(), done))
        for id, grant_no in done.granted:
            self._round_of.setdefault(id, {})[grant_no] = done
        if len(self._rounds) > ROUNDS:
            self._rounds.popleft()
            self._lost.labels("full").inc()
        while len(self._round_of) > self._pipeline.queue_actions:
            del self._round_of[next(iter(self._round_of))]
        self._woken.set()

    def record_straggler(self, id: UUID, grant_no: int, *, limit_s: float) -> None:
        """Mark an attempt as a straggler: its span is kept and has the limit as an attribute."""
        self._straggled_s.setdefault(id, {})[grant_no] = limit_s
        while len(self._straggled_s) > self._pipeline.queue_actions:
            del self._straggled_s[next(iter(self._straggled_s))]

    def look_back(self) -> None:
        """Read recently settled actions again. Another process was notified of them and may not have exported them."""
        self._looks_back = True
        self._woken.set()

    async def _forever(self) -> None:
        stops = False
        while not stops:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROUND_S if self._rounds else None):
                    await self._woken.wait()
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pipeline.schedule_delay_s + self._pause_s):
                    await self._stopping.wait()
            stops = self._stopping.is_set()
            await self._try_to_flush()

    async def _try_to_flush(self) -> None:
        try:
            await self._flush()
        except ExportFailed as error:
            self._failures.inc()
            if not self._pause_s:
                log.warning("export of spans failed; trying again for %.0f s: %s", RETRY_S, error)
            self._pause_s = min(2 * self._pause_s or 1.0, LONGEST_PAUSE_S) * random.uniform(0.8, 1.0)  # noqa: S311
            self._woken.set()
        except Exception as error:  # noqa: BLE001 - traces are never worth an outage
            log.warning("export of spans failed: %r", error)
            self._pause_s = LONGEST_PAUSE_S
            self._woken.set()
        else:
            if self._pause_s:
                log.warning("export of spans works again")
            self._pause_s = 0.0

    async def _flush(self) -> None:
        if self._looks_back:
            async with self._store.read() as tx:
                self.over(
                    await repository.recently_settled(
                        tx, settled_s=LOOK_BACK_S, admitted_s=ADMITTED_BACK_S, limit=LOOK_BACK
                    )
                )
            self._looks_back = False
        while self._ids:
            # An action that settles while its page is exported is notified again and comes in a later page.
            page = {id: self._ids.pop(id) for id in list(islice(self._ids, PAGE))}
            await self._export_page(page)
        await self._export_rounds()

    async def _export_page(self, page: dict[UUID, float | None]) -> None:
        """Export a page. If that fails, it goes to the end of the queue: a refused page must not delay others."""
        try:
            await self._export(list(page))
        except (ExportFailed, asyncio.CancelledError):
            now = time.monotonic()
            kept = {id: since or now for id, since in page.items() if since is None or now - since < RETRY_S}
            if len(kept) < len(page):
                self._lost.labels("refused").inc(len(page) - len(kept))
            self._ids.update(kept)
            self._forget_oldest()
            raise
        except Exception:
            self._lost.labels("unreadable").inc(len(page))
            raise

    async def _export(self, ids: Sequence[UUID]) -> None:
        async with self._store.read() as tx:
            rows = await repository.histories(tx, ids)
        spans: list[ReadableSpan] = []
        granted_by = {id: dict(self._round_of[id]) for id in ids if id in self._round_of}
        for count, row in enumerate(rows):
            # A re-queued action comes again.
            if row["state"] == ActionState.SETTLED:
                spans += self._spans_of(repository.history_of(row))
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        try:
            await self._send(spans)
        except ExportFailed:
            # Spans that are sent again need their links again.
            self._round_of = granted_by | self._round_of
            raise
        for row in rows:
            if row["state"] == ActionState.SETTLED:
                self._straggled_s.pop(row["id"], None)

    def _spans_of(self, life: ActionHistory) -> list[ReadableSpan]:
        context = life.context
        rounds = self._round_of.pop(life.id, {})
        for done in rounds.values():
            done.links[life.id] = (context.trace_id, root_span_id(life.id))
        sampling = self._builder.sample(context, name="create action", tracestate=life.tracestate)
        straggled_s = self._straggled_s.get(life.id, {})
        taken = sampling.decision is Decision.RECORD_AND_SAMPLE
        if not (taken or life.has_failed or life.act_s >= self._slow_s or straggled_s):
            return []
        links = {grant_no: done.link for grant_no, done in rounds.items()}
        return self._builder.action_spans(life, context, sampling, rounds=links, straggler_limits_s=straggled_s)

    async def _export_rounds(self) -> None:
        """Export rounds whose actions were read, and old rounds.

        For the latter, read the traces of actions that still run.
        """
        old = time.monotonic() - ROUND_S
        ripe: list[Round] = []
        entries = []
        while self._rounds and (self._rounds[0][0] < old or not _unlinked(self._rounds[0][1])):
            entries.append(self._rounds.popleft())
            ripe.append(entries[-1][1])
        kept = [done for done in ripe if self._is_sampled(done)]
        if missing := {id for done in kept for id in _unlinked(done)}:
            async with self._store.read() as tx:
                found = {row.id: row for row in await repository.traceparents(tx, missing)}
            for done in kept:
                done.links |= {id: _root_of(found[id]) for id in _unlinked(done) if id in found}
        try:
            await self._send([span for done in kept for span in self._round_spans(done)])
        except ExportFailed:
            young = [entry for entry in entries if entry[0] > old - RETRY_S]
            self._lost.labels("refused").inc(len(entries) - len(young))
            self._rounds.extendleft(reversed(young))
            raise

    def _is_sampled(self, done: Round) -> bool:
        context = TraceContext(done.link[0], parent_id=None, sampled=None)
        return self._builder.is_sampled(context, name="scheduler round")

    def _round_spans(self, done: Round) -> list[ReadableSpan]:
        began, decided, ended = (datetime.fromtimestamp(at, UTC) for at in (done.began, done.decided, done.ended))
        return self._builder.round_spans(
            done.link,
            blake2b(done.link[1], digest_size=8).digest(),
            (began, decided, ended),
            granted=len(done.granted),
            actions=done.links.values(),
        )

    async def _send(self, spans: Sequence[ReadableSpan]) -> None:
        """Export the spans and count them. Raises `ExportFailed`."""
        if not spans:
            return
        if reason := await self._thread.export(spans):
            raise ExportFailed(reason)
        self._sent.inc(len(spans))

    def _forget_oldest(self) -> None:
        for id in [id for id, _ in zip(self._ids, range(len(self._ids) - self._pipeline.queue_actions), strict=False)]:
            del self._ids[id]
            self._round_of.pop(id, None)
            self._lost.labels("full").inc()


def _unlinked(done: Round) -> list[UUID]:
    """Return the actions without a link among the first `LINKS`: a collector limits the links of a span."""
    return [id for id, _ in done.granted[:LINKS] if id not in done.links]


def _root_of(row: Row) -> SpanIds:
    return context_of(row.id, row.traceparent, row.tracestate).trace_id, root_span_id(row.id)

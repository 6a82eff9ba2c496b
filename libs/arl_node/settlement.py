"""The settling of ended attempts: in batches, retried, and spooled on disk while Postgres does not accept them.

A result is written to the spool if a settle statement has failed or takes too long. The spool is replayed by the next
process, under the fences and the epoch that the results had.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence, Set
from itertools import groupby, islice
from typing import Generic, Protocol, TypeVar
from uuid import UUID

import asyncpg

from arl_core.domain.model import Fence
from arl_kit.batcher import Batcher
from arl_kit.metrics import Metrics
from arl_node.metrics import SpoolMetrics
from arl_node.result_spool import ResultSpool, SpooledResult
from arl_store.tx import is_temporary

__all__ = ["AttemptReport", "ReportCodec", "ReportSettler", "ReportT"]

SETTLE_RETRY_S = 0.5
SPOOL_AFTER_S = 2.0
"""Seconds after which a settle statement without a response counts as failed for the spool."""
MAX_SETTLE_BATCH = 200
MAX_REPLAY_BYTES = 8 << 20
"""Bytes of results per replayed statement."""
REJECTIONS = (RuntimeError, asyncpg.IntegrityConstraintViolationError)
"""Errors after which Postgres will never accept the values. `arl_store.tx` raises RuntimeError for a DataError."""

log = logging.getLogger(__name__)


class AttemptReport(Protocol):
    """The end of one attempt."""

    @property
    def fence(self) -> Fence: ...
    @property
    def outcome(self) -> str: ...
    @property
    def run_us(self) -> int:
        """Return the run time in microseconds."""

    @property
    def counted_us(self) -> int | None:
        """Return the run time without waiting for shared cores, in microseconds; None if it is the run time."""

    @property
    def cpu_us(self) -> int:
        """Return the processor time in microseconds."""

    @property
    def weight(self) -> int:
        """Bytes in the statement that settles it."""
        ...


ReportT = TypeVar("ReportT", bound=AttemptReport)


class ReportCodec(Protocol[ReportT]):
    """The encoding of reports in the spool."""

    def encode_report(self, report: ReportT) -> bytes:
        """Return the report as bytes. Runs in a thread."""
        ...

    def decode_report(self, data: bytes) -> ReportT:
        """Return the report of `encode_report`. Raises LookupError, TypeError or ValueError for other data."""
        ...


class ReportSettler(Generic[ReportT]):
    """The queue of ended attempts until Postgres has accepted their outcomes.

    `commit` writes reports of one epoch and returns the fences whose rows changed.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[ReportT], UUID], Awaitable[Set[Fence]]],
        codec: ReportCodec[ReportT],
        spool: ResultSpool,
        *,
        epoch: Callable[[], UUID],
        metrics: Metrics,
        spool_after_s: float = SPOOL_AFTER_S,
    ) -> None:
        self._commit, self._codec, self._spool, self._epoch = commit, codec, spool, epoch
        self._metrics, self._spool_after_s = SpoolMetrics(metrics, spool), spool_after_s
        self._batcher: Batcher[ReportT, None] = Batcher(self._settle_batch, max_batch=MAX_SETTLE_BATCH)
        self._unsettled: dict[Fence, ReportT] = {}
        """Reports that Postgres has not accepted, in the order of their ends."""
        self._unspooled: set[Fence] = set()
        """Unsettled reports that could not be spooled. They are only in memory."""
        self._is_stalled = False
        """True from a settle statement that failed or takes too long until the next success."""
        self._spool_task: asyncio.Task[None] | None = None

    @property
    def has_unspooled(self) -> bool:
        """Return True if results are only in memory because the spool could not take them."""
        return bool(self._unspooled)

    async def settle(self, report: ReportT) -> None:
        """Return when the database has accepted the report. Failures are retried.

        A cancelled call leaves the report unsettled, so that `stop` spools it and its file is not removed.
        """
        self._unsettled[report.fence] = report
        if self._is_stalled:
            self._spool_soon()
        while True:
            try:
                await self._batcher.submit(report, weight=report.weight)
            except Exception:  # noqa: BLE001 - logged once for each batch
                await asyncio.sleep(SETTLE_RETRY_S)
            else:
                self._unspooled.discard(report.fence)
                return

    async def replay(self) -> None:
        """Settle the results that earlier processes spooled, oldest first. Raises the errors of the database."""
        pending: list[SpooledResult] = []
        for fence in await self._scan():
            result = await self._read(fence)
            if result is None:
                continue
            pending.append(result)
            if len(pending) >= MAX_SETTLE_BATCH or sum(len(each.body) for each in pending) >= MAX_REPLAY_BYTES:
                await self._replay_batch(pending)
                pending = []
        await self._replay_batch(pending)

    async def stop(self) -> None:
        """Spool the reports that are not settled."""
        if self._unsettled:
            self._spool_soon()
        if self._spool_task is not None:
            await asyncio.wait([self._spool_task])

    async def _settle_batch(self, reports: Sequence[ReportT]) -> Sequence[Exception | None]:
        """Settle reports in one statement.

        After a permanent error settle each alone, so that one does not block the others.
        """
        stall_timer = asyncio.get_running_loop().call_later(self._spool_after_s, self._on_stall)
        try:
            changed = await self._commit(reports, self._epoch())
        except Exception as error:  # noqa: BLE001 - raised to each reporter, which retries
            if len(reports) > 1 and not is_temporary(error):
                return [(await self._settle_batch([report]))[0] for report in reports]
            log.warning("settling of %d results failed, trying again: %r", len(reports), error)
            self._on_stall()
            return [error] * len(reports)
        finally:
            stall_timer.cancel()
        self._is_stalled = False
        for report in reports:
            self._unsettled.pop(report.fence, None)
        await self._remove_from_spool([report.fence for report in reports], changed)
        return [None] * len(reports)

    def _on_stall(self) -> None:
        self._is_stalled = True
        self._spool_soon()

    def _spool_soon(self) -> None:
        if self._spool_task is None or self._spool_task.done():
            self._spool_task = asyncio.create_task(self._spool_unsettled(), name="result spool")

    async def _spool_unsettled(self) -> None:
        """Write unsettled reports to the spool until each is there or could not be written."""
        while waiting := self._reports_to_spool():
            problem = await asyncio.to_thread(self._write, waiting, self._epoch())
            self._metrics.spooled.inc(sum(each.fence in self._spool for each in waiting))
            # Postgres accepted these while they were being written.
            await self._remove([each.fence for each in waiting if each.fence not in self._unsettled])
            if problem is not None:
                self._keep_in_memory([each.fence for each in waiting if each.fence in self._unsettled], problem)

    def _reports_to_spool(self) -> Sequence[ReportT]:
        waiting = (
            report
            for fence, report in self._unsettled.items()
            if fence not in self._spool and fence not in self._unspooled
        )
        return list(islice(waiting, MAX_SETTLE_BATCH))

    def _write(self, reports: Sequence[ReportT], epoch: UUID) -> str | None:
        """Write the reports that can be encoded and fit. Return the reason if some could not be written, else None."""
        encoded, problem = [], None
        for each in reports:
            try:
                body = self._codec.encode_report(each)
            except (TypeError, ValueError, OverflowError) as error:
                problem = f"the result of action {each.fence.action_id} cannot be encoded: {error!r}"
            else:
                encoded.append(SpooledResult(fence=each.fence, epoch=epoch, body=body))
        return self._spool.write(encoded) or problem

    def _keep_in_memory(self, fences: Sequence[Fence], problem: str) -> None:
        left = [fence for fence in fences if fence not in self._spool]
        self._unspooled.update(left)
        self._metrics.unspooled.inc(len(left))
        log.error(
            "%d results are only in memory, because %s. This node starts no action until Postgres has accepted them",
            len(left),
            problem,
        )

    async def _remove_from_spool(self, fences: Sequence[Fence], changed: Set[Fence]) -> None:
        """Remove results that Postgres has accepted, or refused because their fence was lost."""
        spooled = [fence for fence in fences if fence in self._spool]
        if not spooled:
            return
        refused = [fence for fence in spooled if fence not in changed]
        self._metrics.replayed.inc(len(spooled) - len(refused))
        self._metrics.refused.inc(len(refused))
        for fence in refused:
            log.warning("the spooled result of action %s, grant %d, is already settled or has lost its fence", *fence)
        await self._remove(spooled)
        # There may be room now.
        self._unspooled.clear()

    async def _remove(self, fences: Sequence[Fence]) -> None:
        if spooled := [fence for fence in fences if fence in self._spool]:
            try:
                await asyncio.to_thread(self._spool.remove, spooled)
            except OSError as error:
                log.warning("results could not be removed from the spool: %s", error)

    async def _scan(self) -> Sequence[Fence]:
        try:
            return await asyncio.to_thread(self._spool.scan)
        except OSError as error:
            log.error("results of an earlier process cannot be read from the spool (TANGRAM_SPOOL_DIR): %s", error)
            return ()

    async def _read(self, fence: Fence) -> SpooledResult | None:
        """Read a result. A damaged file is removed; one that cannot be read stays for the next process."""
        try:
            result = await asyncio.to_thread(self._spool.read, fence)
        except OSError as error:
            log.error("the spooled result of action %s, grant %d, cannot be read: %s", *fence, error)
            self._metrics.damaged.inc()
            return None
        if result is None:
            self._metrics.damaged.inc()
            await self._remove([fence])
        return result

    async def _replay_batch(self, results: Sequence[SpooledResult]) -> None:
        for epoch, group in groupby(results, key=lambda each: each.epoch):
            reports = [report for each in group if (report := await self._decode(each)) is not None]
            if reports:
                await self._replay_reports(reports, epoch)

    async def _replay_reports(self, reports: Sequence[ReportT], epoch: UUID) -> None:
        try:
            changed = await self._commit(reports, epoch)
        except REJECTIONS:
            if len(reports) > 1:
                for report in reports:
                    await self._replay_reports([report], epoch)
                return
            log.exception("Postgres rejects the spooled result of action %s, grant %d", *reports[0].fence)
            self._metrics.damaged.inc()
            await self._remove([reports[0].fence])
            return
        await self._remove_from_spool([report.fence for report in reports], changed)

    async def _decode(self, result: SpooledResult) -> ReportT | None:
        try:
            return await asyncio.to_thread(self._codec.decode_report, result.body)
        except (LookupError, TypeError, ValueError) as error:
            log.error("the spooled result of action %s cannot be read: %r", result.fence.action_id, error)
            self._metrics.damaged.inc()
            await self._remove([result.fence])
            return None

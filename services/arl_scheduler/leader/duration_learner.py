"""Learning of run times from ended attempts. Only the order and the DoP of other actions depend on it.

Managers report the duration of each attempt. Ends without a notification by the next poll are read from rows, one batch
at most; a few missing runs do not matter.
"""

import time
from collections.abc import Iterable, Mapping

from arl_core.domain.model import ActionClass, Fence
from arl_core.durations.curves import CurveCache, main_resource
from arl_core.durations.estimates import MAX_CLASSES, DurationEstimates
from arl_scheduler.index.allocations import Allocation
from arl_scheduler.leader.election import LeaderElection
from arl_scheduler.queries import estimate_queries, leader_queries
from arl_scheduler.queries.estimate_queries import RunDuration
from arl_scheduler.queries.leader_queries import TermLostError
from arl_store.tx import PostgresStore

__all__ = ["DurationLearner"]

SAVE_INTERVAL_S = 10.0
"""Seconds between saves. Runs learned after the last save are lost with the leader."""
SAVE_BATCH = 500
MAX_MISSED_RUNS = 100
"""Maximum number of ended attempts without a notification whose runs are read after a poll."""
RETENTION_DAYS = 30
MIN_RUNS_TO_REJECT = 8
LOW_QUANTILE = 0.1
RETRY_AFTER_S = 60.0
"""Seconds after the last run of a class until its actions are tried again despite their deadlines.

Within this time an action is dropped early if nine in ten of at least `MIN_RUNS_TO_REJECT` runs took longer than the
time left.
"""


class DurationLearner:
    """The duration estimates of a leader, saved at intervals."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.estimates = DurationEstimates()
        self.curves = CurveCache(self.estimates, self.estimates)
        self._term: int | None = None
        self._seen_at: dict[int, float] = {}
        """Monotonic time of the last observed run of each class."""
        self._missed: dict[Fence, Allocation] = {}
        self._saved_at = float("-inf")

    async def begin(self, *, term: int) -> None:
        """Load the estimates of earlier leaders, once in a term."""
        if self._term == term:
            return
        estimates = DurationEstimates()
        async with self._store.read() as tx:
            estimates.restore(await estimate_queries.read_estimates(tx, limit=MAX_CLASSES))
        self.estimates, self.curves, self._term = estimates, CurveCache(estimates, estimates), term
        self._missed.clear()

    def record_released(
        self,
        allocations: Iterable[Allocation],
        runs: Mapping[Fence, RunDuration],
        *,
        notified: frozenset[Fence],
        now: float,
    ) -> None:
        """Learn from released allocations.

        `notified` has the fences whose end was notified; `runs` has their durations.
        """
        for fence in self._missed.keys() & notified:
            missed = self._missed.pop(fence)
            if fence in runs:
                self._learn(missed, runs[fence], ended_at=now)
        for hold in allocations:
            if hold.fence in runs:
                self._learn(hold, runs[hold.fence], ended_at=now)
            elif hold.fence not in notified and hold.cls is not None and len(self._missed) < MAX_MISSED_RUNS:
                self._missed[hold.fence] = hold

    async def read_missed_runs(self, *, now: float) -> None:
        """Read the runs of attempts that ended without a notification."""
        if not self._missed:
            return
        missed, self._missed = self._missed, {}
        async with self._store.read() as tx:
            runs = await estimate_queries.read_runs(tx, {fence.action_id for fence in missed})
        for fence in missed.keys() & runs.keys():
            self._learn(missed[fence], runs[fence], ended_at=now)

    async def save(self, leadership: LeaderElection, *, force: bool = False) -> None:
        """Save the estimates that changed, at most every `SAVE_INTERVAL_S` unless forced."""
        if leadership.term is None or (not force and time.monotonic() - self._saved_at < SAVE_INTERVAL_S):
            return
        changes = self.estimates.take_changes(limit=SAVE_BATCH)
        if not changes:
            return
        if len(changes) < SAVE_BATCH:  # otherwise the next poll saves the remaining ones
            self._saved_at = time.monotonic()
        try:
            async with self._store.write() as tx:
                await leader_queries.lock_term(tx, cell=leadership.cell, term=leadership.term)
                await estimate_queries.save_estimates(tx, changes)
        except TermLostError:
            raise
        except Exception:
            self._saved_at = time.monotonic()  # otherwise each following poll would fail here, too
            self.estimates.mark_changed(changes)
            raise

    async def delete_old(self, leadership: LeaderElection) -> None:
        """Delete estimates of classes that were not observed for `RETENTION_DAYS`."""
        if leadership.term is None:
            raise TermLostError
        async with self._store.write() as tx:
            await leader_queries.lock_term(tx, cell=leadership.cell, term=leadership.term)
            await estimate_queries.delete_estimates(tx, days=RETENTION_DAYS)

    def min_run_time_s(self, cls: ActionClass) -> float:
        """Return the time that nearly all recent runs exceeded at the highest DoP; 0 if there are too few.

        A class without a recent run gives 0, so that refused actions are tried again.
        """
        if cls.is_mixed:
            return 0.0
        fresh = time.monotonic() - self._seen_at.get(cls.key, float("-inf")) < RETRY_AFTER_S
        if not fresh or self.estimates.run_count(cls) < MIN_RUNS_TO_REJECT:
            return 0.0
        return self.estimates.quantile(cls, LOW_QUANTILE, self.curves.curve_for(cls).options[-1].amount)

    def _learn(self, allocation: Allocation, run: RunDuration, *, ended_at: float) -> None:
        if allocation.cls is None:
            return
        resource = main_resource(allocation.cls)
        amount = allocation.resources.get(resource or "", 0)
        if not (steady := allocation.resize_seq == 0):
            amount = allocation.mean_milli(until=ended_at)
        run_s, cpu_s = run.run_us / 1e6, run.cpu_us / 1e6
        self.estimates.observe(allocation.cls, amount=amount, run_s=run_s, cpu_s=cpu_s, is_steady=steady)
        self.curves.invalidate(allocation.cls.key)
        self._seen_at[allocation.cls.key] = time.monotonic()
        while len(self._seen_at) > MAX_CLASSES:
            del self._seen_at[next(iter(self._seen_at))]

"""What the leader learns from attempts that ended. Nothing but the order and the widths of others depends on it.

Managers say with each end how long it took. What no hint has brought by the next poll is read from rows, a page at
most: one run more or less is no matter.
"""

import time
from collections.abc import Iterable, Mapping

from arl_core.curves import Curves, main_resource
from arl_core.estimates import CLASSES, Estimates
from arl_core.fence import Fence
from arl_core.model import ActionClass
from arl_scheduler import estimate_rows, terms
from arl_scheduler.estimate_rows import Run
from arl_scheduler.homes import Hold
from arl_scheduler.leader import Leadership
from arl_scheduler.terms import TermLost
from arl_store.tx import Store

__all__ = ["Learning"]

KEEP_EVERY_S = 10.0
"""What is younger is lost with the leader."""
KEPT_AT_ONCE = 500
MISSED = 100
"""Ends that a poll brought and no hint, of which the runs are read."""
FORGOTTEN_AFTER_DAYS = 30
RUNS_TO_REFUSE = 8
LOW = 0.1
TRIED_AGAIN_S = 60.0
"""An action is taken to miss its deadline if one in ten of at least so many runs, the last so lately, were as short."""


class Learning:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.estimates = Estimates()
        self.curves = Curves(self.estimates)
        self._term: int | None = None
        self._seen_at: dict[int, float] = {}
        """When a run of a class was last learnt from, on this process's clock."""
        self._missed: dict[Fence, Hold] = {}
        self._kept_at = float("-inf")

    async def begin(self, *, term: int) -> None:
        """Know what earlier leaders knew; once in a term."""
        if self._term == term:
            return
        estimates = Estimates()
        async with self._store.read() as tx:
            estimates.restore(await estimate_rows.read_estimates(tx, limit=CLASSES))
        self.estimates, self.curves, self._term = estimates, Curves(estimates), term
        self._missed.clear()

    def ended(self, holds: Iterable[Hold], runs: Mapping[Fence, Run], *, told: frozenset[Fence], now: float) -> None:
        """These are held no longer. `told` are those whose end a hint said, with its run in `runs` if it had one."""
        for fence in self._missed.keys() & told:
            missed = self._missed.pop(fence)
            if fence in runs:
                self._learn(missed, runs[fence], ended_at=now)
        for hold in holds:
            if hold.fence in runs:
                self._learn(hold, runs[hold.fence], ended_at=now)
            elif hold.fence not in told and hold.cls is not None and len(self._missed) < MISSED:
                self._missed[hold.fence] = hold

    async def look(self, *, now: float) -> None:
        """Read what was missed."""
        if not self._missed:
            return
        missed, self._missed = self._missed, {}
        async with self._store.read() as tx:
            runs = await estimate_rows.runs_of(tx, {fence.action_id for fence in missed})
        for fence in missed.keys() & runs.keys():
            self._learn(missed[fence], runs[fence], ended_at=now)

    async def keep(self, leadership: Leadership, *, at_once: bool = False) -> None:
        """Write what was learnt since the last time, every few seconds."""
        if leadership.term is None or (not at_once and time.monotonic() - self._kept_at < KEEP_EVERY_S):
            return
        changes = self.estimates.changes(limit=KEPT_AT_ONCE)
        if not changes:
            return
        if len(changes) < KEPT_AT_ONCE:  # or there are more, for the next poll
            self._kept_at = time.monotonic()
        try:
            async with self._store.write() as tx:
                await terms.hold_term(tx, cell=leadership.cell, term=leadership.term)
                await estimate_rows.keep_estimates(tx, changes)
        except TermLost:
            raise
        except Exception:
            self._kept_at = time.monotonic()  # or the next poll, and each after it, would end here, too
            self.estimates.changed_again(changes)
            raise

    async def forget(self, leadership: Leadership) -> None:
        """What nobody has run for long."""
        if leadership.term is None:
            raise TermLost
        async with self._store.write() as tx:
            await terms.hold_term(tx, cell=leadership.cell, term=leadership.term)
            await estimate_rows.forget_estimates(tx, days=FORGOTTEN_AFTER_DAYS)

    def usual_s(self, cls: ActionClass) -> float:
        """What nearly all of the runs that were seen lately exceeded, at the widest; 0 where they say too little.

        Whoever is refused by this teaches nothing: a class of which nothing has ended for a while is tried again.
        """
        if cls.mixed:
            return 0.0
        fresh = time.monotonic() - self._seen_at.get(cls.key, float("-inf")) < TRIED_AGAIN_S
        if not fresh or self.estimates.runs(cls) < RUNS_TO_REFUSE:
            return 0.0
        return self.estimates.quantile(cls, LOW, self.curves.of(cls).widths[-1].amount)

    def _learn(self, hold: Hold, run: Run, *, ended_at: float) -> None:
        if hold.cls is None:
            return
        resource = main_resource(hold.cls)
        amount = hold.amounts.get(resource or "", 0)
        if not (steady := hold.amounts_seq == 0):
            amount = hold.mean_milli(until=ended_at)
        run_s, cpu_s = run.run_us / 1e6, run.cpu_us / 1e6
        self.estimates.observe(hold.cls, amount=amount, run_s=run_s, cpu_s=cpu_s, steady=steady)
        self.curves.learnt(hold.cls.key)
        self._seen_at[hold.cls.key] = time.monotonic()
        while len(self._seen_at) > CLASSES:
            del self._seen_at[next(iter(self._seen_at))]

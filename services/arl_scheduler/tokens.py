"""When the leader looks again because of the tokens of rates: never for those that nobody waits for."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from arl_core.gangs import members_of
from arl_core.model import ActionClass, Amounts, Pool
from arl_core.refilling import RefillingLedger
from arl_core.waiting import WaitingIndex
from arl_scheduler.pools import Pools

__all__ = ["GATHER_S", "Tokens"]

GATHER_S = 0.02
"""Tokens gather for so long before rounds see them, or those of a fast rate would keep rounds from ever pausing.

Where a burst is less than what comes in this time, the rest of that is lost.
"""


class Tokens:
    def __init__(self, ledger: RefillingLedger, waiting: WaitingIndex, pools: Pools) -> None:
        self._ledger = ledger
        self._waiting = waiting
        self._pools = pools
        self._looked_at = float("-inf")

    def refill(self, now: float) -> None:
        """Before a round: it is this time, by a clock of which only differences matter and that nobody sets."""
        if now >= self._looked_at + GATHER_S:
            self._looked_at = now
            self._ledger.refill(now)

    def committed(self, now: float) -> None:
        """It is this time now, and a round's grants count as made.

        So in no time do more of them commit than a burst and what comes in that time, however long commits take.
        """
        self._ledger.now = now

    def next_at(self) -> float | None:
        """When, by the same clock, there will be those that all that somebody waits for is; None if that is never.

        For whoever has seen a round, of its pools. Of a gang it is looked for a node that could run all that is alike
        in it; where several are needed, the poll finds it.
        """
        pools = [pool for pool in self._pools.refilling if pool.accepting and pool.serving]
        moments = [
            moment
            for cls, amounts in (self._wanted() if pools else ())
            for pool in pools
            if pool.shape is cls.shape and cls.requires <= pool.enforces
            if (moment := self._ledger.refills_at(pool.node, amounts)) is not None
        ]
        return max(min(moments), self._looked_at + GATHER_S) if moments else None

    def not_counted(self, pools: Mapping[int, Pool]) -> dict[int, Pool]:
        """As if no tokens had been spent: for whoever does not know how they come back."""
        more = {pool.node: replace(pool, free=self._ledger.not_held(pool.node)) for pool in self._pools.refilling}
        return {**pools, **more}

    def _wanted(self) -> Iterable[tuple[ActionClass, Amounts]]:
        """By those that wait and may start, whatever tasks they are of; each once."""
        found: dict[tuple[int, int], ActionClass] = {}
        for bucket in self._waiting.buckets():
            if bucket.key.gang is None:
                found[bucket.cls.key, 1] = bucket.cls
                continue
            classes = {each.cls.key: each.cls for each in members_of(bucket.first)}
            alike = Counter(each.cls.key for each in members_of(bucket.first))
            found |= {(key, count): classes[key] for key, count in alike.items()}
        for (_, count), cls in found.items():
            yield cls, {name: count * amount for name, amount in cls.demand.minimum.items()}

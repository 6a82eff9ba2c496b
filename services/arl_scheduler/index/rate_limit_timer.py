"""When the leader looks again because of the tokens of rates: never for those that nobody waits for."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from arl_core.capacity.gangs import all_members
from arl_core.capacity.rate_limited_ledger import RateLimitedLedger
from arl_core.domain.model import ActionClass, NodeResources, Resources
from arl_core.queue.queue_index import QueueIndex
from arl_scheduler.index.node_table import NodeTable

__all__ = ["REFILL_INTERVAL_S", "RateLimitTimer"]

REFILL_INTERVAL_S = 0.02
"""Tokens gather for so long before rounds see them, or those of a fast rate would keep rounds from ever pausing.

Where a burst is less than what comes in this time, the rest of that is lost.
"""


class RateLimitTimer:
    def __init__(self, ledger: RateLimitedLedger, queue: QueueIndex, node_table: NodeTable) -> None:
        self._ledger = ledger
        self._queue = queue
        self._node_table = node_table
        self._refilled_at = float("-inf")

    def refill(self, now: float) -> None:
        """Before a round: it is this time, by a clock of which only differences matter and that nobody sets."""
        if now >= self._refilled_at + REFILL_INTERVAL_S:
            self._refilled_at = now
            self._ledger.refill(now)

    def mark_committed(self, now: float) -> None:
        """It is this time now, and a round's grants count as made.

        So in no time do more of them commit than a burst and what comes in that time, however long commits take.
        """
        self._ledger.now = now

    def next_refill_at(self) -> float | None:
        """When, by the same clock, there will be those that all that somebody waits for is; None if that is never.

        For whoever has seen a round, of its pools. Of a gang it is looked for a node that could run all that is alike
        in it; where several are needed, the poll finds it.
        """
        pools = [pool for pool in self._node_table.rate_limited if pool.is_schedulable and pool.is_serving]
        moments = [
            moment
            for cls, amounts in (self._queued_demands() if pools else ())
            for pool in pools
            if pool.shape is cls.shape and cls.requires <= pool.enforced
            if (moment := self._ledger.refills_at(pool.node, amounts)) is not None
        ]
        return max(min(moments), self._refilled_at + REFILL_INTERVAL_S) if moments else None

    def ignore_rate_limits(self, nodes: Mapping[int, NodeResources]) -> dict[int, NodeResources]:
        """As if no tokens had been spent: for whoever does not know how they come back."""
        more = {
            pool.node: replace(pool, available=self._ledger.available_ignoring_rates(pool.node))
            for pool in self._node_table.rate_limited
        }
        return {**nodes, **more}

    def _queued_demands(self) -> Iterable[tuple[ActionClass, Resources]]:
        """By those that wait and may start, whatever tasks they are of; each once."""
        found: dict[tuple[int, int], ActionClass] = {}
        for bucket in self._queue.buckets():
            if bucket.key.gang is None:
                found[bucket.cls.key, 1] = bucket.cls
                continue
            classes = {each.cls.key: each.cls for each in all_members(bucket.first)}
            alike = Counter(each.cls.key for each in all_members(bucket.first))
            found |= {(key, count): classes[key] for key, count in alike.items()}
        for (_, count), cls in found.items():
            yield cls, {name: count * amount for name, amount in cls.demand.minimum.items()}

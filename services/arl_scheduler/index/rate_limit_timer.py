"""A timer that wakes the leader when a rate limit has refilled. Only limits that a queued action needs count."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from arl_core.capacity.gangs import all_members
from arl_core.capacity.rate_limited_ledger import RateLimitedLedger
from arl_core.capacity.walltime import is_suited
from arl_core.domain.model import ActionClass, ClassVariant, NodeResources, Resources
from arl_core.queue.queue_index import QueueIndex
from arl_scheduler.index.node_table import NodeTable

__all__ = ["REFILL_INTERVAL_S", "RateLimitTimer"]

REFILL_INTERVAL_S = 0.02
"""Seconds between refills of tokens. Without a minimum, a fast rate would keep rounds from ever pausing.

If a burst is smaller than the tokens of one interval, the remaining tokens are lost.
"""


class RateLimitTimer:
    """The refills of rate limits between rounds."""

    def __init__(self, ledger: RateLimitedLedger, queue: QueueIndex, node_table: NodeTable) -> None:
        self._ledger = ledger
        self._queue = queue
        self._node_table = node_table
        self._refilled_at = float("-inf")

    def refill(self, now: float) -> None:
        """Refill tokens before a round. `now` is of a monotonic clock."""
        if now >= self._refilled_at + REFILL_INTERVAL_S:
            self._refilled_at = now
            self._ledger.refill(now)

    def mark_committed(self, now: float) -> None:
        """Count a round's grants as made at `now`, after their commit.

        This bounds the commits in any interval by a burst and the tokens refilled in it, however long commits take.
        """
        self._ledger.now = now

    def next_refill_at(self) -> float | None:
        """Return the earliest time at which a demand that lacks only tokens gets them; None if there is none.

        It uses the pools of the last round. For a gang, equal members must fit together on one node; if several nodes
        are needed, the next poll finds them.
        """
        pools = [pool for pool in self._node_table.rate_limited if pool.is_schedulable and pool.is_serving]
        moments = [
            moment
            for cls, amounts in (self._queued_demands() if pools else ())
            for pool in pools
            if is_suited(cls, pool)
            if (moment := self._ledger.refills_at(pool.node, amounts)) is not None
        ]
        return max(min(moments), self._refilled_at + REFILL_INTERVAL_S) if moments else None

    def ignore_rate_limits(self, nodes: Mapping[int, NodeResources]) -> dict[int, NodeResources]:
        """Return the nodes as if no tokens were spent, for simulations without refills."""
        more = {
            pool.node: replace(pool, available=self._ledger.available_ignoring_rates(pool.node))
            for pool in self._node_table.rate_limited
        }
        return {**nodes, **more}

    def _queued_demands(self) -> Iterable[tuple[ActionClass, Resources]]:
        """Yield each distinct demand of the candidates of all tasks."""
        found: dict[tuple[ClassVariant, int], ActionClass] = {}
        for bucket in self._queue.buckets():
            if bucket.key.gang is None:
                found[bucket.cls.variant, 1] = bucket.cls
                continue
            classes = {each.cls.variant: each.cls for each in all_members(bucket.first)}
            alike = Counter(each.cls.variant for each in all_members(bucket.first))
            found |= {(key, count): classes[key] for key, count in alike.items()}
        for (_, count), cls in found.items():
            yield cls, {name: count * amount for name, amount in cls.demand.minimum.items()}

"""Number of queued actions and free slots of each queue, without a count per action."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arl_admission import queries
from arl_store.tx import PostgresStore

__all__ = ["QueueBacklog"]

NEAR_LIMIT_COUNT_INTERVAL_S = 1.0
COUNT_INTERVAL_S = 10.0
COUNT_INTERVAL_FACTOR = 20
"""Minimum interval between counts, as a multiple of the duration of the last count."""


@dataclass(slots=True)
class _QueueCount:
    limit: int
    waiting: int


class QueueBacklog:
    """The last count of each queue plus later inserts: never less than the queued actions of this admission process.

    One query counts all queues, over the partial index of queued rows. It runs at most every second while a queue in
    use is more than half full, otherwise at most every 10 s. Without submissions it never runs. Actions that leave the
    queue, and inserts of another admission process, appear at the next count.
    """

    def __init__(
        self, store: PostgresStore, *, default_limit: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._default = default_limit
        self._clock = clock
        self._queues: dict[int, _QueueCount] = {}
        self._counted_at = float("-inf")
        self._count_time_s = 0.0

    async def refresh(self, by_queue: Mapping[int, int]) -> None:
        """Count again if it is time, given the numbers of new actions by queue."""
        near = any(2 * (queue.waiting + new) > queue.limit for queue, new in self._queue_counts(by_queue))
        pause_s = max(
            NEAR_LIMIT_COUNT_INTERVAL_S if near else COUNT_INTERVAL_S, COUNT_INTERVAL_FACTOR * self._count_time_s
        )
        began = self._clock()
        if began - self._counted_at < pause_s:
            return
        async with self._store.read() as tx:
            rows = await queries.count_queued(tx)
        self._queues = {row.id: _QueueCount(row.max_queued or self._default, row.queued) for row in rows}
        self._counted_at = self._clock()
        self._count_time_s = self._counted_at - began

    def remaining(self, queue_id: int) -> int:
        """Return how many more actions the queue accepts."""
        queue = self._queue(queue_id)
        return max(0, queue.limit - queue.waiting)

    def limit(self, queue_id: int) -> int:
        """Return the maximum number of queued actions of the queue."""
        return self._queue(queue_id).limit

    def invalidate(self) -> None:
        """Make the next refresh count, and read the limits again."""
        self._counted_at = float("-inf")

    def record_inserted(self, by_queue: Mapping[int, int]) -> None:
        """Add inserted actions to the counts."""
        for queue, new in self._queue_counts(by_queue):
            queue.waiting += new

    def _queue_counts(self, by_queue: Mapping[int, int]) -> list[tuple[_QueueCount, int]]:
        return [(self._queue(queue_id), new) for queue_id, new in by_queue.items()]

    def _queue(self, queue_id: int) -> _QueueCount:
        """Return the count of a queue. A queue missing in the last count is newer."""
        return self._queues.setdefault(queue_id, _QueueCount(self._default, 0))

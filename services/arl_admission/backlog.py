"""How many actions wait in each queue, and how many more it takes, without a count per action."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arl_admission import repository
from arl_store.tx import Store

__all__ = ["Backlog"]

NEAR_PAUSE_S = 1.0
PAUSE_S = 10.0
SHARE_OF_TIME = 20
"""A count that took t comes again after 20 t at the earliest."""


@dataclass(slots=True)
class _Queue:
    limit: int
    waiting: int


class Backlog:
    """What was counted last and what was inserted here since: never less than what waits of this admission's.

    One query counts all queues, over the partial index of queued rows: each second at most while a
    queue that is used is more than half full, each 10 s at most otherwise, never while nothing comes in.
    Actions that leave the queue, and those that another admission inserts, are seen at the next count.
    """

    def __init__(self, store: Store, *, default_limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._default = default_limit
        self._clock = clock
        self._queues: dict[int, _Queue] = {}
        self._counted_at = float("-inf")
        self._took_s = 0.0

    async def look(self, wanted: Mapping[int, int]) -> None:
        """Count anew if it is time for these numbers of new actions by queue."""
        near = any(2 * (queue.waiting + new) > queue.limit for queue, new in self._of(wanted))
        pause_s = max(NEAR_PAUSE_S if near else PAUSE_S, SHARE_OF_TIME * self._took_s)
        began = self._clock()
        if began - self._counted_at < pause_s:
            return
        async with self._store.read() as tx:
            rows = await repository.count_queued(tx)
        self._queues = {row.id: _Queue(row.max_queued or self._default, row.queued) for row in rows}
        self._counted_at = self._clock()
        self._took_s = self._counted_at - began

    def room(self, queue_id: int) -> int:
        queue = self._queue(queue_id)
        return max(0, queue.limit - queue.waiting)

    def limit(self, queue_id: int) -> int:
        return self._queue(queue_id).limit

    def limits_changed(self) -> None:
        """The next look counts, and reads the limits with it."""
        self._counted_at = float("-inf")

    def inserted(self, by_queue: Mapping[int, int]) -> None:
        for queue, new in self._of(by_queue):
            queue.waiting += new

    def _of(self, by_queue: Mapping[int, int]) -> list[tuple[_Queue, int]]:
        return [(self._queue(queue_id), new) for queue_id, new in by_queue.items()]

    def _queue(self, queue_id: int) -> _Queue:
        """One that the last count did not see was made since."""
        return self._queues.setdefault(queue_id, _Queue(self._default, 0))

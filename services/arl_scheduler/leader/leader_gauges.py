"""Gauges of the leader: its queues by name, and the sizes of its index."""

from collections.abc import Callable

from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.metrics import SchedulerMetrics
from arl_scheduler.queries import repository
from arl_store.tx import PostgresStore

__all__ = ["LeaderGauges"]


class LeaderGauges:
    """Gauges updated for each scrape. If there is no index, they are 0 and no queue is listed."""

    def __init__(self, store: PostgresStore, metrics: SchedulerMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._queue_names: dict[int, tuple[str, str]] = {}

    async def update(
        self,
        index: SchedulerIndex | None,
        *,
        is_leader: bool,
        stragglers: int,
        classes: int,
        now: Callable[[], float],
    ) -> None:
        """Set all gauges. The names of new queues are read from the database."""
        self._metrics.leader.set(is_leader)
        self._metrics.allocated.set(index.allocation_count if index is not None else 0)
        self._metrics.stragglers.set(stragglers if index is not None else 0)
        self._metrics.classes.set(classes if index is not None else 0)
        self._metrics.depth.clear()
        self._metrics.oldest.clear()
        queues = index.queue_depths() if index is not None else {}
        if unnamed := queues.keys() - self._queue_names.keys():
            async with self._store.read() as tx:
                self._queue_names |= await repository.queue_names(tx, unnamed)
        for queue, (depth, submitted) in queues.items():
            names = self._queue_names[queue]
            self._metrics.depth.labels(*names).set(depth)
            self._metrics.oldest.labels(*names).set(max(0.0, now() - submitted))

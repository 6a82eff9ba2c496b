"""Gauges of the leader: its queues by name, and the sizes of its index."""

from collections import Counter
from collections.abc import Callable

from arl_kit.action_metrics import TaskLabels
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.metrics import SchedulerMetrics

__all__ = ["LeaderGauges"]


class LeaderGauges:
    """Gauges updated for each scrape. If there is no index, they are 0 and no queue is listed."""

    def __init__(self, task_labels: TaskLabels, metrics: SchedulerMetrics) -> None:
        self._task_labels = task_labels
        self._metrics = metrics

    async def update(
        self,
        index: SchedulerIndex | None,
        *,
        is_leader: bool,
        stragglers: int,
        classes: int,
        critical: int = 0,
        now: Callable[[], float],
    ) -> None:
        """Set all gauges. The names of new queues are read from the database."""
        self._metrics.leader.set(is_leader)
        self._metrics.allocated.set(index.allocation_count if index is not None else 0)
        self._metrics.stragglers.set(stragglers if index is not None else 0)
        self._metrics.classes.set(classes if index is not None else 0)
        self._metrics.critical.set(critical if index is not None else 0)
        queues = index.queue_depths() if index is not None else {}
        await self._task_labels.load(dict.fromkeys(queues))
        # Cleared after the await, so that nothing reads the gauges while they are empty.
        self._metrics.depth.clear()
        self._metrics.oldest.clear()
        depths: Counter[tuple[str, str]] = Counter()
        oldest: dict[tuple[str, str], float] = {}
        for queue, (depth, submitted) in queues.items():
            label = self._task_labels.get(queue)
            depths[label] += depth
            oldest[label] = min(submitted, oldest.get(label, submitted))
        for label, depth in depths.items():
            self._metrics.depth.labels(*label).set(depth)
            self._metrics.oldest.labels(*label).set(max(0.0, now() - oldest[label]))

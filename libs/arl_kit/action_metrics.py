"""Metrics of settled actions and of core-seconds, by task. The service that settles an action counts it."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import Counter, Histogram

from arl_core.domain.completion_times import CompletionTimes
from arl_kit.metrics import Metrics
from arl_store.queue_repository import queue_names
from arl_store.tx import PostgresStore

__all__ = ["MAX_TASKS", "MAX_TASKS_OF_PROJECT", "OTHER", "ActionMetrics", "CoreTime", "SettledAction", "TaskLabels"]

ACTION_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0),
)
"""Bounds in seconds, from a short program on an idle system to an hour of queueing."""
MAX_TASKS_OF_PROJECT = 25
"""Tasks of one project with their own label. A client chooses the names of tasks."""
MAX_TASKS = 100
"""Tasks of all projects with their own label. Each has about 90 time series for each kind of action."""
OTHER = "other"
"""Label of all further tasks, and of tasks whose name could not be read."""

log = logging.getLogger(__name__)

TaskLabel = tuple[str, str]
"""Project and task."""


class SettledAction(Protocol):
    """A settled row of `actions`; timestamps are those of the database."""

    queue_id: int
    kind: str
    outcome: str | None
    reason: str | None
    created_at: Any
    granted_at: Any
    settled_at: Any
    run_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreTime:
    """The core-seconds of an attempt that has ended."""

    queue_id: int
    kind: str
    allocated_s: float
    """Allocated cores, multiplied by the seconds for which the attempt had them."""
    used_s: float
    """CPU time of the attempt's processes in seconds."""


class TaskLabels:
    """Project and task of queues as label values, limited in number. Names are read once."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._labels: dict[int, TaskLabel] = {}
        self._counts: dict[str, int] = {}
        """Tasks with their own label, by project."""

    async def load(self, queues: Iterable[int]) -> None:
        """Read the names of queues that have no label yet. A failed read is repeated at the next call."""
        unnamed = set(queues) - self._labels.keys()
        if not unnamed:
            return
        try:
            async with self._store.read() as tx:
                names = await queue_names(tx, unnamed)
        except Exception as error:  # noqa: BLE001 - metrics never fail the work that they count
            log.warning("the names of %d tasks could not be read for the metrics: %r", len(unnamed), error)
            return
        for queue in sorted(names):
            self._labels[queue] = self._limit(*names[queue])

    def get(self, queue: int) -> TaskLabel:
        """Return the label of a queue."""
        return self._labels.get(queue, (OTHER, OTHER))

    def _limit(self, project: str, task: str) -> TaskLabel:
        shown = self._counts.get(project, 0)
        if shown >= MAX_TASKS_OF_PROJECT or sum(self._counts.values()) >= MAX_TASKS:
            return project, OTHER
        self._counts[project] = shown + 1
        return project, task


class ActionMetrics:
    """Times, outcomes and core-seconds of actions. Each settled action is counted once, after its commit."""

    def __init__(self, metrics: Metrics, labels: TaskLabels) -> None:
        self.task_labels = labels
        task = ("project", "task", "kind")
        self._settled = metrics.counter(
            "actions_settled", "Actions settled by this service, by outcome and reason", *task, "outcome", "reason"
        )
        self._completion, self._queueing, self._run, self._overhead = (
            metrics.histogram(name, text, ACTION_BUCKETS, *task)
            for name, text in (
                ("action_completion_seconds", "Seconds from the submission of an action until it settled (ACT)"),
                ("action_queueing_seconds", "Seconds from the submission of an action until its last grant"),
                ("action_run_seconds", "Run time of granted actions in seconds"),
                ("action_overhead_seconds", "Completion time of granted actions without queueing and run time"),
            )
        )
        self._allocated = metrics.counter(
            "allocated_core_seconds", "Cores allocated to ended attempts, multiplied by seconds", *task
        )
        self._used = metrics.counter(
            "used_core_seconds", "CPU seconds that ended attempts with allocated cores used", *task
        )
        self._histograms: dict[tuple[TaskLabel, str], tuple[Histogram, ...]] = {}
        """Histograms by task and kind. Looking labels up takes longer than counting."""
        self._counters: dict[tuple[TaskLabel, str, str | None, str | None], Counter] = {}

    async def record(self, rows: Iterable[SettledAction], core_times: Iterable[CoreTime] = ()) -> None:
        """Count settled actions and ended attempts. A re-queued row has no outcome and is not counted."""
        settled, core_times = [row for row in rows if row.outcome is not None], list(core_times)
        queues = {action.queue_id for action in settled} | {ended.queue_id for ended in core_times}
        await self.task_labels.load(queues)
        for action in settled:
            label = self.task_labels.get(action.queue_id)
            self._count(label, action)
            self._observe(label, action)
        for ended in core_times:
            labels = (*self.task_labels.get(ended.queue_id), ended.kind)
            self._allocated.labels(*labels).inc(max(0.0, ended.allocated_s))
            self._used.labels(*labels).inc(max(0.0, ended.used_s))

    def _count(self, label: TaskLabel, action: SettledAction) -> None:
        key = (label, action.kind, action.outcome, action.reason)
        if key not in self._counters:
            self._counters[key] = self._settled.labels(*label, action.kind, action.outcome, action.reason or "")
        self._counters[key].inc()

    def _observe(self, label: TaskLabel, action: SettledAction) -> None:
        key = (label, action.kind)
        if key not in self._histograms:
            histograms = (self._completion, self._queueing, self._run, self._overhead)
            self._histograms[key] = tuple(each.labels(*label, action.kind) for each in histograms)
        completion, queueing, run, overhead = self._histograms[key]
        times = CompletionTimes.from_timestamps(action.created_at, action.granted_at, action.settled_at, action.run_us)
        completion.observe(times.act_s)
        queueing.observe(times.queue_s)
        if action.granted_at is not None:
            run.observe(times.run_s)
            overhead.observe(times.overhead_s)

"""Metrics of settled actions and of core-seconds, by task. The service that settles an action counts it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from prometheus_client import Counter, Histogram

from arl_core.domain.completion_times import CompletionTimes
from arl_kit.metrics import Metrics
from arl_store.queue_repository import queue_names
from arl_store.tx import PostgresStore, ReadTx

__all__ = [
    "MAX_PROJECTS",
    "MAX_TASKS",
    "MAX_TASKS_OF_PROJECT",
    "MAX_UNLABELLED_QUEUES",
    "MAX_WAITING",
    "MIN_TASKS_OF_PROJECT",
    "OTHER",
    "ActionMetrics",
    "CoreTime",
    "SettledAction",
    "TaskLabels",
]

ACTION_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0),
)
"""Bounds in seconds, from a short program on an idle system to an hour of queueing."""
MIN_TASKS_OF_PROJECT = 5
"""Tasks of each project that always have their own label, so that other projects cannot use up all labels."""
MAX_TASKS_OF_PROJECT = 25
"""Tasks of one project with their own label. A client chooses the names of tasks."""
MAX_TASKS = 100
"""Tasks with their own label, above which a project gets `MIN_TASKS_OF_PROJECT`.

Each has about 90 time series for each kind of action.
"""
MAX_PROJECTS = 200
"""Projects with their own label."""
MAX_UNLABELLED_QUEUES = 10_000
"""Remembered queues without their own label. The name of a forgotten queue is read again."""
MAX_WAITING = 10_000
"""Settled actions and ended attempts that wait for the names of their tasks. Further ones count as `OTHER`."""
OTHER = "other"
"""Label of all further tasks, and of tasks whose name could not be read."""

log = logging.getLogger(__name__)

TaskLabel = tuple[str, str]
"""Project and task."""
NamesReader = Callable[[ReadTx, Mapping[int, UUID | None]], Awaitable[Mapping[int, TaskLabel]]]
"""Reads project and task of queues; each queue has one of its actions, if the caller knows one."""


class SettledAction(Protocol):
    """A settled row of `actions`; timestamps are those of the database."""

    id: UUID
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
    """Project and task of queues as label values, limited in number."""

    def __init__(self, store: PostgresStore, read_names: NamesReader = queue_names) -> None:
        self._store = store
        self._read_names = read_names
        self._labels: dict[int, TaskLabel] = {}
        """Labels of queues with their own label."""
        self._unlabelled: dict[int, TaskLabel] = {}
        """Labels of further queues, oldest first."""
        self._counts: dict[str, int] = {}
        """Tasks with their own label, by project."""

    def is_known(self, queue: int) -> bool:
        """Return True if the label is final: its name was read, or no label is left."""
        return queue in self._labels or queue in self._unlabelled or self._is_used_up()

    async def load(self, queues: Mapping[int, UUID | None]) -> None:
        """Read the names of queues that have no label yet. A failed read is repeated at the next call.

        Args:
            queues: By queue, one of its actions. A node needs it as the proof that it may read the name.
        """
        unnamed = {queue: action for queue, action in queues.items() if not self.is_known(queue)}
        if not unnamed:
            return
        try:
            async with self._store.read() as tx:
                names = await self._read_names(tx, unnamed)
        except Exception as error:  # noqa: BLE001 - metrics never fail the work that they count
            log.warning("the names of %d tasks could not be read for the metrics: %r", len(unnamed), error)
            return
        for queue in sorted(names):
            # An overlapping call may have labelled the queue.
            if queue not in self._labels and queue not in self._unlabelled:
                self._assign(queue, *names[queue])

    def get(self, queue: int) -> TaskLabel:
        """Return the label of a queue."""
        return self._labels.get(queue) or self._unlabelled.get(queue, (OTHER, OTHER))

    def _assign(self, queue: int, project: str, task: str) -> None:
        if self._has_label_left(project):
            self._counts[project] = self._counts.get(project, 0) + 1
            self._labels[queue] = (project, task)
            return
        if len(self._unlabelled) >= MAX_UNLABELLED_QUEUES:
            del self._unlabelled[next(iter(self._unlabelled))]
        self._unlabelled[queue] = (project if project in self._counts else OTHER, OTHER)

    def _has_label_left(self, project: str) -> bool:
        if project not in self._counts:
            return len(self._counts) < MAX_PROJECTS
        used = self._counts[project]
        if used < MIN_TASKS_OF_PROJECT:
            return True
        return used < MAX_TASKS_OF_PROJECT and len(self._labels) < MAX_TASKS

    def _is_used_up(self) -> bool:
        # Fewer labels cannot be all of them, and this is cheap to check for each action.
        return len(self._labels) >= MAX_PROJECTS * MIN_TASKS_OF_PROJECT and not (
            len(self._counts) < MAX_PROJECTS or any(map(self._has_label_left, self._counts))
        )


class ActionMetrics:
    """Times, outcomes and core-seconds of actions. Each settled action is counted at most once, after its commit.

    Actions of a new task are counted when its name is known. A background task reads it; nothing waits for that.
    """

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
        self._waiting: list[SettledAction | CoreTime] = []
        """Actions and attempts whose task has no name yet."""
        self._unnamed: dict[int, UUID] = {}
        """Queues to read, each with one of its actions."""
        self._reader: asyncio.Task[None] | None = None

    def record(self, rows: Iterable[SettledAction], core_times: Iterable[CoreTime] = ()) -> None:
        """Count settled actions and ended attempts. A re-queued row has no outcome and is not counted.

        Each queue of `core_times` must be the queue of a row.
        """
        rows = list(rows)
        actions = {row.queue_id: row.id for row in rows}
        ended: list[SettledAction | CoreTime] = [row for row in rows if row.outcome is not None]
        for each in (*ended, *core_times):
            if self.task_labels.is_known(each.queue_id) or len(self._waiting) >= MAX_WAITING:
                self._count(each)
            else:
                self._waiting.append(each)
                self._unnamed[each.queue_id] = actions[each.queue_id]
        if self._waiting and (self._reader is None or self._reader.done()):
            self._reader = asyncio.create_task(self._count_waiting(), name="names of tasks")

    async def wait_until_counted(self) -> None:
        """Return when all recorded actions are counted."""
        if self._reader is not None:
            await asyncio.wait([self._reader])

    async def _count_waiting(self) -> None:
        """Read names until nothing waits. What has no name after its read is counted as `OTHER`."""
        while self._waiting:
            unnamed, self._unnamed = self._unnamed, {}
            await self.task_labels.load(unnamed)
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                if each.queue_id in self._unnamed and not self.task_labels.is_known(each.queue_id):
                    self._waiting.append(each)
                else:
                    self._count(each)

    def _count(self, ended: SettledAction | CoreTime) -> None:
        label = self.task_labels.get(ended.queue_id)
        if isinstance(ended, CoreTime):
            self._allocated.labels(*label, ended.kind).inc(max(0.0, ended.allocated_s))
            self._used.labels(*label, ended.kind).inc(max(0.0, ended.used_s))
            return
        self._count_outcome(label, ended)
        self._observe(label, ended)

    def _count_outcome(self, label: TaskLabel, action: SettledAction) -> None:
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

"""Step awareness of the leader: it projects the open steps, and marks the actions that go first.

The state is in memory. It is saved at intervals, so that the next leader and reports of steps read it from rows. A few
lost seconds only make predictions worse.
"""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from arl_core.steps.projection import BoostRule, limit_by_node, project_step
from arl_core.steps.trajectory_record import TaskPace, TrajectoryRecord
from arl_kit.service_client import ServiceClient
from arl_scheduler.index.allocations import Allocation
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.index.step_tracker import IDLE_S, MAX_TRAJECTORIES, StepTracker, TrajectoryKey
from arl_scheduler.leader.election import LeaderElection
from arl_scheduler.leader.notification_inbox import PendingNotifications, notify_critical
from arl_scheduler.queries import leader_queries, step_queries
from arl_scheduler.queries.poll_result import PollResult
from arl_store.tx import PostgresStore, Row

__all__ = ["StepCoordinator"]

SAVE_INTERVAL_S = 2.0
SAVE_BATCH = 2000
SAVED_CHANGE = 0.05
"""Relative change of a predicted rest from which it is saved without another event."""
MIN_PROJECTION_INTERVAL_S = 0.1
LOAD_FACTOR = 20.0
"""Projections of large steps are rarer, so that they take at most a twentieth of the time."""
PACE_ROWS = 10_000
RETENTION_DAYS = 30
_CORES = "cpu_milli"
_SAVED = (
    *("prompt", "expected_turns", "progress", "turns"),
    *("think_s", "queue_s", "run_s", "core_wait_s", "overhead_s", "cpu_s"),
)
"""Fields of a record that have columns of the same name."""

_Record = tuple[TrajectoryKey, TrajectoryRecord]


class StepCoordinator:
    """The steps of a leader. Without `is_boosting`, they are reported and no action goes first."""

    def __init__(self, store: PostgresStore, peers: ServiceClient, *, is_boosting: bool = True) -> None:
        self._store, self._peers = store, peers
        self._is_boosting = is_boosting
        self.tracker = StepTracker()
        self._term: int | None = None
        self._project_at = float("-inf")
        self._save_at = float("-inf")

    @property
    def critical_count(self) -> int:
        """Return the number of critical trajectories."""
        return sum(record.rule is BoostRule.CRITICAL_TRAJECTORY for record in self.tracker.records.values())

    async def begin(self, *, term: int) -> None:
        """Load the open trajectories that earlier leaders saved, once in a term."""
        if self._term == term:
            return
        tracker = StepTracker()
        async with self._store.read() as tx:
            for row in await step_queries.read_open(tx, idle_s=IDLE_S, limit=MAX_TRAJECTORIES // 2):
                tracker.restore(TrajectoryKey(row.queue_id, row.step, row.trajectory), _record_from_row(row))
            for row in await step_queries.read_paces(tx, limit=PACE_ROWS):
                tracker.paces[row.queue_id] = TaskPace(row.turns, row.solo_s, row.cpu_s, row.trajectories, row.total_s)
        self.tracker, self._term = tracker, term

    def apply_poll(self, poll: PollResult) -> None:
        """End the trajectories and steps that a poll shows as ended."""
        if not self.tracker.records:
            return
        for environment in poll.environments:
            if environment.ended is not None:
                self.tracker.end_trajectory(environment.queue_id, environment.trajectory, at=environment.ended)
        for queue_id, step, ended in poll.ended_steps:
            self.tracker.end_step(queue_id, step, at=ended)
        self.tracker.expire(poll.now)

    def end_notified(self, notifications: PendingNotifications, *, now: float) -> None:
        """End the trajectories that clients ended, before new actions of the same names are admitted."""
        for each in notifications.ended:
            self.tracker.end_trajectory(each.queue_id, each.trajectory, at=now)

    def begin_index(self) -> StepTracker:
        """Return the tracker for a new index, which adds all queued and granted actions again."""
        self.tracker.forget_actions()
        return self.tracker

    def record_released(
        self,
        index: SchedulerIndex,
        released: Iterable[Allocation],
        notifications: PendingNotifications,
        *,
        now: float,
    ) -> None:
        """Record the released allocations. An action that is in the queue again had no turn."""
        self.tracker.record_released(
            released,
            notifications.runs,
            is_requeued=lambda fence: fence in notifications.requeued or index.is_queued(fence.action_id),
            at=now,
        )

    async def update(self, index: SchedulerIndex, *, now: float) -> None:
        """Project the open steps if something changed, and mark the actions of critical trajectories.

        Their queued actions go first. Their running actions get a greater share of the cores.
        """
        tracker = self.tracker
        if not tracker.is_changed or time.monotonic() < self._project_at:
            return
        if prompts := tracker.take_unloaded_prompts():
            async with self._store.read() as tx:
                tracker.add_passes(await step_queries.read_passes(tx, prompts), prompts)
        began = time.monotonic()
        tracker.is_changed = False
        running: list[tuple[Allocation, bool]] = []
        for record, is_critical in self._project(index, now=now):
            for action_id in record.open_actions:
                index.set_critical(action_id, is_critical=is_critical)
                allocation = index.allocations.get(action_id)
                if allocation is not None and self.tracker.may_go_first(action_id) and _shares_cores(allocation):
                    running.append((allocation, is_critical))
        notify_critical(self._peers, index.nodes, running)
        ended = time.monotonic()
        self._project_at = ended + max(MIN_PROJECTION_INTERVAL_S, LOAD_FACTOR * (ended - began))

    def next_projection_in_s(self) -> float | None:
        """Return the seconds until changes are projected; None without changes."""
        return self._project_at - time.monotonic() if self.tracker.is_changed else None

    async def save(self, leadership: LeaderElection, *, force: bool = False) -> None:
        """Save the trajectories and prompts that changed, at most every `SAVE_INTERVAL_S` unless forced."""
        tracker, now = self.tracker, time.monotonic()
        if leadership.term is None or not (tracker.unsaved or tracker.unsaved_prompts):
            return
        if not force and now < self._save_at:
            return
        keys = sorted(tracker.unsaved)[:SAVE_BATCH]
        prompts = {prompt: tracker.passes_of(prompt) for prompt in sorted(tracker.unsaved_prompts)[:SAVE_BATCH]}
        self._save_at = now + (SAVE_INTERVAL_S if len(keys) < SAVE_BATCH else 0.0)
        async with self._store.write() as tx:
            await leader_queries.lock_term(tx, cell=leadership.cell, term=leadership.term)
            if keys:
                await step_queries.save_trajectories(tx, [_to_row(key, tracker.records[key]) for key in keys])
            if prompts:
                await step_queries.save_passes(tx, prompts)
        tracker.unsaved.difference_update(keys)
        tracker.unsaved_prompts.difference_update(prompts)

    async def delete_old(self, leadership: LeaderElection) -> None:
        """Delete rows of steps that were not active for `RETENTION_DAYS`."""
        if leadership.term is None:
            raise leader_queries.TermLostError
        async with self._store.write() as tx:
            await leader_queries.lock_term(tx, cell=leadership.cell, term=leadership.term)
            await step_queries.delete_old(tx, days=RETENTION_DAYS)

    def _project(self, index: SchedulerIndex, *, now: float) -> Iterable[tuple[TrajectoryRecord, bool]]:
        """Project all open steps. Yield the trajectories that became critical, or are no longer critical."""
        node_cores = {node.id: node.capacity.get(_CORES, 0) / 1000 for node in index.nodes.values()}
        by_task: dict[int, dict[int, list[_Record]]] = {}
        for key, record in self.tracker.open_trajectories():
            by_task.setdefault(key.queue_id, {}).setdefault(key.step, []).append((key, record))
        for task, steps in by_task.items():
            fraction = index.fair_fraction(task)
            before = {key for step in steps.values() for key, record in step if _is_critical(record)}
            for step in steps.values():
                self._project_one(step, now=now, cores=fraction * sum(node_cores.values()))
            after = self._limit(steps, node_cores, fraction)
            for step in steps.values():
                yield from ((record, key in after) for key, record in step if (key in before) != (key in after))

    def _project_one(self, step: list[_Record], *, now: float, cores: float) -> None:
        pace = self.tracker.paces.get(step[0][0].queue_id) or TaskPace()
        found = project_step(
            {key: record.to_state(self.tracker.earlier_s(key, record), now=now) for key, record in step},
            elapsed_s=now - min(record.started for _, record in step),
            turn_s=pace.turn_s,
            trajectory_s=pace.trajectory_s,
            cpu_fraction=pace.cpu_fraction,
            cores=cores,
        )
        for key, record in step:
            rest = found[key].rest
            rest_s, rule = rest.rest_s if rest is not None else None, found[key].rule
            if rule is BoostRule.CRITICAL_TRAJECTORY and not self._is_boosting:
                rule = BoostRule.DISABLED
            if rule is not record.rule or _differs(rest_s, record.saved_rest_s):
                record.saved_rest_s = rest_s
                self.tracker.unsaved.add(key)
            record.rule, record.rest_s = rule, rest_s
            record.log_deviation = rest.log_deviation if rest is not None else None

    @staticmethod
    def _limit(
        steps: Mapping[int, list[_Record]], node_cores: Mapping[int, float], fraction: float
    ) -> frozenset[TrajectoryKey]:
        """Return the critical trajectories of a task, at most its share of the cores of each node."""
        critical = [
            (key, record)
            for _, step in sorted(steps.items())
            for key, record in sorted(step, key=lambda each: -(each[1].rest_s or 0.0))
            if _is_critical(record)
        ]
        total = sum(node_cores.values())

        def room_of(node: int | None) -> int:
            """Return the number of critical trajectories that the task may have on a node."""
            return max(1, int(fraction * (node_cores.get(node, total) if node is not None else total)))

        kept = limit_by_node(((key, record.node) for key, record in critical), room_of)
        for key, record in critical:
            if key not in kept:
                record.rule = BoostRule.NODE_LIMIT
        return kept


def _shares_cores(allocation: Allocation) -> bool:
    return allocation.cls is not None and allocation.cls.sharing is not None


def _is_critical(record: TrajectoryRecord) -> bool:
    return record.rule is BoostRule.CRITICAL_TRAJECTORY


def _differs(rest_s: float | None, saved_s: float | None) -> bool:
    """Return True if a changed prediction is worth a write."""
    if rest_s is None or saved_s is None:
        return rest_s is not saved_s
    return abs(rest_s - saved_s) > SAVED_CHANGE * saved_s


def _to_row(key: TrajectoryKey, record: TrajectoryRecord) -> dict[str, Any]:
    return {
        **key._asdict(),
        **{name: getattr(record, name) for name in (*_SAVED, "waits", "rest_s", "log_deviation")},
        "trajectory_group": record.group,
        "node_id": record.node,
        "started_at": record.started,
        "active_at": record.active,
        "ended_at": record.ended,
        "boost": record.rule.value,
    }


def _record_from_row(row: Row) -> TrajectoryRecord:
    return TrajectoryRecord(
        **{name: getattr(row, name) for name in _SAVED},
        waits=json.loads(row.waits),
        group=row.trajectory_group,
        node=row.node_id,
        started=row.started_at,
        active=row.active_at,
    )

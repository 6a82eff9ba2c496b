"""Failures found by a poll: attempts on silent nodes, and environments on nodes that stay away."""

import time
from collections.abc import Iterable

from arl_core.control.reclaim import ActiveAttempt, NodeLease, ReclaimDecision, reclaim
from arl_core.domain.states import ActionState
from arl_kit.action_metrics import CoreTime
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.queries.poll_result import PollResult
from arl_store.tx import Row

__all__ = ["HeartbeatWatch", "find_failed", "reclaimed_core_times"]


class HeartbeatWatch:
    """The time since which this leader could see heartbeats, by the database's clock."""

    def __init__(self) -> None:
        self.since = 0.0
        self._polled_at = time.monotonic()

    def update(self, now: float, *, is_rebuilding: bool, max_pause_s: float) -> None:
        """Restart watching after a stall of more than `max_pause_s`: every node then gets a whole lease."""
        at = time.monotonic()
        if is_rebuilding or at - self._polled_at > max_pause_s:
            self.since = now
        self._polled_at = at


def find_failed(
    index: SchedulerIndex, poll: PollResult, *, watching_since: float, ttl_s: float, environment_loss_after_s: float
) -> tuple[tuple[ReclaimDecision, ...], list[int]]:
    """Return the decisions on active attempts, and the nodes whose environments are lost."""
    leases = {
        node.id: NodeLease(
            node=node.id,
            epoch=node.epoch,
            silent_s=poll.now - max(node.last_heartbeat, watching_since),
            is_drain_expired=node.is_drain_expired,
        )
        for node in poll.nodes
    }
    verdicts = reclaim(_active_attempts(index, poll), leases, ttl_s=ttl_s)
    away = [
        node
        for node, lease in leases.items()
        if (lease.is_drain_expired or lease.silent_s > environment_loss_after_s)
        and index.environments.has_live_on(node)
    ]
    return verdicts, away


def reclaimed_core_times(rows: Iterable[Row]) -> list[CoreTime]:
    """Return the core-seconds of reclaimed attempts, which no manager reports. Their CPU time is unknown."""
    return [
        CoreTime(queue_id=row.queue_id, kind=row.kind, allocated_s=row.allocated_core_s, used_s=0.0)
        for row in rows
        if row.allocated_core_s > 0
    ]


def _active_attempts(index: SchedulerIndex, poll: PollResult) -> Iterable[ActiveAttempt]:
    for row in poll.allocations:
        name = (row.queue_id, row.trajectory) if row.trajectory is not None else None
        yield ActiveAttempt(
            fence=row.fence,
            state=row.state,
            node=row.node,
            node_epoch=row.node_epoch,
            environment=row.environment,
            environment_live=index.environments.is_live(row.environment, name),
            environment_made=row.state is not ActionState.GRANTED or index.environments.exists(row.environment, name),
            failures=row.failures,
            retries=row.retries,
        )

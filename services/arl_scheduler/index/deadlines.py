"""Deadlines of queued actions, and the latest start that can still meet them."""

from collections.abc import Callable, Container, Iterable
from heapq import heapify, heappop, heappush
from uuid import UUID

from arl_core.domain.model import ActionClass, QueuedAction

__all__ = ["UNREACHABLE", "DeadlineQueue"]

UNREACHABLE = "deadline_unreachable"
"""Reason for dropping an action before its deadline: if it started now, it would usually miss it."""

MAX_STALE_ENTRIES = 1000
"""Number of stale entries that are not worth a clean-up."""


class DeadlineQueue:
    """A queue of deadlines by latest start, earliest first.

    `min_run_time_s` returns the class's usual time at its highest DoP, or 0 if unknown.
    """

    def __init__(self, min_run_time_s: Callable[[ActionClass], float]) -> None:
        self._min_run_time_s = min_run_time_s
        self._heap: list[tuple[float, UUID]] = []

    def __len__(self) -> int:
        """Return the number of entries, including stale ones."""
        return len(self._heap)

    def add(self, action: QueuedAction) -> None:
        """Add an action; one without a deadline is ignored."""
        if action.deadline is not None:
            heappush(self._heap, (self._latest_start(action, action.deadline), action.id))

    def reschedule(self, ids: Iterable[UUID], at: float) -> None:
        """Check these actions again at `at`. They were due here but not by the database's clock."""
        for id in ids:
            heappush(self._heap, (at, id))

    def prune(self, ids: Container[UUID], count: int) -> None:
        """Drop stale entries once they are the majority. `ids` are the `count` queued actions."""
        if len(self._heap) > MAX_STALE_ENTRIES + 2 * count:
            self._heap = [entry for entry in self._heap if entry[1] in ids]
            heapify(self._heap)

    def take_due(
        self, now: float, find: Callable[[UUID], QueuedAction | None], *, limit: int
    ) -> dict[UUID, str | None]:
        """Return at most `limit` queued actions that can no longer end in time, once each.

        The value is the reason, or None if the deadline has passed.
        """
        due: dict[UUID, str | None] = {}
        while self._heap and self._heap[0][0] <= now and len(due) < limit:
            action = find(heappop(self._heap)[1])
            if action is None or action.deadline is None:
                continue
            if action.deadline <= now:
                due[action.id] = None
            elif self._latest_start(action, action.deadline) <= now:
                due[action.id] = UNREACHABLE
            else:
                self.add(action)
        return due

    def next_at(self) -> float | None:
        """Return the earliest latest start, or None if no action has a deadline."""
        return self._heap[0][0] if self._heap else None

    def _latest_start(self, action: QueuedAction, deadline: float) -> float:
        return deadline - self._min_run_time_s(action.cls)

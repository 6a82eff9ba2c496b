"""When queued actions are late, or too late to end in time."""

from collections.abc import Callable, Container, Iterable
from heapq import heapify, heappop, heappush
from uuid import UUID

from arl_core.domain.model import ActionClass, QueuedAction

__all__ = ["UNREACHABLE", "DeadlineQueue"]

UNREACHABLE = "deadline_unreachable"
"""Why an action is not started although its deadline has not passed: started now it would usually miss it."""

MAX_STALE_ENTRIES = 1000
"""Entries of what waits no more that are not worth a look."""


class DeadlineQueue:
    """Earliest first. `usual_s` is what an action of a class usually takes at its widest, 0 where nobody knows."""

    def __init__(self, min_run_time_s: Callable[[ActionClass], float]) -> None:
        self._min_run_time_s = min_run_time_s
        self._heap: list[tuple[float, UUID]] = []

    def __len__(self) -> int:
        """With what waits no more, and is not forgotten yet."""
        return len(self._heap)

    def add(self, action: QueuedAction) -> None:
        if action.deadline is not None:
            heappush(self._heap, (self._latest_start(action, action.deadline), action.id))

    def reschedule(self, ids: Iterable[UUID], at: float) -> None:
        """At these, which were due and are not settled: another clock said otherwise."""
        for id in ids:
            heappush(self._heap, (at, id))

    def prune(self, ids: Container[UUID], count: int) -> None:
        """Forget what waits no more, once that is most of what is here. `ids`: the `count` actions that wait."""
        if len(self._heap) > MAX_STALE_ENTRIES + 2 * count:
            self._heap = [entry for entry in self._heap if entry[1] in ids]
            heapify(self._heap)

    def take_due(self, now: float, find: Callable[[UUID], QueuedAction | None]) -> dict[UUID, str | None]:
        """Those that wait and can't end in time any more, once; why, unless their deadline has passed."""
        due: dict[UUID, str | None] = {}
        while self._heap and self._heap[0][0] <= now:
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
        return self._heap[0][0] if self._heap else None

    def _latest_start(self, action: QueuedAction, deadline: float) -> float:
        return deadline - self._min_run_time_s(action.cls)

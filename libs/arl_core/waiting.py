"""Waiting actions by class, in an order that a round can walk without changing it."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from uuid import UUID

from arl_core.model import ActionClass, Waiting

__all__ = ["SENIORITY_S", "ClassQueue", "WaitingIndex", "arrival_order"]

Order = tuple[int, float, UUID]

SENIORITY_S = 60.0
"""How much earlier, at most, an action counts as submitted because its trajectory began earlier."""


def arrival_order(action: Waiting) -> Order:
    """Higher priority first, then whose trajectory began first; ties by id, so that a round is deterministic.

    A trajectory waits for each of its actions before the next, so the mean action completion time is the mean time
    that trajectories take beside thinking: they should end one after another, not all at the end. An action is
    overtaken only by those submitted less than `SENIORITY_S` later, so none starves.
    """
    came = action.submitted
    if action.began is not None:
        came = max(action.began, came - SENIORITY_S)
    return (-action.priority, came, action.id)


class ClassQueue:
    """The waiting actions of one class. Add and discard cost O(log n); walking k of them O(k log k)."""

    def __init__(self, cls: ActionClass) -> None:
        self.cls = cls
        self._live: dict[UUID, tuple[Waiting, int]] = {}
        self._heap: list[tuple[Order, int]] = []
        self._additions = 0

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Waiting]:
        """In arrival order. The queue must not change while it is walked."""
        frontier = [(self._heap[0], 0)] if self._heap else []
        while frontier:
            ((_, _, action_id), addition), at = heappop(frontier)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(self._heap):
                    heappush(frontier, (self._heap[child], child))
            action, latest = self._live.get(action_id, (None, -1))
            # An action that left and came back has an older entry of the same order.
            if action is not None and latest == addition:
                yield action

    def add(self, action: Waiting) -> None:
        self._additions += 1
        self._live[action.id] = (action, self._additions)
        heappush(self._heap, (arrival_order(action), self._additions))

    def discard(self, action_id: UUID) -> None:
        self._live.pop(action_id, None)
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._live):
            self._heap = [(arrival_order(action), addition) for action, addition in self._live.values()]
            heapify(self._heap)


class WaitingIndex:
    """All waiting actions. Each id is in at most one class queue."""

    def __init__(self) -> None:
        self._queues: dict[int, ClassQueue] = {}
        self._class_of: dict[UUID, int] = {}

    def __len__(self) -> int:
        return len(self._class_of)

    def __contains__(self, action_id: UUID) -> bool:
        return action_id in self._class_of

    def queues(self) -> Iterator[ClassQueue]:
        return iter(self._queues.values())

    def add(self, action: Waiting) -> None:
        self.discard(action.id)
        queue = self._queues.setdefault(action.cls.key, ClassQueue(action.cls))
        queue.add(action)
        self._class_of[action.id] = action.cls.key

    def discard(self, action_id: UUID) -> None:
        key = self._class_of.pop(action_id, None)
        if key is None:
            return
        queue = self._queues[key]
        queue.discard(action_id)
        if not queue:
            del self._queues[key]

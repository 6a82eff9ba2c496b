"""When queued actions are late."""

from heapq import heappop, heappush
from uuid import UUID

__all__ = ["Deadlines"]


class Deadlines:
    """Earliest first. Whoever leaves the queue in time is still said when its time comes."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, UUID]] = []

    def add(self, action_id: UUID, deadline: float) -> None:
        heappush(self._heap, (deadline, action_id))

    def due(self, now: float) -> list[UUID]:
        """Those whose deadline has passed, once."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heappop(self._heap)[1])
        return due

    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

"""Queued actions, and those that a round may start."""

from collections import deque
from collections.abc import Callable, Container, Iterator
from heapq import heapify, heappop, heappush
from uuid import UUID

from arl_core.domain.model import ActionClass, QueuedAction
from arl_scheduler.index.candidates import CandidateQueue
from arl_scheduler.index.deadlines import DeadlineQueue
from arl_scheduler.index.environments import EnvironmentName

__all__ = ["QueuedActions"]

MAX_STALE_ENTRIES = 1000
"""Number of entries of actions that left the queue that is not worth a clean-up."""


class _TaskQueue:
    """The number of queued actions of one task, and their submission times. Scrapes read them without a walk."""

    def __init__(self) -> None:
        self.depth = 0
        self._in_order: deque[tuple[float, UUID]] = deque()
        self._earlier: list[tuple[float, UUID]] = []
        """Heap of actions that were added after later ones, such as re-queued actions."""

    def add(self, action: QueuedAction) -> None:
        self.depth += 1
        entry = (action.submitted, action.id)
        if self._in_order and entry < self._in_order[-1]:
            heappush(self._earlier, entry)
        else:
            self._in_order.append(entry)

    def remove(self, queued: Container[UUID]) -> None:
        """Count an action less. Its entry is dropped later."""
        self.depth -= 1
        if len(self._in_order) + len(self._earlier) > MAX_STALE_ENTRIES + 2 * self.depth:
            self._in_order = deque(entry for entry in self._in_order if entry[1] in queued)
            self._earlier = [entry for entry in self._earlier if entry[1] in queued]
            heapify(self._earlier)

    def oldest(self, queued: Container[UUID]) -> float:
        """Return the earliest submission time of the queued actions, of which there must be one."""
        while self._in_order and self._in_order[0][1] not in queued:
            self._in_order.popleft()
        while self._earlier and self._earlier[0][1] not in queued:
            heappop(self._earlier)
        return min(entries[0][0] for entries in (self._in_order, self._earlier) if entries)


class QueuedActions:
    """Queued actions by id. Rounds do not see those of a paused queue."""

    def __init__(self, min_run_time_s: Callable[[ActionClass], float]) -> None:
        self._by_id: dict[UUID, QueuedAction] = {}
        self._by_task: dict[int, _TaskQueue] = {}
        self.environment_names: dict[UUID, EnvironmentName] = {}
        """Environment names of the actions that are queued for one."""
        self.candidates = CandidateQueue()
        self.deadlines = DeadlineQueue(min_run_time_s)
        self.paused: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[QueuedAction]:
        return iter(self._by_id.values())

    def __getitem__(self, action_id: UUID) -> QueuedAction:
        return self._by_id[action_id]

    def get(self, action_id: UUID) -> QueuedAction | None:
        """Return a queued action, or None."""
        return self._by_id.get(action_id)

    def add(self, action: QueuedAction) -> None:
        """Add an action to the queue. It is a candidate only after `offer`."""
        self._by_id[action.id] = action
        self._by_task.setdefault(action.task, _TaskQueue()).add(action)
        self.candidates.register(action)

    def replace(self, action: QueuedAction) -> QueuedAction:
        """Replace a queued action by another form of it, and return that. Candidates do not change."""
        self._by_id[action.id] = action
        self.candidates.register(action)
        return action

    def take(self, action_id: UUID) -> QueuedAction:
        """Remove an action that is granted. It remains a candidate until `candidates` forgets it."""
        action = self._by_id.pop(action_id)
        self._remove(action)
        return action

    def discard(self, action_id: UUID) -> QueuedAction | None:
        """Remove an action from the queue and return it; None for an unknown id."""
        action = self._by_id.pop(action_id, None)
        if action is not None:
            self._remove(action)
        return action

    def offer(self, action: QueuedAction) -> None:
        """Make an action a candidate. A round sees it unless its queue is paused."""
        self.candidates.add(action)

    def pause(self, paused: frozenset[int]) -> None:
        """Pause exactly these queues."""
        self.paused = paused
        self.candidates.queue.pause(paused)

    def depths(self) -> dict[int, tuple[int, float]]:
        """Return the number of queued actions of each queue and the submission time of its oldest."""
        return {task: (queue.depth, queue.oldest(self._by_id)) for task, queue in self._by_task.items()}

    def _remove(self, action: QueuedAction) -> None:
        queue = self._by_task[action.task]
        queue.remove(self._by_id)
        if not queue.depth:
            del self._by_task[action.task]

    def take_missed_deadlines(self, now: float, *, limit: int) -> dict[UUID, str | None]:
        """Return the actions that can no longer meet their deadline, once each, and the reason if it has not passed."""
        self.deadlines.prune(self._by_id, len(self._by_id))
        return self.deadlines.take_due(now, self._by_id.get, limit=limit)

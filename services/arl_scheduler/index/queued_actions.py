"""Queued actions, and those that a round may start."""

from collections.abc import Callable, Iterator
from uuid import UUID

from arl_core.domain.model import ActionClass, QueuedAction
from arl_scheduler.index.candidates import CandidateQueue
from arl_scheduler.index.deadlines import DeadlineQueue
from arl_scheduler.index.environments import EnvironmentName

__all__ = ["QueuedActions"]


class QueuedActions:
    """Queued actions by id. Actions of a paused queue are not candidates."""

    def __init__(self, min_run_time_s: Callable[[ActionClass], float]) -> None:
        self._by_id: dict[UUID, QueuedAction] = {}
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
        self.candidates.register(action)

    def take(self, action_id: UUID) -> QueuedAction:
        """Remove an action that is granted. It remains a candidate until `candidates` forgets it."""
        return self._by_id.pop(action_id)

    def discard(self, action_id: UUID) -> QueuedAction | None:
        """Remove an action from the queue and return it; None for an unknown id."""
        return self._by_id.pop(action_id, None)

    def offer(self, action: QueuedAction) -> None:
        """Make an action a candidate unless its queue is paused."""
        if action.task not in self.paused:
            self.candidates.add(action)

    def pause(self, paused: frozenset[int]) -> list[QueuedAction]:
        """Pause exactly these queues. Return the actions of all queues that this paused or resumed."""
        changed = paused ^ self.paused
        self.paused = paused
        return [each for each in self if each.task in changed] if changed else []

    def depths(self) -> dict[int, tuple[int, float]]:
        """Return the number of queued actions of each queue and the submission time of its oldest."""
        found: dict[int, tuple[int, float]] = {}
        for action in self:
            depth, oldest = found.get(action.task, (0, action.submitted))
            found[action.task] = (depth + 1, min(oldest, action.submitted))
        return found

    def take_missed_deadlines(self, now: float) -> dict[UUID, str | None]:
        """Return the actions that can no longer meet their deadline, once each, and the reason if it has not passed."""
        self.deadlines.prune(self._by_id, len(self._by_id))
        return self.deadlines.take_due(now, self._by_id.get)

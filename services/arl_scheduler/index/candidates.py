"""Candidates of rounds: single actions, and gangs as one candidate once they are complete."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from arl_core.domain.model import QueuedAction
from arl_core.domain.states import ActionOutcome
from arl_core.queue.queue_index import QueueIndex

__all__ = ["CandidateQueue"]

GANG_FAILURE_REASONS = {ActionOutcome.CANCELLED: "gang_cancelled", ActionOutcome.DEADLINE_IN_QUEUE: "gang_deadline"}
"""Reasons with which the other members of a gang settle if one leaves the queue without starting."""


@dataclass(slots=True)
class _QueuedGang:
    members: dict[UUID, QueuedAction] = field(default_factory=dict)
    """Members in the queue, paused or not."""
    ready: set[UUID] = field(default_factory=set)
    head: UUID | None = None
    """The member that represents the complete gang in the order."""


class CandidateQueue:
    """The candidates, with the gangs whose members are in the queue."""

    def __init__(self) -> None:
        self.queue = QueueIndex()
        """The candidates, as rounds see them."""
        self._gangs: dict[UUID, _QueuedGang] = {}
        self._gang_of: dict[UUID, _QueuedGang] = {}

    def register(self, action: QueuedAction) -> None:
        """Register an action of the queue. A member counts for its gang until it is forgotten."""
        if action.gang is not None:
            gang = self._gangs.setdefault(action.gang.id, _QueuedGang())
            gang.members[action.id] = action
            self._gang_of[action.id] = gang

    def forget(self, action_id: UUID) -> None:
        """Forget an action that left the queue."""
        if not self._gang_of:
            self.queue.discard(action_id)
            return
        self.discard(action_id)
        if (gang := self._gang_of.pop(action_id, None)) is not None:
            action = gang.members.pop(action_id)
            if not gang.members and action.gang is not None:
                del self._gangs[action.gang.id]

    def add(self, action: QueuedAction) -> None:
        """Make an action a candidate. A member of a gang becomes one together with all others."""
        if action.gang is None:
            self.queue.add(action)
            return
        self.register(action)
        gang = self._gang_of[action.id]
        gang.ready.add(action.id)
        if len(gang.ready) >= action.gang.size:
            self._withdraw(gang)
            head, *others = (gang.members[id] for id in sorted(gang.members))
            self.queue.add(head._replace(gang_members=tuple(others)))
            gang.head = head.id

    def discard(self, action_id: UUID) -> None:
        """Remove an action from the candidates. It may remain in the queue."""
        gang = self._gang_of.get(action_id)
        if gang is None:
            self.queue.discard(action_id)
            return
        self._withdraw(gang)
        gang.ready.discard(action_id)

    def with_gang(self, action: QueuedAction) -> QueuedAction:
        """Return the action with its gang if that is complete; otherwise the action."""
        gang = self._gang_of.get(action.id)
        if gang is None or gang.head is None:
            return action
        head, *others = (gang.members[id] for id in sorted(gang.members))
        return head._replace(gang_members=tuple(others))

    def gang_failures(
        self, settled: Mapping[UUID, tuple[ActionOutcome, str | None]]
    ) -> dict[UUID, tuple[ActionOutcome, str | None]]:
        """Return the outcome of the other members of gangs whose given members settled in the queue.

        Such a gang can never start together.
        """
        found: dict[UUID, tuple[ActionOutcome, str | None]] = {}
        for action_id, (outcome, reason) in settled.items():
            gang = self._gang_of.get(action_id)
            for mate in gang.members if gang is not None else ():
                if mate not in settled:
                    found[mate] = (outcome, GANG_FAILURE_REASONS.get(outcome, reason))
        return found

    def incomplete_gangs(self) -> dict[UUID, tuple[ActionOutcome, str | None]]:
        """Return the outcome of members of gangs that will never be complete. All rows of a gang commit together."""
        return {
            id: (ActionOutcome.CANCELLED, GANG_FAILURE_REASONS[ActionOutcome.CANCELLED])
            for gang in self._gangs.values()
            for id, member in gang.members.items()
            if member.gang is not None and len(gang.members) < member.gang.size
        }

    def _withdraw(self, gang: _QueuedGang) -> None:
        if gang.head is not None:
            self.queue.discard(gang.head)
            gang.head = None

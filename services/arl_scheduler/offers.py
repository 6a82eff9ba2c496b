"""The candidates as rounds see them: each by itself, and a gang as one, once all of it is there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from arl_core.model import Waiting
from arl_core.states import Outcome
from arl_core.waiting import WaitingIndex

__all__ = ["Offers"]

BROKEN = {Outcome.CANCELLED: "gang_cancelled", Outcome.DEADLINE_IN_QUEUE: "gang_deadline"}
"""Why the others of a gang settle with a member that left the queue without a start."""


@dataclass(slots=True)
class _Gang:
    members: dict[UUID, Waiting] = field(default_factory=dict)
    """In the queue, whether that is paused or not."""
    offered: set[UUID] = field(default_factory=set)
    head: UUID | None = None
    """Who stands for all in the order, while all are there."""


class Offers:
    def __init__(self) -> None:
        self.waiting = WaitingIndex()
        """For rounds."""
        self._gangs: dict[UUID, _Gang] = {}
        self._gang_of: dict[UUID, _Gang] = {}

    def know(self, action: Waiting) -> None:
        """It is in the queue: where it is of a gang, it counts as a member until it is forgotten."""
        if action.gang is not None:
            gang = self._gangs.setdefault(action.gang.id, _Gang())
            gang.members[action.id] = action
            self._gang_of[action.id] = gang

    def forget(self, action_id: UUID) -> None:
        """It left the queue."""
        if not self._gang_of:
            self.waiting.discard(action_id)
            return
        self.discard(action_id)
        if (gang := self._gang_of.pop(action_id, None)) is not None:
            action = gang.members.pop(action_id)
            if not gang.members and action.gang is not None:
                del self._gangs[action.gang.id]

    def add(self, action: Waiting) -> None:
        """It is a candidate; a member of a gang is one with all the others."""
        if action.gang is None:
            self.waiting.add(action)
            return
        self.know(action)
        gang = self._gang_of[action.id]
        gang.offered.add(action.id)
        if len(gang.offered) >= action.gang.size:
            self._withdraw(gang)
            head, *others = (gang.members[id] for id in sorted(gang.members))
            self.waiting.add(head._replace(together=tuple(others)))
            gang.head = head.id

    def discard(self, action_id: UUID) -> None:
        """It is no candidate, though it may wait."""
        gang = self._gang_of.get(action_id)
        if gang is None:
            self.waiting.discard(action_id)
            return
        self._withdraw(gang)
        gang.offered.discard(action_id)

    def standing_for(self, action: Waiting) -> Waiting:
        """Its gang, if all of that is there; else itself."""
        gang = self._gang_of.get(action.id)
        if gang is None or gang.head is None:
            return action
        head, *others = (gang.members[id] for id in sorted(gang.members))
        return head._replace(together=tuple(others))

    def broken(self, settled: Mapping[UUID, tuple[Outcome, str | None]]) -> dict[UUID, tuple[Outcome, str | None]]:
        """What the others of their gangs settle as, as these did in the queue: not all could ever start together."""
        found: dict[UUID, tuple[Outcome, str | None]] = {}
        for action_id, (outcome, reason) in settled.items():
            gang = self._gang_of.get(action_id)
            for mate in gang.members if gang is not None else ():
                if mate not in settled:
                    found[mate] = (outcome, BROKEN.get(outcome, reason))
        return found

    def torn(self) -> dict[UUID, tuple[Outcome, str | None]]:
        """What waits of gangs that will never be whole: a row that is known is known with all of its commit."""
        return {
            id: (Outcome.CANCELLED, BROKEN[Outcome.CANCELLED])
            for gang in self._gangs.values()
            for id, member in gang.members.items()
            if member.gang is not None and len(gang.members) < member.gang.size
        }

    def _withdraw(self, gang: _Gang) -> None:
        if gang.head is not None:
            self.waiting.discard(gang.head)
            gang.head = None

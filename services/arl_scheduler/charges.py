"""Who pays for what was granted: what is expected at once, and the difference when it is over."""

from uuid import UUID

from arl_core.fairness import Shares, dominant_share
from arl_core.model import Amounts, Waiting, action_part
from arl_scheduler.homes import Hold

__all__ = ["Charges"]


class Charges:
    """In seconds of the whole cell. A new leader begins with everybody level."""

    def __init__(self) -> None:
        self.shares = Shares()
        self.total: Amounts = {}
        self.now = 0.0
        """By the database's clock, as of the last round."""
        self._charged: dict[UUID, float] = {}

    def granted(self, action: Waiting, amounts: Amounts, expected_s: float) -> None:
        share_s = dominant_share(action_part(amounts), self.total) * expected_s
        self._charged[action.id] = share_s
        self.shares.charge(action.task, share_s)

    def released(self, hold: Hold) -> None:
        """Nothing of it was charged where an earlier leader granted it."""
        charged = self._charged.pop(hold.fence.action_id, None)
        if charged is not None:
            used = dominant_share(action_part(hold.amounts), self.total) * max(0.0, self.now - hold.granted)
            self.shares.charge(hold.task, used - charged)
        self.shares.end(hold.task)

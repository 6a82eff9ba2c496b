"""Who pays for what was granted: what is expected at once, what it was when it is over."""

from uuid import UUID

from arl_core.fairness import Shares, own_resource, own_share
from arl_core.model import Amounts

__all__ = ["Accounts"]


class Accounts:
    """In seconds of the whole cell. A new leader begins with everybody level."""

    def __init__(self) -> None:
        self.shares = Shares()
        self.total: Amounts = {}
        """Of all nodes together."""
        self._expected: dict[UUID, float] = {}

    def began(self, task: int, demand: Amounts) -> None:
        """One more action of it waits, for these amounts at least."""
        self.shares.begin(task, own_resource(demand, self.total))

    def granted(self, action_id: UUID, task: int, share_s: float, amounts: Amounts) -> None:
        """What it is expected to have of these amounts, by `Curves.share_s`."""
        self._expected[action_id] = self.shares.expect(task, share_s, own_resource(amounts, self.total))

    def released(self, action_id: UUID, task: int, amounts: Amounts, *, held_s: float) -> None:
        """Nothing is paid for what an earlier leader granted."""
        expected = self._expected.pop(action_id, None)
        if expected is not None:
            self.shares.settle(task, expected, own_share(amounts, self.total) * max(0.0, held_s))

"""Who pays for what was granted: what is expected at once, what it was when it is over."""

from uuid import UUID

from arl_core.fairness import FairShares, own_resource, own_share
from arl_core.model import Resources

__all__ = ["ShareAccounting"]


class ShareAccounting:
    """In seconds of the whole cell. A new leader begins with everybody level."""

    def __init__(self) -> None:
        self.shares = FairShares()
        self.total: Resources = {}
        """Of all nodes together."""
        self._expected: dict[UUID, float] = {}

    def record_queued(self, task: int, demand: Resources) -> None:
        """One more action of it waits, for these amounts at least."""
        self.shares.add_action(task, own_resource(demand, self.total))

    def record_granted(self, action_id: UUID, task: int, share_s: float, resources: Resources) -> None:
        """What it is expected to have of these amounts, by `Curves.share_s`."""
        self._expected[action_id] = self.shares.charge_expected(task, share_s, own_resource(resources, self.total))

    def record_released(self, action_id: UUID, task: int, resources: Resources, *, allocated_s: float) -> None:
        """Nothing is paid for what an earlier leader granted."""
        expected = self._expected.pop(action_id, None)
        if expected is not None:
            self.shares.settle(task, expected, own_share(resources, self.total) * max(0.0, allocated_s))

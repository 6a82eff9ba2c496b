"""A round: which queued actions start now, on which node, with what amounts.

Values in, values out. A policy chooses the order and the amounts, and what counts as held; the interface stays.
"""

from dataclasses import dataclass
from typing import Protocol

from arl_core.free import FreeAmounts
from arl_core.gangs import take_together
from arl_core.model import Amounts, Grant, Plan, Waiting, action_part, environment_part
from arl_core.places import Looks
from arl_core.snapshot import Snapshot
from arl_core.waiting import Walk

__all__ = ["FirstComeFirstServed", "Policy"]


class Policy(Protocol):
    """What starts now, and what it holds. What an action and its environment hold is all that is ever counted."""

    @property
    def has_pods(self) -> bool:
        """Whether it looks at `Snapshot.pods`."""
        ...

    def plan(self, snapshot: Snapshot) -> Plan:
        """One round. Two actions of one environment are never granted in one."""
        ...

    def environment_holds(self, amounts: Amounts) -> dict[str, int]:
        """What a persistent environment holds until it ends, of what its first action was granted."""
        ...

    def action_holds(self, amounts: Amounts, *, at_home: bool, in_pod: bool) -> Amounts:
        """What a granted action holds besides; `at_home` in a persistent environment, `in_pod` on a pod's cores."""
        ...


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed:
    """Arrival order within a priority, at minimum demand.

    An action that fits nowhere stays queued, and does not hold up those behind it.
    """

    @property
    def has_pods(self) -> bool:
        return False

    def plan(self, snapshot: Snapshot) -> Plan:
        """Never gives more than a pool has free."""
        free = FreeAmounts.of(snapshot.pools)
        walk = Walk(snapshot.waiting.buckets(), room=snapshot.quotas.room())
        grants: list[Grant] = []
        looks = Looks()
        while (action := walk.head) is not None:
            started = take_together(free, action, looks=looks) if action.together else _alone(free, action)
            if started is None:
                walk.leave_bucket()
            else:
                grants += started
                walk.advance()
        return Plan(grants=tuple(grants))

    def environment_holds(self, amounts: Amounts) -> dict[str, int]:
        return environment_part(amounts)

    def action_holds(self, amounts: Amounts, *, at_home: bool, in_pod: bool) -> Amounts:
        return action_part(amounts) if at_home else amounts


def _alone(free: FreeAmounts, action: Waiting) -> list[Grant] | None:
    grant = free.take(action, action.cls.demand.minimum)
    return None if grant is None else [grant]

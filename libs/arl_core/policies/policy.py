"""A round: which queued actions start now, on which node, with what amounts.

Values in, values out. A policy chooses the order and the amounts, and what counts as held; the interface stays.
"""

from dataclasses import dataclass
from typing import Protocol

from arl_core.capacity.gang_packing import SearchBudget
from arl_core.capacity.gangs import allocate_gang
from arl_core.capacity.node_fitting import NodeFitter
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import (
    Grant,
    QueuedAction,
    Resources,
    SchedulingPlan,
    action_resources,
    environment_resources,
)
from arl_core.queue.queue_index import QueueCursor

__all__ = ["FirstComeFirstServed", "SchedulingPolicy"]


class SchedulingPolicy(Protocol):
    """What starts now, and what it holds. What an action and its environment hold is all that is ever counted."""

    @property
    def has_pods(self) -> bool:
        """Whether it looks at `Snapshot.pods`."""
        ...

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        """One round. Two actions of one environment are never granted in one."""
        ...

    def environment_allocation(self, resources: Resources) -> dict[str, int]:
        """What a persistent environment holds until it ends, of what its first action was granted."""
        ...

    def action_allocation(self, resources: Resources, *, in_environment: bool, in_pod: bool) -> Resources:
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

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        """Never gives more than a pool has free."""
        free = NodeFitter.from_nodes(snapshot.nodes)
        walk = QueueCursor(snapshot.queue.buckets(), room=snapshot.quotas.room())
        grants: list[Grant] = []
        looks = SearchBudget()
        while (action := walk.head) is not None:
            started = (
                allocate_gang(free, action, budget=looks) if action.gang_members else _allocate_single(free, action)
            )
            if started is None:
                walk.skip_bucket()
            else:
                grants += started
                walk.advance()
        return SchedulingPlan(grants=tuple(grants))

    def environment_allocation(self, resources: Resources) -> dict[str, int]:
        return environment_resources(resources)

    def action_allocation(self, resources: Resources, *, in_environment: bool, in_pod: bool) -> Resources:
        return action_resources(resources) if in_environment else resources


def _allocate_single(fitter: NodeFitter, action: QueuedAction) -> list[Grant] | None:
    grant = fitter.allocate(action, action.cls.demand.minimum)
    return None if grant is None else [grant]

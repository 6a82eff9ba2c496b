"""The interface of scheduling policies: which queued actions start now, on which node, with which amounts.

Values in, values out. A policy chooses the order, the amounts and the allocations.
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
    """A policy decides what starts and what it occupies. Only these allocations are ever counted."""

    @property
    def has_pods(self) -> bool:
        """Return True if the policy uses `CellSnapshot.pods`."""
        ...

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        """Plan one round. A round grants at most one action of an environment."""
        ...

    def environment_allocation(self, resources: Resources) -> dict[str, int]:
        """Return what a persistent environment occupies until it ends, given the grant of its first action."""
        ...

    def action_allocation(self, resources: Resources, *, in_environment: bool, in_pod: bool) -> Resources:
        """Return what a granted action occupies itself.

        `in_environment`: it runs in a persistent environment. `in_pod`: it runs on the cores of a pod.
        """
        ...


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed:
    """A policy of arrival order within a priority, at minimum demand.

    An action that fits on no node stays queued and does not block the actions behind it.
    """

    @property
    def has_pods(self) -> bool:
        """Return False: actions are granted one by one."""
        return False

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        """Plan one round within the free amounts of the nodes."""
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
        """Return the memory and disk of the first action; they stay allocated until the environment ends."""
        return environment_resources(resources)

    def action_allocation(self, resources: Resources, *, in_environment: bool, in_pod: bool) -> Resources:
        """Return all amounts, without memory and disk if an environment already occupies them."""
        return action_resources(resources) if in_environment else resources


def _allocate_single(fitter: NodeFitter, action: QueuedAction) -> list[Grant] | None:
    grant = fitter.allocate(action, action.cls.demand.minimum)
    return None if grant is None else [grant]

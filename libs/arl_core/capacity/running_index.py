"""An index of running actions by node, so that a round examines only nodes that changed."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from arl_core.domain.model import (
    ENVIRONMENT_RESOURCES,
    ActionClass,
    Reservation,
    ResizeSupport,
    Resources,
    RunningAction,
)
from arl_core.durations.scaling_fit import RunCounts

__all__ = ["RunningIndex", "is_resizable", "released_amount"]

_NOTHING: Mapping[UUID, RunningAction] = {}
_NO_RESOURCES: Resources = {}
_NO_RUNS = RunCounts()
_NO_RESERVATIONS: Mapping[UUID, Reservation] = {}


def is_resizable(cls: ActionClass | None) -> bool:
    """Return True if a running action of this class may be resized; an action of unknown class may not."""
    return cls is not None and cls.resizable is not ResizeSupport.NONE


def released_amount(running: RunningAction, resource: str) -> int:
    """Return how much of the resource is released when this action ends."""
    return 0 if running.in_environment and resource in ENVIRONMENT_RESOURCES else running.resources.get(resource, 0)


class RunningIndex:
    """The granted and running actions by node. Each id occurs at most once."""

    def __init__(self) -> None:
        self._by_node: dict[int, dict[UUID, RunningAction]] = {}
        self._node_of: dict[UUID, int] = {}
        self._shrinkable: dict[int, int] = {}
        self._outside_environments: dict[int, dict[str, int]] = {}
        self._undeclared: dict[int, RunCounts] = {}
        """Running actions of each class with undeclared elasticity, by class key."""
        self._dirty_nodes: set[int] = set()
        self.reserved = _NO_RESERVATIONS
        """Reservations of the last round, by action."""

    def __len__(self) -> int:
        return len(self._node_of)

    def on_node(self, node: int) -> Mapping[UUID, RunningAction]:
        """Return the running actions of the node by id. The mapping is live."""
        return self._by_node.get(node, _NOTHING)

    def shrinkable_amount(self, node: int) -> int:
        """Return the total elastic amount above the minimum of the node's shrinkable actions."""
        return self._shrinkable.get(node, 0)

    def counts_of(self, cls: ActionClass) -> RunCounts:
        """Return the numbers of running actions of a class with undeclared elasticity."""
        return self._undeclared.get(cls.key, _NO_RUNS)

    def outside_environments(self, node: int) -> Resources:
        """Return the memory and disk of the actions outside environments; they are released when those actions end."""
        return self._outside_environments.get(node, _NO_RESOURCES)

    @property
    def dirty_nodes(self) -> frozenset[int]:
        """Return the nodes on which an action began, ended or changed since `mark_clean`."""
        return frozenset(self._dirty_nodes)

    def mark_clean(
        self, *, except_nodes: Iterable[int] = (), reserved: Mapping[UUID, Reservation] = _NO_RESERVATIONS
    ) -> None:
        """Mark all nodes as examined, except those that the next round must examine again; store the reservations."""
        self._dirty_nodes, self.reserved = set(except_nodes), reserved

    def add(self, running: RunningAction) -> None:
        """Add an action, or replace the amounts of a known one."""
        action_id, node = running.fence.action_id, running.node
        if action_id in self._node_of:
            self.discard(action_id)
        if node not in self._by_node:
            self._by_node[node] = {}
        self._by_node[node][action_id] = running
        self._node_of[action_id] = node
        self._dirty_nodes.add(node)
        self._count(running, 1)

    def discard(self, action_id: UUID) -> None:
        """Remove an action and mark its node as changed. An unknown id is ignored."""
        node = self._node_of.pop(action_id, None)
        if node is not None:
            self._dirty_nodes.add(node)
            self._count(self._by_node[node].pop(action_id), -1)

    def _count(self, running: RunningAction, sign: int) -> None:
        if not running.in_environment:
            held = self._outside_environments.setdefault(running.node, {})
            for resource in ENVIRONMENT_RESOURCES:
                if amount := running.resources.get(resource):
                    held[resource] = held.get(resource, 0) + sign * amount
        cls = running.cls
        if cls is not None and cls.is_undeclared:
            self._count_undeclared(cls, running, sign)
        if cls is None or cls.resizable is not ResizeSupport.ANY or running.resources is cls.demand.minimum:
            return
        if (elastic := cls.demand.elastic) is not None:
            beyond = running.resources.get(elastic.resource, 0) - elastic.amounts[0]
            self._shrinkable[running.node] = self._shrinkable.get(running.node, 0) + sign * beyond

    def _count_undeclared(self, cls: ActionClass, running: RunningAction, sign: int) -> None:
        is_wide = running.resources.get("cpu_milli", 0) > cls.demand.minimum.get("cpu_milli", 0)
        counts = self.counts_of(cls).plus(RunCounts(sign, sign * is_wide))
        if counts.runs:
            self._undeclared[cls.key] = counts
        else:
            self._undeclared.pop(cls.key, None)

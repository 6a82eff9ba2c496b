"""Feasibility of demands on empty nodes."""

from collections.abc import Sequence

from arl_core.capacity.ledger import fits
from arl_core.capacity.walltime import can_end_on, is_suited
from arl_core.domain.model import ActionClass, ClassVariant, NodeResources, Resources, ResourceShape

__all__ = ["FeasibilityCheck"]


class FeasibilityCheck:
    """A cached check per class. The first node answers most checks, so the other nodes are grouped only when needed."""

    def __init__(self, nodes: Sequence[NodeResources]) -> None:
        self._nodes = nodes
        self._first_node = nodes[0] if nodes else None
        self._cache: dict[ClassVariant, bool] = {}
        self._equivalent_nodes: dict[tuple[ResourceShape, frozenset[str]], list[NodeResources]] | None = None
        """Nodes by shape and enforced requirements; built when the first node does not fit a class."""
        self._max_capacity: dict[tuple[ResourceShape, frozenset[str]], Resources] = {}
        """Largest capacity of each resource in a set of equivalent nodes; a demand above it fits none of them."""

    def is_feasible(self, cls: ActionClass) -> bool:
        """Return True if an empty node may start actions of the class and has capacity for its minimum demand."""
        known = self._cache.get(cls.variant)
        if known is None:
            known = self._cache[cls.variant] = self._fits_first_node(cls) or self._fits_any_node(cls)
        return known

    def _fits_first_node(self, cls: ActionClass) -> bool:
        pool = self._first_node
        return pool is not None and is_suited(cls, pool) and fits(cls.demand.minimum, pool.capacity)

    def _fits_any_node(self, cls: ActionClass) -> bool:
        if self._equivalent_nodes is None:
            self._equivalent_nodes = self._group_equivalent()
        minimum = cls.demand.minimum
        for key, pools in self._equivalent_nodes.items():
            shape, enforces = key
            may = shape is cls.shape and cls.requires <= enforces and fits(minimum, self._max_capacity[key])
            if may and any(can_end_on(cls, pool) and fits(minimum, pool.capacity) for pool in pools):
                return True
        return False

    def _group_equivalent(self) -> dict[tuple[ResourceShape, frozenset[str]], list[NodeResources]]:
        alike: dict[tuple[ResourceShape, frozenset[str]], list[NodeResources]] = {}
        for pool in self._nodes:
            alike.setdefault((pool.shape, pool.enforced), []).append(pool)
        for key, pools in alike.items():
            most: dict[str, int] = {}
            for pool in pools:
                most |= {name: amount for name, amount in pool.capacity.items() if amount > most.get(name, 0)}
            self._max_capacity[key] = most
        return alike

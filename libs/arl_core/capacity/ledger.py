"""Resource allocations by node. The scheduler plans with the ledger; a manager uses it to refuse overbooking."""

from collections.abc import Hashable

from arl_core.domain.model import Resources

__all__ = ["ResourceLedger", "fits"]


def fits(resources: Resources, available: Resources) -> bool:
    """Return True if the amounts are available. A missing resource counts as 0; an amount of 0 always fits."""
    for resource, amount in resources.items():  # noqa: SIM110 - called tens of thousands of times per second
        if amount > available.get(resource, 0) and amount > 0:
            return False
    return True


class ResourceLedger:
    """The allocations of each holder. Allocating or releasing twice is harmless: amounts count once."""

    def __init__(self) -> None:
        self._capacity: dict[int, dict[str, int]] = {}
        self._available: dict[int, dict[str, int]] = {}
        """Capacity minus allocations, for the resources that a node has."""
        self._node_of: dict[Hashable, int] = {}
        self._allocations: dict[int, dict[Hashable, Resources]] = {}
        """Allocations by node and holder."""

    def set_capacity(self, node: int, capacity: Resources) -> None:
        """Set a node's capacity; if it changed, recompute the available amounts from the allocations."""
        if self._capacity.get(node) == capacity:
            return
        self._capacity[node], free = dict(capacity), dict(capacity)
        for amounts in self._allocations.get(node, {}).values():
            for resource, amount in amounts.items():
                if resource in free:
                    free[resource] -= amount
        self._available[node] = free

    def capacity(self, node: int) -> Resources:
        """Return a copy of the node's capacity; empty for an unknown node."""
        return dict(self._capacity.get(node, {}))

    def available(self, node: int) -> dict[str, int]:
        """Return capacity minus allocations; negative if a node shrank below its allocations."""
        return self._available.get(node, {}).copy()

    def available_view(self, node: int) -> Resources:
        """Return a live view of `available` that changes with the ledger; read it before the next change."""
        return self._available.get(node, {})

    def allocate(self, holder: Hashable, node: int, resources: Resources) -> None:
        """Replace the allocation of `holder` by these amounts; the caller must not change the mapping afterwards.

        This method never refuses. A caller that must not overbook checks `fits` first.
        """
        if holder in self._node_of:
            self.release(holder)
        self._node_of[holder] = node
        self._allocations.setdefault(node, {})[holder] = resources
        free = self._available.get(node, {})
        for resource, amount in resources.items():
            if resource in free:
                free[resource] -= amount

    def release(self, holder: Hashable) -> bool:
        """Release the allocation of `holder`; return False if there was none."""
        node = self._node_of.pop(holder, None)
        if node is None:
            return False
        amounts = self._allocations[node].pop(holder)
        free = self._available.get(node, {})
        for resource, amount in amounts.items():
            if resource in free:
                free[resource] += amount
        return True

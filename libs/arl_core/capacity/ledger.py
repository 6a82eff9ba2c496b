"""Who holds what on which node. The scheduler plans against it, a manager refuses by it."""

from collections.abc import Hashable

from arl_core.domain.model import Resources

__all__ = ["ResourceLedger", "fits"]


def fits(resources: Resources, available: Resources) -> bool:
    """A resource that a node does not have is a resource of which it has 0; of any, 0 fits always."""
    for resource, amount in resources.items():  # noqa: SIM110 - asked tens of thousands of times a second
        if amount > available.get(resource, 0) and amount > 0:
            return False
    return True


class ResourceLedger:
    """Holds by holder. Taking twice and releasing twice are harmless: amounts count once."""

    def __init__(self) -> None:
        self._capacity: dict[int, dict[str, int]] = {}
        self._available: dict[int, dict[str, int]] = {}
        """Capacity less what is held, of the resources that a node has."""
        self._node_of: dict[Hashable, int] = {}
        self._allocations: dict[int, dict[Hashable, Resources]] = {}
        """By node and holder."""

    def set_capacity(self, node: int, capacity: Resources) -> None:
        """Looks through what is held there where it is another than before."""
        if self._capacity.get(node) == capacity:
            return
        self._capacity[node], free = dict(capacity), dict(capacity)
        for amounts in self._allocations.get(node, {}).values():
            for resource, amount in amounts.items():
                if resource in free:
                    free[resource] -= amount
        self._available[node] = free

    def capacity(self, node: int) -> Resources:
        return dict(self._capacity.get(node, {}))

    def available(self, node: int) -> dict[str, int]:
        """Capacity less what is held; negative where a node shrank below what it holds."""
        return self._available.get(node, {}).copy()

    def available_view(self, node: int) -> Resources:
        """As `free`, but it goes on changing with this ledger: for whoever reads it before anything else happens."""
        return self._available.get(node, {})

    def allocate(self, holder: Hashable, node: int, resources: Resources) -> None:
        """Replace what `holder` holds by these amounts, which nobody changes meanwhile.

        Never refuses: whoever must not overbook asks `fits` first.
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
        """Give back what `holder` holds. False if it held nothing."""
        node = self._node_of.pop(holder, None)
        if node is None:
            return False
        amounts = self._allocations[node].pop(holder)
        free = self._available.get(node, {})
        for resource, amount in amounts.items():
            if resource in free:
                free[resource] += amount
        return True

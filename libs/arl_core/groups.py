"""Which waiting action gets which group of devices, where what it needs has to be brought to them first.

Groups are aligned powers of two inside of a node. What an action left on its devices stays until others need them, so
a group that already has an action's service starts it without a restore. Values in, values out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from arl_core.fence import Fence
from arl_core.ledger import fits
from arl_core.model import ActionClass, Grant, Pool, Resident, Shape, Waiting

__all__ = ["DEVICES", "FreeGroups", "Group", "degrees_of"]

DEVICES = "gpu"
"""The resource whose amount is a number of whole devices."""


@dataclass(frozen=True, slots=True)
class Group:
    """Free devices of a node that could be given to an action."""

    node: int
    devices: tuple[int, ...]
    restore_s: float
    """0 where the action's service is on exactly these devices."""
    evicts: tuple[Resident, ...] = ()
    """What would have to leave them."""

    @property
    def unused_since(self) -> float:
        """When the one used last of those that would leave was used."""
        return max((resident.used_at for resident in self.evicts), default=float("-inf"))


class FreeGroups:
    """What is left of each node's devices, and of what else such actions need there, while a round spends them."""

    def __init__(self, pools: Mapping[int, Pool]) -> None:
        self._pools = {node: pool for node, pool in pools.items() if pool.shape is Shape.GROUP and _open(pool)}
        self._free = {node: set(pool.free_devices) for node, pool in self._pools.items()}
        self._amounts = {node: dict(pool.free) for node, pool in self._pools.items()}
        self._resident = {node: list(pool.resident) for node, pool in self._pools.items()}

    @property
    def count(self) -> int:
        """Of free devices, whoever may use them."""
        return sum(len(devices) for devices in self._free.values())

    def of_size(self, cls: ActionClass, count: int) -> Iterator[Group]:
        """The groups of `count` devices that an action of this class could start on, in order of node and device."""
        amounts = {**cls.demand.minimum, DEVICES: count}
        for node, free in self._free.items():
            if not cls.requires <= self._pools[node].enforces or not fits(amounts, self._amounts[node]):
                continue
            for start in sorted(device for device in free if count and device % count == 0):
                devices = tuple(range(start, start + count))
                if free.issuperset(devices):
                    yield self._group(node, devices, cls)

    def cheapest(self, cls: ActionClass, count: int) -> Group | None:
        """One that has the service, else one whose services were unused longest."""
        return min(self.of_size(cls, count), key=_as_cheap, default=None)

    def serve(self, action: Waiting) -> Grant | None:
        """Its minimum, on the cheapest group; None where there is none."""
        group = self.cheapest(action.cls, action.cls.demand.minimum.get(DEVICES, 0))
        return None if group is None else self.take(action, group)

    def take(self, action: Waiting, group: Group) -> Grant:
        grant = _grant_of(action, group)
        self._free[group.node].difference_update(group.devices)
        for resource, amount in grant.amounts.items():
            self._amounts[group.node][resource] -= amount
        left = [resident for resident in self._resident[group.node] if resident not in group.evicts]
        self._resident[group.node] = left
        return grant

    def _group(self, node: int, devices: tuple[int, ...], cls: ActionClass) -> Group:
        there = [resident for resident in self._resident[node] if not set(resident.devices).isdisjoint(devices)]
        service = cls.service
        if service is None:
            return Group(node, devices, 0.0, tuple(there))
        if any(resident.service.name == service.name and resident.devices == devices for resident in there):
            return Group(node, devices, 0.0)
        return Group(node, devices, service.restore_s(len(devices)), tuple(there))


def degrees_of(cls: ActionClass) -> tuple[int, ...]:
    """The numbers of devices that an action of this class can use, in rising order."""
    elastic = cls.demand.elastic
    if elastic is not None and elastic.resource == DEVICES:
        return elastic.amounts
    return (cls.demand.minimum.get(DEVICES, 0),)


def _grant_of(action: Waiting, group: Group) -> Grant:
    amounts = {**action.cls.demand.minimum, DEVICES: len(group.devices)}
    fence = Fence(action.id, action.grant_no + 1)
    return Grant(fence=fence, node=group.node, amounts=amounts, devices=group.devices)


def _open(pool: Pool) -> bool:
    return pool.accepting and pool.serving


def _as_cheap(group: Group) -> tuple[bool, float, int, tuple[int, ...]]:
    return (group.restore_s > 0, group.unused_since, group.node, group.devices)

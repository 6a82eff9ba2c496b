"""Choice of device groups for queued actions, with the cost of restoring services taken into account.

A group is an aligned power of two of devices inside a node. Weights stay on their devices until other actions need the
devices. A group that already has the service of an action therefore starts it without a restore. This module is pure:
values in, values out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from arl_core.capacity.ledger import fits
from arl_core.capacity.walltime import is_suited
from arl_core.domain.model import ActionClass, Fence, Grant, NodeResources, QueuedAction, ResidentService, ResourceShape

__all__ = ["DEVICE_RESOURCE", "DeviceGroup", "DeviceGroupFitter", "parallelism_degrees"]

DEVICE_RESOURCE = "gpu"
"""Resource that is counted in whole devices."""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """A group of free devices of a node that an action could get."""

    node: int
    devices: tuple[int, ...]
    restore_s: float
    """Seconds to restore the action's service; 0 if the service is on exactly these devices."""
    evicted: tuple[ResidentService, ...] = ()
    """Services that would be evicted from the devices."""

    @property
    def unused_since(self) -> float:
        """Return the latest time at which one of the evicted services was used."""
        return max((resident.used_at for resident in self.evicted), default=float("-inf"))


class DeviceGroupFitter:
    """The free devices and other resources of each node, reduced as a round grants them."""

    def __init__(self, nodes: Mapping[int, NodeResources]) -> None:
        self._nodes = {
            node: pool for node, pool in nodes.items() if pool.shape is ResourceShape.GROUP and _is_schedulable(pool)
        }
        self._available_devices = {node: set(pool.available_devices) for node, pool in self._nodes.items()}
        self._available = {node: dict(pool.available) for node, pool in self._nodes.items()}
        self._resident = {node: list(pool.resident_services) for node, pool in self._nodes.items()}

    @property
    def available_count(self) -> int:
        """Return the number of free devices on all nodes."""
        return sum(len(devices) for devices in self._available_devices.values())

    def groups_of_size(self, cls: ActionClass, count: int) -> Iterator[DeviceGroup]:
        """Yield the groups of `count` devices that an action of this class could start on, by node and device."""
        amounts = {**cls.demand.minimum, DEVICE_RESOURCE: count}
        for node, free in self._available_devices.items():
            if not is_suited(cls, self._nodes[node]) or not fits(amounts, self._available[node]):
                continue
            for start in sorted(device for device in free if count and device % count == 0):
                devices = tuple(range(start, start + count))
                if free.issuperset(devices):
                    yield self._make_group(node, devices, cls)

    def cheapest(self, cls: ActionClass, count: int) -> DeviceGroup | None:
        """Return the group with the lowest restore cost; ties go to the group with the longest unused services."""
        return min(self.groups_of_size(cls, count), key=_cost_rank, default=None)

    def allocate(self, action: QueuedAction) -> Grant | None:
        """Grant the action's minimum on the cheapest group; return None if no group is free."""
        group = self.cheapest(action.cls, action.cls.demand.minimum.get(DEVICE_RESOURCE, 0))
        return None if group is None else self.grant_group(action, group)

    def grant_group(self, action: QueuedAction, group: DeviceGroup) -> Grant:
        """Grant the action's minimum on this group; deduct devices and amounts, and drop the evicted services."""
        grant = _make_grant(action, group)
        self._available_devices[group.node].difference_update(group.devices)
        for resource, amount in grant.resources.items():
            self._available[group.node][resource] -= amount
        left = [resident for resident in self._resident[group.node] if resident not in group.evicted]
        self._resident[group.node] = left
        return grant

    def _make_group(self, node: int, devices: tuple[int, ...], cls: ActionClass) -> DeviceGroup:
        there = [resident for resident in self._resident[node] if not set(resident.devices).isdisjoint(devices)]
        service = cls.service
        if service is None:
            return DeviceGroup(node, devices, 0.0, tuple(there))
        if any(resident.service.name == service.name and resident.devices == devices for resident in there):
            return DeviceGroup(node, devices, 0.0)
        return DeviceGroup(node, devices, service.restore_s(len(devices)), tuple(there))


def parallelism_degrees(cls: ActionClass) -> tuple[int, ...]:
    """Return the numbers of devices that an action of this class can use, in rising order."""
    elastic = cls.demand.elastic
    if elastic is not None and elastic.resource == DEVICE_RESOURCE:
        return elastic.amounts
    return (cls.demand.minimum.get(DEVICE_RESOURCE, 0),)


def _make_grant(action: QueuedAction, group: DeviceGroup) -> Grant:
    amounts = {**action.cls.demand.minimum, DEVICE_RESOURCE: len(group.devices)}
    fence = Fence(action.id, action.grant_no + 1)
    return Grant(fence=fence, node=group.node, resources=amounts, devices=group.devices)


def _is_schedulable(pool: NodeResources) -> bool:
    return pool.is_schedulable and pool.is_serving


def _cost_rank(group: DeviceGroup) -> tuple[bool, float, int, tuple[int, ...]]:
    return (group.restore_s > 0, group.unused_since, group.node, group.devices)

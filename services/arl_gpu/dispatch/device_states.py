"""The last known state of all devices of a node, for the batch scheduler and the manager."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from arl_core.residency.occupancy import ResidencyState
from arl_gpu.dispatch.device_groups import DeviceGroups
from arl_gpu.dispatch.device_slot import DeviceSlot
from arl_gpu.engines.engine_dispatcher import EngineDispatcher
from arl_gpu.queue.batch_scheduler import Batch, DeviceState

__all__ = ["DeviceStates"]

RESIDENCE_ORDER = tuple(ResidencyState)


class DeviceStates:
    """A read-only view of devices, their groups and their engines."""

    def __init__(
        self, devices: Sequence[DeviceSlot], groups: DeviceGroups, engine_dispatcher: EngineDispatcher
    ) -> None:
        self._devices, self._groups, self._engine_dispatcher = devices, groups, engine_dispatcher

    def services(self) -> Mapping[str, ResidencyState]:
        """Return the best state of each service over all devices or groups. A group has its worst part's state."""
        found: dict[str, ResidencyState] = {}
        for device in self._devices:
            for name in device.states:
                parts = [self._devices[at].states for at in self._groups.members(name, device.number)]
                state = min(
                    (each.get(name, ResidencyState.COLD) for each in parts),
                    key=RESIDENCE_ORDER.index,
                    default=ResidencyState.COLD,
                )
                found[name] = max(found.get(name, ResidencyState.COLD), state, key=RESIDENCE_ORDER.index)
        return found

    def of(self, device: DeviceSlot) -> DeviceState:
        """Return the state of a device for the batch scheduler."""
        number, parked = device.number, {batch[0].job.service for batch in device.deferred}
        others = [other.refused_services(time.monotonic()) for other in self._devices if other is not device]
        refused = {
            name for name in device.refused_services(time.monotonic()) if any(name not in each for each in others)
        }
        makes_room = any(
            number in self._group_members(other, batch) for other in self._devices for batch in other.deferred
        )
        stuck = {batch[0].job.service for other in self._devices for batch in other.deferred}
        members = {name: self._groups.members(name, number) for name in self._groups.splits if name not in stuck}
        return DeviceState(
            members=members,
            resident_on_group={name: self._resident_on(numbers) - {name} for name, numbers in members.items()},
            blocked=parked
            | refused
            | self._groups.services_not_led_by(number)
            | self._engine_dispatcher.blocked_services(number, makes_room=makes_room),
            number=number,
            resident=self._services_on_group(device, lambda each: each.services_in(ResidencyState.RESIDENT)),
            restoring=self._services_on_group(device, lambda each: each.device_services),
            fitting=None if device.fitting is None else self._services_on_group(device, lambda each: each.fitting),
            replicas_elsewhere=Counter(
                name
                for other in self._devices
                if other is not device
                for name in other.occupying_services
                if other.number not in self._groups.members(name, number)
            ),
        )

    def has_busy_engine(self, device: DeviceSlot, batch: Batch) -> bool:
        """Return True if an engine is in use on a device that computes this batch."""
        return any(self._engine_dispatcher.is_busy(number) for number in self._group_members(device, batch))

    def _resident_on(self, numbers: Sequence[int]) -> set[str]:
        return {name for at in numbers for name in self._devices[at].services_in(ResidencyState.RESIDENT)}

    def _services_on_group(
        self, device: DeviceSlot, services_of: Callable[[DeviceSlot], Collection[str] | None]
    ) -> set[str]:
        """Return services of the device. A sharded service counts only if it is on all devices of its group.

        If `services_of` returns None for another device, that device counts as having all services.
        """
        found = services_of(device) or ()
        others = {name: [self._devices[at] for at in self._groups.members(name, device.number)] for name in found}
        return {
            name
            for name in found
            if all((each := services_of(other)) is None or name in each for other in others[name])
        }

    def _group_members(self, device: DeviceSlot, batch: Batch) -> Sequence[int]:
        """Return the numbers of the devices that compute the batch."""
        return self._groups.members(batch[0].job.service, device.number)

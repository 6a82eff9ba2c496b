"""Residency of services on a device, and the evictions that a restore needs. Values in, values out.

    cold -> host -> restoring -> resident -> host -> cold

A resident service stays until another one needs its memory (evict on execution). It is never evicted while in use.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from arl_core.residency.eviction import (
    DecayedUseCount,
    EvictionCandidate,
    EvictionPolicy,
    eviction_order,
    select_victims,
)

__all__ = ["DeviceOccupancy", "InvalidResidencyError", "ResidencyState", "ServiceBusyError", "ServiceResidency"]


class ResidencyState(StrEnum):
    """The location of a service's weights."""

    COLD = "cold"  # in a file
    HOST = "host"  # in host memory, ready to be copied
    RESTORING = "restoring"  # being copied; its bytes on the device are allocated
    RESIDENT = "resident"  # on the device, usable


NEVER_USED = DecayedUseCount()


class ServiceBusyError(Exception):
    """The service is in use and cannot be evicted."""


class InvalidResidencyError(Exception):
    """The transition is not allowed from the current state."""


@dataclass(frozen=True, slots=True)
class ServiceResidency:
    """The residency of one service on a device."""

    state: ResidencyState = ResidencyState.COLD
    size: int = 0
    """Bytes on a device; known from state `host` on."""
    users: int = 0
    used_at: int = 0
    """Use clock at its last use."""
    restored_at: int = 0
    """Use clock at its last restore."""
    restore_s: float = 0.0
    """Seconds of its last restore; 0 before the first."""
    load_s: float = 0.0
    """Seconds of its last load into host memory."""
    use: DecayedUseCount = NEVER_USED
    is_pinned: bool = False
    """True if the service is never evicted for another one."""
    host_size: int = 0
    """Bytes in host memory that this process counts; an engine counts its own."""
    is_retained: bool = False
    """True if the service did not leave when asked, or could not be asked; its bytes stay blocked until it answers."""

    @property
    def bytes_on_device(self) -> int:
        """Return the bytes allocated on the device: its size while restoring or resident, otherwise 0."""
        return self.size if self.state in (ResidencyState.RESTORING, ResidencyState.RESIDENT) else 0

    @property
    def is_idle(self) -> bool:
        """Return True if the service is resident, unused and not retained."""
        return self.state is ResidencyState.RESIDENT and not self.users and not self.is_retained


@dataclass(frozen=True, slots=True)
class DeviceOccupancy:
    """The services of one device. A change returns a new value, or it raises and changes nothing."""

    capacity: int
    services: Mapping[str, ServiceResidency] = field(default_factory=dict)
    use_clock: int = 0

    @property
    def used(self) -> int:
        """Return the bytes of all services on the device."""
        return sum(each.bytes_on_device for each in self.services.values())

    @property
    def available(self) -> int:
        """Return the free bytes; negative if the device is overfull."""
        return self.capacity - self.used

    @property
    def is_overfull(self) -> bool:
        """Return True if the device is overfull even without retained services, which may have left it."""
        return sum(each.bytes_on_device for each in self.services.values() if not each.is_retained) > self.capacity

    def residency_of(self, name: str) -> ServiceResidency:
        """Return the state of a service; a cold one for an unknown name."""
        return self.services.get(name, ServiceResidency())

    def evictions_for(
        self, name: str, *, now: float = 0.0, queued: Sequence[str] = (), policy: EvictionPolicy = EvictionPolicy.COST
    ) -> tuple[str, ...] | None:
        """Return the services to evict until `name` fits; None if it cannot fit now."""
        return select_victims(
            self.eviction_order(now=now, queued=queued, policy=policy),
            missing_bytes=self.residency_of(name).size - self.available,
        )

    def next_prefetch(
        self, queued: Sequence[str], *, now: float = 0.0, policy: EvictionPolicy = EvictionPolicy.COST
    ) -> tuple[str, tuple[str, ...]] | None:
        """Return the first queued service to prefetch and the services to evict for it.

        Services with queued actions are not evicted. Return None if all are resident, if a restore is running, or if it
        does not fit. Only the policy `cost` prefetches.
        """
        if policy is not EvictionPolicy.COST or any(
            each.state is ResidencyState.RESTORING for each in self.services.values()
        ):
            return None
        name = next((each for each in queued if self.residency_of(each).state is ResidencyState.HOST), None)
        if name is None:
            return None
        unwanted = [each for each in self.eviction_order(now=now, policy=policy) if each.name not in queued]
        leave = select_victims(unwanted, missing_bytes=self.residency_of(name).size - self.available)
        return (name, leave) if leave is not None else None

    def eviction_order(
        self, *, now: float = 0.0, queued: Sequence[str] = (), policy: EvictionPolicy = EvictionPolicy.COST
    ) -> list[EvictionCandidate]:
        """Return the idle and unpinned resident services in order of eviction."""
        may = {name: each for name, each in self.services.items() if each.is_idle and not each.is_pinned}
        return eviction_order(
            [_candidate(name, each, now, each.restore_s) for name, each in may.items()], queued=queued, policy=policy
        )

    def with_pinned(self, name: str, *, is_pinned: bool) -> "DeviceOccupancy":
        """Pin or unpin a service in any state, even before it is registered."""
        return self._with_service(name, replace(self.residency_of(name), is_pinned=is_pinned))

    def removed(self, name: str) -> "DeviceOccupancy":
        """Remove a service. Raises InvalidResidencyError if it is on the device."""
        if self.residency_of(name).bytes_on_device:
            raise InvalidResidencyError(f"{name} is on the device")
        return replace(self, services={n: each for n, each in self.services.items() if n != name})

    def loaded(self, name: str, size: int, *, load_s: float = 0.0, host_size: int | None = None) -> "DeviceOccupancy":
        """Mark weights as loaded into host memory; `host_size` is the counted part if it is not all."""
        held = replace(
            self._require_state(name, ResidencyState.COLD), state=ResidencyState.HOST, size=size, load_s=load_s
        )
        return self._with_service(name, replace(held, host_size=size if host_size is None else host_size))

    def marked_resident(self, name: str) -> "DeviceOccupancy":
        """Mark a service as already on the device, even if there is no room; `available` may become negative."""
        return self._transitioned(name, ResidencyState.HOST, ResidencyState.RESIDENT)

    def with_retained(self, name: str, *, is_retained: bool) -> "DeviceOccupancy":
        """Set whether a service retains its bytes on the device after it was asked to leave."""
        return self._with_service(name, replace(self.residency_of(name), is_retained=is_retained))

    def unloaded(self, name: str) -> "DeviceOccupancy":
        """Mark weights as present only in their file."""
        return self._transitioned(name, ResidencyState.HOST, ResidencyState.COLD)

    @property
    def host_bytes(self) -> int:
        """Return the bytes in host memory; resident services count too, so an eviction copies nothing back."""
        return sum(each.host_size for each in self.services.values() if each.state is not ResidencyState.COLD)

    def host_evictions(self, budget: int, *, excluded: str, now: float = 0.0) -> tuple[str, ...] | None:
        """Return the services to unload until host memory is within `budget`; None if that is impossible.

        Services that are not on the device come first, ordered by load time and use rate.
        """
        may = {n: each for n, each in self.services.items() if n != excluded and not each.is_pinned and each.host_size}
        off = [_candidate(n, each, now, each.load_s) for n, each in may.items() if each.state is ResidencyState.HOST]
        on = [_candidate(n, each, now, each.load_s) for n, each in may.items() if each.is_idle]
        return select_victims([*eviction_order(off), *eviction_order(on)], missing_bytes=self.host_bytes - budget)

    def restoring(self, name: str) -> "DeviceOccupancy":
        """Start a restore; the bytes are allocated from now on. Raises InvalidResidencyError if too few are free."""
        if self.residency_of(name).size > self.available:
            raise InvalidResidencyError(
                f"{name} needs {self.residency_of(name).size} bytes and {self.available} are free"
            )
        return self._transitioned(name, ResidencyState.HOST, ResidencyState.RESTORING)

    def restored(self, name: str, *, restore_s: float = 0.0) -> "DeviceOccupancy":
        """Mark a restore as finished. Raises `InvalidResidencyError` unless the service is restoring."""
        turn = self.use_clock + 1
        held = replace(
            self._require_state(name, ResidencyState.RESTORING), state=ResidencyState.RESIDENT, restore_s=restore_s
        )
        return replace(self._with_service(name, replace(held, used_at=turn, restored_at=turn)), use_clock=turn)

    def rolled_back(self, name: str) -> "DeviceOccupancy":
        """Roll back a failed restore and free its bytes."""
        return self._transitioned(name, ResidencyState.RESTORING, ResidencyState.HOST)

    def evicted(self, name: str) -> "DeviceOccupancy":
        """Evict a resident service. Raises ServiceBusyError while it is in use."""
        if self.residency_of(name).users:
            raise ServiceBusyError(f"{name} is in use by {self.residency_of(name).users}")
        return self._transitioned(name, ResidencyState.RESIDENT, ResidencyState.HOST)

    def acquired(self, name: str, *, now: float = 0.0) -> "DeviceOccupancy":
        """Add a user to a resident service."""
        held, turn = self._require_state(name, ResidencyState.RESIDENT), self.use_clock + 1
        held = replace(held, users=held.users + 1, used_at=turn, use=held.use.incremented(now))
        return replace(self._with_service(name, held), use_clock=turn)

    def with_users(self, name: str, users: int) -> "DeviceOccupancy":
        """Set the number of users of a resident service."""
        return self._with_service(name, replace(self._require_state(name, ResidencyState.RESIDENT), users=users))

    def released(self, name: str) -> "DeviceOccupancy":
        """Remove a user of a service. Raises `InvalidResidencyError` if it has none."""
        held = self._require_state(name, ResidencyState.RESIDENT)
        if not held.users:
            raise InvalidResidencyError(f"{name} has no users")
        return self._with_service(name, replace(held, users=held.users - 1))

    def _transitioned(self, name: str, old: ResidencyState, new: ResidencyState) -> "DeviceOccupancy":
        return self._with_service(name, replace(self._require_state(name, old), state=new))

    def _require_state(self, name: str, state: ResidencyState) -> ServiceResidency:
        held = self.residency_of(name)
        if held.state is not state:
            raise InvalidResidencyError(f"{name} is {held.state}, not {state}")
        return held

    def _with_service(self, name: str, residency: ServiceResidency) -> "DeviceOccupancy":
        return replace(self, services={**self.services, name: residency})


def _candidate(name: str, residency: ServiceResidency, now: float, restore_s: float) -> EvictionCandidate:
    return EvictionCandidate(
        name=name,
        size=residency.size,
        restore_s=restore_s,
        rate=residency.use.rate(now),
        used_at=residency.used_at,
        restored_at=residency.restored_at,
    )

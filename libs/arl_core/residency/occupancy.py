"""Which services are on a device, and what has to leave it so that another one fits. Values in, values out.

    cold -> host -> restoring -> resident -> host -> cold

A resident service stays until another one needs its space (evict on execution), and never leaves while it is in use.
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
    """Where a service's weights are."""

    COLD = "cold"  # in a file
    HOST = "host"  # in host memory, ready to be copied
    RESTORING = "restoring"  # being copied; its bytes on the device are taken
    RESIDENT = "resident"  # on the device, usable


NEVER_USED = DecayedUseCount()


class ServiceBusyError(Exception):
    """The service is in use and stays where it is."""


class InvalidResidencyError(Exception):
    """No such change from this state."""


@dataclass(frozen=True, slots=True)
class ServiceResidency:
    state: ResidencyState = ResidencyState.COLD
    size: int = 0
    """Bytes on a device; known from `host` on."""
    users: int = 0
    used_at: int = 0
    """The turn of its last use."""
    restored_at: int = 0
    """The turn of its arrival on the device."""
    restore_s: float = 0.0
    """What its last copy took; 0 before the first."""
    load_s: float = 0.0
    """What reading it into host memory took."""
    use: DecayedUseCount = NEVER_USED
    is_pinned: bool = False
    """Never evicted for another one."""
    host_size: int = 0
    """Bytes in host memory that are ours to count; an engine keeps its own."""
    is_retained: bool = False
    """It was told to leave and did not, or could not be asked: others do without its bytes until it is heard of."""

    @property
    def bytes_on_device(self) -> int:
        return self.size if self.state in (ResidencyState.RESTORING, ResidencyState.RESIDENT) else 0

    @property
    def is_idle(self) -> bool:
        """On the device, nobody uses it, and it would leave."""
        return self.state is ResidencyState.RESIDENT and not self.users and not self.is_retained


@dataclass(frozen=True, slots=True)
class DeviceOccupancy:
    """One device and the services that may be on it. Every change is a new value, or it raises and nothing changed."""

    capacity: int
    services: Mapping[str, ServiceResidency] = field(default_factory=dict)
    use_clock: int = 0

    @property
    def used(self) -> int:
        return sum(each.bytes_on_device for each in self.services.values())

    @property
    def available(self) -> int:
        return self.capacity - self.used

    @property
    def is_overfull(self) -> bool:
        """Also without what stays, which may not be there."""
        return sum(each.bytes_on_device for each in self.services.values() if not each.is_retained) > self.capacity

    def residency_of(self, name: str) -> ServiceResidency:
        return self.services.get(name, ServiceResidency())

    def evictions_for(
        self, name: str, *, now: float = 0.0, queued: Sequence[str] = (), policy: EvictionPolicy = EvictionPolicy.COST
    ) -> tuple[str, ...] | None:
        """Services to evict until `name` fits; None where it can't fit now."""
        return select_victims(
            self.eviction_order(now=now, queued=queued, policy=policy),
            missing_bytes=self.residency_of(name).size - self.available,
        )

    def next_prefetch(
        self, queued: Sequence[str], *, now: float = 0.0, policy: EvictionPolicy = EvictionPolicy.COST
    ) -> tuple[str, tuple[str, ...]] | None:
        """The first of `waiting` that is not on the device, and what leaves for it: nobody that others wait for.

        None where all are there, where one is on its way, or where it does not fit. Only `cost` looks ahead.
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
        """Resident services that nobody uses and that aren't pinned, whoever leaves first at the head."""
        may = {name: each for name, each in self.services.items() if each.is_idle and not each.is_pinned}
        return eviction_order(
            [_candidate(name, each, now, each.restore_s) for name, each in may.items()], queued=queued, policy=policy
        )

    def with_pinned(self, name: str, *, is_pinned: bool) -> "DeviceOccupancy":
        """In any state, and before it is known."""
        return self._with_service(name, replace(self.residency_of(name), is_pinned=is_pinned))

    def removed(self, name: str) -> "DeviceOccupancy":
        """It is gone. Raises `WrongState` where it is on the device."""
        if self.residency_of(name).bytes_on_device:
            raise InvalidResidencyError(f"{name} is on the device")
        return replace(self, services={n: each for n, each in self.services.items() if n != name})

    def loaded(self, name: str, size: int, *, load_s: float = 0.0, host_size: int | None = None) -> "DeviceOccupancy":
        """Its weights are in host memory; `host_size`: of them that which counts there, where it is not all."""
        held = replace(
            self._require_state(name, ResidencyState.COLD), state=ResidencyState.HOST, size=size, load_s=load_s
        )
        return self._with_service(name, replace(held, host_size=size if host_size is None else host_size))

    def marked_resident(self, name: str) -> "DeviceOccupancy":
        """It is on the device already, whether there is room for it or not: `free` may be less than nothing."""
        return self._transitioned(name, ResidencyState.HOST, ResidencyState.RESIDENT)

    def with_retained(self, name: str, *, is_retained: bool) -> "DeviceOccupancy":
        """Whether it keeps its bytes whoever needs them, as after it was told to leave."""
        return self._with_service(name, replace(self.residency_of(name), is_retained=is_retained))

    def unloaded(self, name: str) -> "DeviceOccupancy":
        """Its weights are in their file alone."""
        return self._transitioned(name, ResidencyState.HOST, ResidencyState.COLD)

    @property
    def host_bytes(self) -> int:
        """Bytes in host memory. What is on the device stays there, too, so that nothing is copied back."""
        return sum(each.host_size for each in self.services.values() if each.state is not ResidencyState.COLD)

    def host_evictions(self, budget: int, *, excluded: str, now: float = 0.0) -> tuple[str, ...] | None:
        """Services to take out of host memory until it holds no more than `budget`; None where that can't be.

        First those that are not on the device, by what reading them again costs and how often they are used.
        """
        may = {n: each for n, each in self.services.items() if n != excluded and not each.is_pinned and each.host_size}
        off = [_candidate(n, each, now, each.load_s) for n, each in may.items() if each.state is ResidencyState.HOST]
        on = [_candidate(n, each, now, each.load_s) for n, each in may.items() if each.is_idle]
        return select_victims([*eviction_order(off), *eviction_order(on)], missing_bytes=self.host_bytes - budget)

    def restoring(self, name: str) -> "DeviceOccupancy":
        """Its copy begins: from now on its bytes are taken."""
        if self.residency_of(name).size > self.available:
            raise InvalidResidencyError(
                f"{name} needs {self.residency_of(name).size} bytes and {self.available} are free"
            )
        return self._transitioned(name, ResidencyState.HOST, ResidencyState.RESTORING)

    def restored(self, name: str, *, restore_s: float = 0.0) -> "DeviceOccupancy":
        turn = self.use_clock + 1
        held = replace(
            self._require_state(name, ResidencyState.RESTORING), state=ResidencyState.RESIDENT, restore_s=restore_s
        )
        return replace(self._with_service(name, replace(held, used_at=turn, restored_at=turn)), use_clock=turn)

    def rolled_back(self, name: str) -> "DeviceOccupancy":
        """Its copy failed, and what it had taken is free again."""
        return self._transitioned(name, ResidencyState.RESTORING, ResidencyState.HOST)

    def evicted(self, name: str) -> "DeviceOccupancy":
        """Raises `Busy` while anybody uses it."""
        if self.residency_of(name).users:
            raise ServiceBusyError(f"{name} is in use by {self.residency_of(name).users}")
        return self._transitioned(name, ResidencyState.RESIDENT, ResidencyState.HOST)

    def acquired(self, name: str, *, now: float = 0.0) -> "DeviceOccupancy":
        """One more user of a resident service."""
        held, turn = self._require_state(name, ResidencyState.RESIDENT), self.use_clock + 1
        held = replace(held, users=held.users + 1, used_at=turn, use=held.use.incremented(now))
        return replace(self._with_service(name, held), use_clock=turn)

    def with_users(self, name: str, users: int) -> "DeviceOccupancy":
        """A resident service has so many users, whatever was counted before."""
        return self._with_service(name, replace(self._require_state(name, ResidencyState.RESIDENT), users=users))

    def released(self, name: str) -> "DeviceOccupancy":
        held = self._require_state(name, ResidencyState.RESIDENT)
        if not held.users:
            raise InvalidResidencyError(f"nobody uses {name}")
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

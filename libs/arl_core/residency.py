"""Which services are on a device, and what has to leave it so that another one fits. Values in, values out.

    cold -> host -> restoring -> resident -> host

A resident service stays until another one needs its space (evict on execution), and never leaves while it is in use.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

__all__ = ["Busy", "Holding", "Occupancy", "Residence", "WrongState"]


class Residence(StrEnum):
    """Where a service's weights are."""

    COLD = "cold"  # in a file
    HOST = "host"  # in host memory, ready to be copied
    RESTORING = "restoring"  # being copied; its bytes on the device are taken
    RESIDENT = "resident"  # on the device, usable


class Busy(Exception):
    """The service is in use and stays where it is."""


class WrongState(Exception):
    """No such change from this state."""


@dataclass(frozen=True, slots=True)
class Holding:
    state: Residence = Residence.COLD
    size: int = 0
    """Bytes on a device; known from `host` on."""
    users: int = 0
    used_at: int = 0
    """The turn of its last use."""
    pinned: bool = False
    """Never evicted for another one."""

    @property
    def bytes_on_device(self) -> int:
        return self.size if self.state in (Residence.RESTORING, Residence.RESIDENT) else 0

    @property
    def is_idle(self) -> bool:
        """On the device, and nobody uses it."""
        return self.state is Residence.RESIDENT and not self.users


@dataclass(frozen=True, slots=True)
class Occupancy:
    """One device and the services that may be on it. Every change is a new value, or it raises and nothing changed."""

    capacity: int
    services: Mapping[str, Holding] = field(default_factory=dict)
    turn: int = 0

    @property
    def used(self) -> int:
        return sum(each.bytes_on_device for each in self.services.values())

    @property
    def free(self) -> int:
        return self.capacity - self.used

    def of(self, name: str) -> Holding:
        return self.services.get(name, Holding())

    def evictions_for(self, name: str) -> tuple[str, ...] | None:
        """Idle services to evict, the least recently used first, until `name` fits; None where it can't fit now."""
        missing = self.of(name).size - self.free
        leaving: list[str] = []
        for other in self.idle():
            if missing <= 0:
                break
            if other != name:
                leaving.append(other)
                missing -= self.of(other).size
        return tuple(leaving) if missing <= 0 else None

    def idle(self) -> tuple[str, ...]:
        """Resident services that may leave for another one, the least recently used first."""
        unused = [n for n, each in self.services.items() if each.is_idle and not each.pinned]
        return tuple(sorted(unused, key=lambda n: (self.services[n].used_at, n)))

    def pinned(self, name: str, *, on: bool) -> "Occupancy":
        """In any state, and before it is known."""
        return self._with(name, replace(self.of(name), pinned=on))

    def forgotten(self, name: str) -> "Occupancy":
        """It is gone. Raises `WrongState` where it is on the device."""
        if self.of(name).bytes_on_device:
            raise WrongState(f"{name} is on the device")
        return replace(self, services={n: each for n, each in self.services.items() if n != name})

    def loaded(self, name: str, size: int) -> "Occupancy":
        """Its weights are in host memory."""
        held = replace(self._in(name, Residence.COLD), state=Residence.HOST, size=size)
        return self._with(name, held)

    def restoring(self, name: str) -> "Occupancy":
        """Its copy begins: from now on its bytes are taken."""
        if self.of(name).size > self.free:
            raise WrongState(f"{name} needs {self.of(name).size} bytes and {self.free} are free")
        return self._moved(name, Residence.HOST, Residence.RESTORING)

    def restored(self, name: str) -> "Occupancy":
        return self._moved(name, Residence.RESTORING, Residence.RESIDENT)._touched(name)

    def rolled_back(self, name: str) -> "Occupancy":
        """Its copy failed, and what it had taken is free again."""
        return self._moved(name, Residence.RESTORING, Residence.HOST)

    def evicted(self, name: str) -> "Occupancy":
        """Raises `Busy` while anybody uses it."""
        if self.of(name).users:
            raise Busy(f"{name} is in use by {self.of(name).users}")
        return self._moved(name, Residence.RESIDENT, Residence.HOST)

    def taken(self, name: str) -> "Occupancy":
        """One more user of a resident service."""
        held = self._in(name, Residence.RESIDENT)
        return self._with(name, replace(held, users=held.users + 1))._touched(name)

    def released(self, name: str) -> "Occupancy":
        held = self._in(name, Residence.RESIDENT)
        if not held.users:
            raise WrongState(f"nobody uses {name}")
        return self._with(name, replace(held, users=held.users - 1))

    def _touched(self, name: str) -> "Occupancy":
        turn = self.turn + 1
        return replace(self._with(name, replace(self.of(name), used_at=turn)), turn=turn)

    def _moved(self, name: str, old: Residence, new: Residence) -> "Occupancy":
        return self._with(name, replace(self._in(name, old), state=new))

    def _in(self, name: str, state: Residence) -> Holding:
        held = self.of(name)
        if held.state is not state:
            raise WrongState(f"{name} is {held.state}, not {state}")
        return held

    def _with(self, name: str, held: Holding) -> "Occupancy":
        return replace(self, services={**self.services, name: held})

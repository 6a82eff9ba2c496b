"""Which services are on a device, and what has to leave it so that another one fits. Values in, values out.

    cold -> host -> restoring -> resident -> host -> cold

A resident service stays until another one needs its space (evict on execution), and never leaves while it is in use.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from arl_core.eviction import Candidate, Eviction, Use, leaving, victims

__all__ = ["Busy", "Holding", "Occupancy", "Residence", "WrongState"]


class Residence(StrEnum):
    """Where a service's weights are."""

    COLD = "cold"  # in a file
    HOST = "host"  # in host memory, ready to be copied
    RESTORING = "restoring"  # being copied; its bytes on the device are taken
    RESIDENT = "resident"  # on the device, usable


UNUSED = Use()


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
    restored_at: int = 0
    """The turn of its arrival on the device."""
    restore_s: float = 0.0
    """What its last copy took; 0 before the first."""
    load_s: float = 0.0
    """What reading it into host memory took."""
    use: Use = UNUSED
    pinned: bool = False
    """Never evicted for another one."""
    host_size: int = 0
    """Bytes in host memory that are ours to count; an engine keeps its own."""
    stays: bool = False
    """It was told to leave and did not, or could not be asked: others do without its bytes until it is heard of."""

    @property
    def bytes_on_device(self) -> int:
        return self.size if self.state in (Residence.RESTORING, Residence.RESIDENT) else 0

    @property
    def is_idle(self) -> bool:
        """On the device, nobody uses it, and it would leave."""
        return self.state is Residence.RESIDENT and not self.users and not self.stays


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

    @property
    def is_overfull(self) -> bool:
        """Also without what stays, which may not be there."""
        return sum(each.bytes_on_device for each in self.services.values() if not each.stays) > self.capacity

    def of(self, name: str) -> Holding:
        return self.services.get(name, Holding())

    def evictions_for(
        self, name: str, *, now: float = 0.0, waiting: Sequence[str] = (), by: Eviction = Eviction.COST
    ) -> tuple[str, ...] | None:
        """Services to evict until `name` fits; None where it can't fit now."""
        return victims(self.leaving(now=now, waiting=waiting, by=by), missing=self.of(name).size - self.free)

    def prefetch(
        self, waiting: Sequence[str], *, now: float = 0.0, by: Eviction = Eviction.COST
    ) -> tuple[str, tuple[str, ...]] | None:
        """The first of `waiting` that is not on the device, and what leaves for it: nobody that others wait for.

        None where all are there, where one is on its way, or where it does not fit. Only `cost` looks ahead.
        """
        if by is not Eviction.COST or any(each.state is Residence.RESTORING for each in self.services.values()):
            return None
        name = next((each for each in waiting if self.of(each).state is Residence.HOST), None)
        if name is None:
            return None
        unwanted = [each for each in self.leaving(now=now, by=by) if each.name not in waiting]
        leave = victims(unwanted, missing=self.of(name).size - self.free)
        return (name, leave) if leave is not None else None

    def leaving(
        self, *, now: float = 0.0, waiting: Sequence[str] = (), by: Eviction = Eviction.COST
    ) -> list[Candidate]:
        """Resident services that nobody uses and that aren't pinned, whoever leaves first at the head."""
        may = {name: each for name, each in self.services.items() if each.is_idle and not each.pinned}
        return leaving(
            [_candidate(name, each, now, each.restore_s) for name, each in may.items()], waiting=waiting, by=by
        )

    def pinned(self, name: str, *, on: bool) -> "Occupancy":
        """In any state, and before it is known."""
        return self._with(name, replace(self.of(name), pinned=on))

    def forgotten(self, name: str) -> "Occupancy":
        """It is gone. Raises `WrongState` where it is on the device."""
        if self.of(name).bytes_on_device:
            raise WrongState(f"{name} is on the device")
        return replace(self, services={n: each for n, each in self.services.items() if n != name})

    def loaded(self, name: str, size: int, *, took_s: float = 0.0, host_size: int | None = None) -> "Occupancy":
        """Its weights are in host memory; `host_size`: of them that which counts there, where it is not all."""
        held = replace(self._in(name, Residence.COLD), state=Residence.HOST, size=size, load_s=took_s)
        return self._with(name, replace(held, host_size=size if host_size is None else host_size))

    def found(self, name: str) -> "Occupancy":
        """It is on the device already, whether there is room for it or not: `free` may be less than nothing."""
        return self._moved(name, Residence.HOST, Residence.RESIDENT)

    def staying(self, name: str, *, on: bool) -> "Occupancy":
        """Whether it keeps its bytes whoever needs them, as after it was told to leave."""
        return self._with(name, replace(self.of(name), stays=on))

    def cooled(self, name: str) -> "Occupancy":
        """Its weights are in their file alone."""
        return self._moved(name, Residence.HOST, Residence.COLD)

    @property
    def on_host(self) -> int:
        """Bytes in host memory. What is on the device stays there, too, so that nothing is copied back."""
        return sum(each.host_size for each in self.services.values() if each.state is not Residence.COLD)

    def cooling(self, budget: int, *, keep: str, now: float = 0.0) -> tuple[str, ...] | None:
        """Services to take out of host memory until it holds no more than `budget`; None where that can't be.

        First those that are not on the device, by what reading them again costs and how often they are used.
        """
        may = {n: each for n, each in self.services.items() if n != keep and not each.pinned and each.host_size}
        off = [_candidate(n, each, now, each.load_s) for n, each in may.items() if each.state is Residence.HOST]
        on = [_candidate(n, each, now, each.load_s) for n, each in may.items() if each.is_idle]
        return victims([*leaving(off), *leaving(on)], missing=self.on_host - budget)

    def restoring(self, name: str) -> "Occupancy":
        """Its copy begins: from now on its bytes are taken."""
        if self.of(name).size > self.free:
            raise WrongState(f"{name} needs {self.of(name).size} bytes and {self.free} are free")
        return self._moved(name, Residence.HOST, Residence.RESTORING)

    def restored(self, name: str, *, took_s: float = 0.0) -> "Occupancy":
        turn = self.turn + 1
        held = replace(self._in(name, Residence.RESTORING), state=Residence.RESIDENT, restore_s=took_s)
        return replace(self._with(name, replace(held, used_at=turn, restored_at=turn)), turn=turn)

    def rolled_back(self, name: str) -> "Occupancy":
        """Its copy failed, and what it had taken is free again."""
        return self._moved(name, Residence.RESTORING, Residence.HOST)

    def evicted(self, name: str) -> "Occupancy":
        """Raises `Busy` while anybody uses it."""
        if self.of(name).users:
            raise Busy(f"{name} is in use by {self.of(name).users}")
        return self._moved(name, Residence.RESIDENT, Residence.HOST)

    def taken(self, name: str, *, now: float = 0.0) -> "Occupancy":
        """One more user of a resident service."""
        held, turn = self._in(name, Residence.RESIDENT), self.turn + 1
        held = replace(held, users=held.users + 1, used_at=turn, use=held.use.again(now))
        return replace(self._with(name, held), turn=turn)

    def used_by(self, name: str, users: int) -> "Occupancy":
        """A resident service has so many users, whatever was counted before."""
        return self._with(name, replace(self._in(name, Residence.RESIDENT), users=users))

    def released(self, name: str) -> "Occupancy":
        held = self._in(name, Residence.RESIDENT)
        if not held.users:
            raise WrongState(f"nobody uses {name}")
        return self._with(name, replace(held, users=held.users - 1))

    def _moved(self, name: str, old: Residence, new: Residence) -> "Occupancy":
        return self._with(name, replace(self._in(name, old), state=new))

    def _in(self, name: str, state: Residence) -> Holding:
        held = self.of(name)
        if held.state is not state:
            raise WrongState(f"{name} is {held.state}, not {state}")
        return held

    def _with(self, name: str, held: Holding) -> "Occupancy":
        return replace(self, services={**self.services, name: held})


def _candidate(name: str, held: Holding, now: float, back_s: float) -> Candidate:
    return Candidate(
        name=name,
        size=held.size,
        restore_s=back_s,
        rate=held.use.rate(now),
        used_at=held.used_at,
        restored_at=held.restored_at,
    )

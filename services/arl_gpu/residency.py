"""Does what `arl_core.residency` decides, on a device: all of it, or nothing."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from arl_core.eviction import Eviction
from arl_core.residency import Busy, Occupancy, Residence
from arl_gpu.device import Block, CopyFailed, Device, DeviceFull, Event
from arl_gpu.engine import Engine, EngineTrouble, Waking
from arl_gpu.kinds.model import Weights
from arl_gpu.moves import Moves

__all__ = ["NoRoom", "NotFreed", "Residency"]

log = logging.getLogger(__name__)


class NoRoom(Exception):
    """It does not fit beside what is in use."""


class NotFreed(Exception):
    """The device did not give back what was freed. Its arithmetic can't be trusted any more."""


@dataclass(frozen=True, slots=True)
class _Copy:
    block: Block
    event: Event


class Residency:
    """One device's. Not for several threads: whoever owns the device calls it.

    An engine is in it like a service's weights; what a copy is to these, waking up is to it, and it leaves by sleeping.

    `waiting`, wherever it is asked for: services with work in the queue, the one that is needed first at its head.
    """

    def __init__(self, device: Device, *, eviction: Eviction = Eviction.COST, host_bytes: int | None = None) -> None:
        """`host_bytes`: the most that weights take of host memory; None for no bound."""
        self._device = device
        self._eviction, self._host_bytes = eviction, host_bytes
        self._occupancy = Occupancy(device.capacity)
        self._weights: dict[str, Weights] = {}
        self._engines: dict[str, Engine] = {}
        self._blocks: dict[str, Block] = {}
        self._copies: dict[str, _Copy] = {}
        """On their way."""
        self._moves = Moves()

    @property
    def states(self) -> Mapping[str, Residence]:
        return {name: held.state for name, held in self._occupancy.services.items()}

    @property
    def capacity(self) -> int:
        """Bytes of the device for all that may be on it."""
        return self._occupancy.capacity

    @property
    def used(self) -> int:
        """Bytes of all services on the device."""
        return self._occupancy.used

    @property
    def fitting(self) -> frozenset[str]:
        """Services that are not on the device, and fit into what is free."""
        free, services = self._occupancy.free, self._occupancy.services
        return frozenset(n for n, each in services.items() if each.state is Residence.HOST and each.size <= free)

    @property
    def staying(self) -> frozenset[str]:
        """Engines that keep their bytes whoever needs them, until it was heard that they would leave."""
        return frozenset(name for name, each in self._occupancy.services.items() if each.stays)

    def moves(self) -> Moves:
        """Since the last call."""
        found, self._moves = self._moves, Moves()
        return found

    def expect(self, name: str, size: int) -> None:
        """So many bytes will be read: others become cold where the budget asks for it. Raises `NoRoom`."""
        if self._host_bytes is None:
            return
        loaded = self._occupancy.loaded(name, size)
        if (leave := loaded.cooling(self._host_bytes, keep=name, now=time.monotonic())) is None:
            raise NoRoom(f"{name}: {loaded.on_host} bytes in host memory, where {self._host_bytes} may be")
        for other in leave:
            self.cool(other)

    def load(self, name: str, weights: Weights, *, took_s: float = 0.0) -> None:
        """Cold to host; others become cold where the budget asks for it. Raises `NoRoom`; then it stays cold."""
        self.expect(name, len(weights.content))
        self._device.register(weights.content)
        self._occupancy = self._occupancy.loaded(name, len(weights.content), took_s=took_s)
        self._weights[name] = weights

    def adopt(self, name: str, engine: Engine) -> None:
        """It is taken for awake, and for staying so, until `look_at` has heard what it is."""
        self._occupancy = self._occupancy.loaded(name, engine.size, host_size=0).found(name).staying(name, on=True)
        self._engines[name] = engine
        self._count(name)

    def look_at(self, name: str, *, is_used: bool = False) -> None:
        """Take an engine for what it says it is; one for which there is no room is put to sleep where nobody uses it.

        `is_used`: by somebody of whom it is not counted yet.
        Raises `EngineTrouble`, also where nobody knows; then it is what it was, or awake and staying so.
        """
        held = self._occupancy.of(name)
        if held.state is Residence.RESTORING:
            return
        is_awake = self._engines[name].is_awake()
        self._occupancy = self._occupancy.staying(name, on=False)
        if not is_awake:
            if held.state is Residence.RESIDENT and not held.users:
                self._leave(name)
            return
        if held.state is Residence.HOST:
            self._occupancy = self._occupancy.found(name)
        if self._occupancy.is_overfull and not (held.users or is_used):
            self.evict(name)
        else:
            self._count(name)

    def keep(self, name: str) -> None:
        """Whoever used an engine before this was its residency still does, if it can be awake."""
        if self._occupancy.of(name).state is Residence.RESIDENT:
            self._occupancy = self._occupancy.taken(name, now=time.monotonic())

    def hold(self, name: str, *, users: int = 1, waiting: Sequence[str] = ()) -> bool:
        """An engine is in use from now on, by so many in all, until `release`; False while it is still on its way.

        Raises `NoRoom`, `EngineTrouble`, or `CopyFailed` where it did not wake up; then its room is free again.
        """
        self.release(name, users=users - 1)
        if self._occupancy.of(name).state is Residence.RESIDENT and not self._engines[name].is_awake():
            self._leave(name)
        if self._occupancy.of(name).state is Residence.HOST:
            self._make_room(name, waiting)
            self._begin(name, lambda size: self._lend(name, size))
        if self._is_waking(name):
            return False
        self._take(name)
        self._occupancy = self._occupancy.staying(name, on=False).used_by(name, users)
        return True

    def release(self, name: str, *, users: int = 0) -> None:
        """So many are left. Nobody uses what is not on the device."""
        if self._occupancy.of(name).state is Residence.RESIDENT:
            self._occupancy = self._occupancy.used_by(name, users)

    def pin(self, name: str, *, on: bool = True) -> None:
        """In any state: once it is on the device, no other one's restore makes it leave."""
        self._occupancy = self._occupancy.pinned(name, on=on)

    @contextmanager
    def using(self, name: str, *, waiting: Sequence[str] = ()) -> Iterator[Any]:
        """Its bytes on the device, restored if they weren't there; it can't be evicted meanwhile.

        Raises `NoRoom`, or what the copy failed with; then it is where it was, and its room is free.
        """
        self._bring(name, waiting)
        self._take(name)
        try:
            yield self._blocks[name].view()
        finally:
            self._occupancy = self._occupancy.released(name)

    def prefetch(self, waiting: Sequence[str]) -> str | None:
        """Begin to copy what the queue needs next, if there is something and it fits without loss; its name."""
        copied = [each for each in waiting if each not in self._engines]  # an engine wakes beside whatever goes on
        planned = self._occupancy.prefetch(copied, now=time.monotonic(), by=self._eviction)
        if planned is None:
            return None
        name, leave = planned
        if not self._engines.keys().isdisjoint(leave):
            return None
        for other in leave:
            self.evict(other)
        try:
            self._begin(name, self._device.alloc)
        except DeviceFull:
            return None
        except CopyFailed:
            self._moves.failed += 1
            return None
        self._moves.prefetched += 1
        return name

    def evict(self, name: str) -> None:
        """Resident to host, without a copy back. Raises `Busy`, or `NotFreed`.

        Of an engine, `EngineTrouble`: it may hold its bytes still, and is asked no more until somebody looks at it.
        """
        self._occupancy.evicted(name)
        if name in self._engines:
            try:
                self._engines[name].sleep()
            except EngineTrouble:
                self._occupancy = self._occupancy.staying(name, on=True)
                raise
        self._leave(name)
        self._moves.evicted += 1

    def evict_if_there(self, name: str) -> None:
        """Also what is on its way, but for an engine that still wakes up. Raises `Busy`, or `NotFreed`."""
        if self._is_waking(name):
            raise Busy(f"{name} is waking up")
        if name in self._copies:
            with suppress(CopyFailed):
                self._finish(name)
        if self._occupancy.of(name).state is Residence.RESIDENT:
            self.evict(name)

    def cool(self, name: str) -> None:
        """Out of host memory. Raises `Busy`, or `NotFreed`."""
        self.evict_if_there(name)
        self._occupancy = self._occupancy.cooled(name)
        self._device.unregister(self._weights.pop(name).content)
        self._moves.cooled += 1

    def forget(self, name: str) -> None:
        """Also of the host. Raises `Busy`, or `NotFreed`."""
        self.evict_if_there(name)
        self._occupancy = self._occupancy.forgotten(name)
        if (weights := self._weights.pop(name, None)) is not None:
            self._device.unregister(weights.content)

    def check(self) -> None:
        """Raises where the device can't be used any more."""
        self._device.check()

    def close(self) -> None:
        """Once nobody uses anything."""
        for name in [*self._copies, *self._blocks]:
            self.evict_if_there(name)
        self._device.close()

    def _leave(self, name: str) -> None:
        evicted = self._occupancy.evicted(name).staying(name, on=False)
        if name in self._blocks:  # an engine that was found where there is no room has none
            self._free(name, self._blocks.pop(name))
        self._occupancy = evicted

    def _is_waking(self, name: str) -> bool:
        event = self._copies[name].event if name in self._copies else None
        return isinstance(event, Waking) and not event.has_ended

    def _count(self, name: str) -> None:
        """What is found on the device, also by the device's own account, as far as that has room."""
        if name not in self._blocks:
            with suppress(DeviceFull):
                self._blocks[name] = self._device.lend(self._occupancy.of(name).size)

    def _bring(self, name: str, waiting: Sequence[str]) -> None:
        if name in self._copies:
            # One that was begun ahead and broke off is begun anew: nobody has waited for it yet.
            with suppress(CopyFailed):
                self._finish(name)
        if self._occupancy.of(name).state is not Residence.RESIDENT:
            self._make_room(name, waiting)
            self._begin(name, lambda size: self._alloc(name, size, waiting))
            self._finish(name)

    def _take(self, name: str) -> None:
        """Somebody uses it. Of one that is on its way, once it is here."""
        if name in self._copies:
            self._finish(name)
        self._occupancy = self._occupancy.taken(name, now=time.monotonic())

    def _make_room(self, name: str, waiting: Sequence[str]) -> None:
        while (leave := self._leaving_for(name, waiting)) is not None:
            try:
                for other in leave:
                    self.evict(other)
            except EngineTrouble as trouble:
                log.warning("an engine stays on the device: %s", trouble)
            else:
                return
        free = self._occupancy.free + sum(each.size for each in self._occupancy.leaving())
        raise NoRoom(f"{name} needs {self._occupancy.of(name).size} bytes; {free} can be had")

    def _leaving_for(self, name: str, waiting: Sequence[str]) -> tuple[str, ...] | None:
        leave = self._evictions_for(name, waiting)
        while leave is None and (copied := next((each for each in self._copies if each not in self._engines), None)):
            # What is on its way can leave once it is here. Whoever wakes an engine waits for it.
            with suppress(CopyFailed):
                self._finish(copied)
            leave = self._evictions_for(name, waiting)
        return leave

    def _evictions_for(self, name: str, waiting: Sequence[str]) -> tuple[str, ...] | None:
        return self._occupancy.evictions_for(name, now=time.monotonic(), waiting=waiting, by=self._eviction)

    def _begin(self, name: str, alloc: Callable[[int], Block]) -> None:
        self._occupancy = self._occupancy.restoring(name)
        try:
            block = alloc(self._occupancy.of(name).size)
            try:
                self._copies[name] = _Copy(block, self._start(name, block))
            except BaseException:
                self._free(name, block)
                raise
        except BaseException:
            self._occupancy = self._occupancy.rolled_back(name)
            raise

    def _start(self, name: str, block: Block) -> Event:
        if name in self._engines:
            return self._engines[name].wake()
        return self._device.copy_async(block, self._weights[name].content)

    def _finish(self, name: str) -> None:
        """Restoring to resident, or back to host. Raises `CopyFailed`."""
        copy = self._copies[name]
        try:
            copy.event.wait()
        except BaseException:
            if not self._is_asleep_again(name):
                self._blocks[name] = self._copies.pop(name).block
                self._occupancy = self._occupancy.restored(name).staying(name, on=True)
                self._moves.failed += 1
                raise
            del self._copies[name]
            self._occupancy = self._occupancy.rolled_back(name)
            self._moves.failed += 1
            self._free(name, copy.block)
            raise
        self._occupancy = self._occupancy.restored(name, took_s=copy.event.took_s)
        self._blocks[name] = self._copies.pop(name).block
        self._moves.restored_s.append(copy.event.took_s)

    def _is_asleep_again(self, name: str) -> bool:
        """Whether what half woke up holds nothing. Weights that half arrived are only bytes."""
        if (engine := self._engines.get(name)) is None:
            return True
        try:
            engine.sleep()
        except EngineTrouble as trouble:
            log.warning("%s may hold its bytes still: %s", name, trouble)
            return False
        return True

    def _alloc(self, name: str, size: int, waiting: Sequence[str]) -> Block:
        """Free bytes may lie apart: then more of the idle ones leave."""
        while True:
            try:
                return self._device.alloc(size)
            except DeviceFull as full:
                leaving = self._occupancy.leaving(now=time.monotonic(), waiting=waiting, by=self._eviction)
                idle = next((each.name for each in leaving if each.name not in self._engines), None)
                if idle is None:
                    raise NoRoom(f"{name}: {full}") from full
                self.evict(idle)

    def _lend(self, name: str, size: int) -> Block:
        try:
            return self._device.lend(size)
        except DeviceFull as full:
            raise NoRoom(f"{name}: {full}") from full

    def _free(self, name: str, block: Block) -> None:
        before = self._device.used
        self._device.free(block)
        if before - self._device.used != block.size:
            raise NotFreed(f"{name} left, and {before - self._device.used} of its {block.size} bytes came free")

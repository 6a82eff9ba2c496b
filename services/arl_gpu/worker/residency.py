"""Does what `arl_core.residency.occupancy` decides, on a device: all of it, or nothing."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from arl_core.residency.eviction import EvictionPolicy
from arl_core.residency.occupancy import DeviceOccupancy, ResidencyState, ServiceBusyError
from arl_gpu.devices.interface import CopyEvent, CopyFailed, Device, DeviceBlock, DeviceFull
from arl_gpu.models.interface import HostWeights
from arl_gpu.worker.engine_controller import EngineController, EngineError, EngineWakeup
from arl_gpu.worker.messages import ResidencyStats

__all__ = ["DeviceResidency", "InsufficientMemory", "MemoryNotFreed"]

log = logging.getLogger(__name__)


class InsufficientMemory(Exception):
    """It does not fit beside what is in use."""


class MemoryNotFreed(Exception):
    """The device did not give back what was freed. Its arithmetic can't be trusted any more."""


@dataclass(frozen=True, slots=True)
class _PendingCopy:
    block: DeviceBlock
    event: CopyEvent


class DeviceResidency:
    """One device's. Not for several threads: whoever owns the device calls it.

    An engine is in it like a service's weights; what a copy is to these, waking up is to it, and it leaves by sleeping.

    `waiting`, wherever it is asked for: services with work in the queue, the one that is needed first at its head.
    """

    def __init__(
        self, device: Device, *, eviction: EvictionPolicy = EvictionPolicy.COST, host_bytes: int | None = None
    ) -> None:
        """`host_bytes`: the most that weights take of host memory; None for no bound."""
        self._device = device
        self._eviction, self._host_bytes = eviction, host_bytes
        self._occupancy = DeviceOccupancy(device.capacity)
        self._weights: dict[str, HostWeights] = {}
        self._engines: dict[str, EngineController] = {}
        self._blocks: dict[str, DeviceBlock] = {}
        self._pending_copies: dict[str, _PendingCopy] = {}
        """On their way."""
        self._stats = ResidencyStats()

    @property
    def states(self) -> Mapping[str, ResidencyState]:
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
        free, services = self._occupancy.available, self._occupancy.services
        return frozenset(n for n, each in services.items() if each.state is ResidencyState.HOST and each.size <= free)

    @property
    def unevictable(self) -> frozenset[str]:
        """Engines that keep their bytes whoever needs them, until it was heard that they would leave."""
        return frozenset(name for name, each in self._occupancy.services.items() if each.is_retained)

    def take_stats(self) -> ResidencyStats:
        """Since the last call."""
        found, self._stats = self._stats, ResidencyStats()
        return found

    def reserve_host_bytes(self, name: str, size: int) -> None:
        """So many bytes will be read: others become cold where the budget asks for it. Raises `NoRoom`."""
        if self._host_bytes is None:
            return
        loaded = self._occupancy.loaded(name, size)
        if (leave := loaded.host_evictions(self._host_bytes, excluded=name, now=time.monotonic())) is None:
            raise InsufficientMemory(
                f"{name}: {loaded.host_bytes} bytes in host memory, where {self._host_bytes} may be"
            )
        for other in leave:
            self.unload(other)

    def load(self, name: str, weights: HostWeights, *, took_s: float = 0.0) -> None:
        """Cold to host; others become cold where the budget asks for it. Raises `NoRoom`; then it stays cold."""
        self.reserve_host_bytes(name, len(weights.content))
        self._device.register(weights.content)
        self._occupancy = self._occupancy.loaded(name, len(weights.content), load_s=took_s)
        self._weights[name] = weights

    def adopt_engine(self, name: str, engine: EngineController) -> None:
        """It is taken for awake, and for staying so, until `look_at` has heard what it is."""
        self._occupancy = (
            self._occupancy.loaded(name, engine.size, host_size=0)
            .marked_resident(name)
            .with_retained(name, is_retained=True)
        )
        self._engines[name] = engine
        self._reserve_found(name)

    def check_engine(self, name: str, *, is_used: bool = False) -> None:
        """Take an engine for what it says it is; one for which there is no room is put to sleep where nobody uses it.

        `is_used`: by somebody of whom it is not counted yet.
        Raises `EngineTrouble`, also where nobody knows; then it is what it was, or awake and staying so.
        """
        held = self._occupancy.residency_of(name)
        if held.state is ResidencyState.RESTORING:
            return
        is_awake = self._engines[name].is_awake()
        self._occupancy = self._occupancy.with_retained(name, is_retained=False)
        if not is_awake:
            if held.state is ResidencyState.RESIDENT and not held.users:
                self._mark_evicted(name)
            return
        if held.state is ResidencyState.HOST:
            self._occupancy = self._occupancy.marked_resident(name)
        if self._occupancy.is_overfull and not (held.users or is_used):
            self.evict(name)
        else:
            self._reserve_found(name)

    def restore_engine_user(self, name: str) -> None:
        """Whoever used an engine before this was its residency still does, if it can be awake."""
        if self._occupancy.residency_of(name).state is ResidencyState.RESIDENT:
            self._occupancy = self._occupancy.acquired(name, now=time.monotonic())

    def acquire_engine(self, name: str, *, users: int = 1, waiting: Sequence[str] = ()) -> bool:
        """An engine is in use from now on, by so many in all, until `release`; False while it is still on its way.

        Raises `NoRoom`, `EngineTrouble`, or `CopyFailed` where it did not wake up; then its room is free again.
        """
        self.release_engine(name, users=users - 1)
        if self._occupancy.residency_of(name).state is ResidencyState.RESIDENT and not self._engines[name].is_awake():
            self._mark_evicted(name)
        if self._occupancy.residency_of(name).state is ResidencyState.HOST:
            self._make_room(name, waiting)
            self._start_restore(name, lambda size: self._reserve_external(name, size))
        if self._is_waking(name):
            return False
        self._acquire(name)
        self._occupancy = self._occupancy.with_retained(name, is_retained=False).with_users(name, users)
        return True

    def release_engine(self, name: str, *, users: int = 0) -> None:
        """So many are left. Nobody uses what is not on the device."""
        if self._occupancy.residency_of(name).state is ResidencyState.RESIDENT:
            self._occupancy = self._occupancy.with_users(name, users)

    def pin(self, name: str, *, on: bool = True) -> None:
        """In any state: once it is on the device, no other one's restore makes it leave."""
        self._occupancy = self._occupancy.with_pinned(name, is_pinned=on)

    @contextmanager
    def use(self, name: str, *, waiting: Sequence[str] = ()) -> Iterator[Any]:
        """Its bytes on the device, restored if they weren't there; it can't be evicted meanwhile.

        Raises `NoRoom`, or what the copy failed with; then it is where it was, and its room is free.
        """
        self._ensure_resident(name, waiting)
        self._acquire(name)
        try:
            yield self._blocks[name].view()
        finally:
            self._occupancy = self._occupancy.released(name)

    def prefetch(self, waiting: Sequence[str]) -> str | None:
        """Begin to copy what the queue needs next, if there is something and it fits without loss; its name."""
        copied = [each for each in waiting if each not in self._engines]  # an engine wakes beside whatever goes on
        planned = self._occupancy.next_prefetch(copied, now=time.monotonic(), policy=self._eviction)
        if planned is None:
            return None
        name, leave = planned
        if not self._engines.keys().isdisjoint(leave):
            return None
        for other in leave:
            self.evict(other)
        try:
            self._start_restore(name, self._device.alloc)
        except DeviceFull:
            return None
        except CopyFailed:
            self._stats.failed += 1
            return None
        self._stats.prefetched += 1
        return name

    def evict(self, name: str) -> None:
        """Resident to host, without a copy back. Raises `Busy`, or `NotFreed`.

        Of an engine, `EngineTrouble`: it may hold its bytes still, and is asked no more until somebody looks at it.
        """
        self._occupancy.evicted(name)
        if name in self._engines:
            try:
                self._engines[name].sleep()
            except EngineError:
                self._occupancy = self._occupancy.with_retained(name, is_retained=True)
                raise
        self._mark_evicted(name)
        self._stats.evicted += 1

    def evict_if_present(self, name: str) -> None:
        """Also what is on its way, but for an engine that still wakes up. Raises `Busy`, or `NotFreed`."""
        if self._is_waking(name):
            raise ServiceBusyError(f"{name} is waking up")
        if name in self._pending_copies:
            with suppress(CopyFailed):
                self._finish_restore(name)
        if self._occupancy.residency_of(name).state is ResidencyState.RESIDENT:
            self.evict(name)

    def unload(self, name: str) -> None:
        """Out of host memory. Raises `Busy`, or `NotFreed`."""
        self.evict_if_present(name)
        self._occupancy = self._occupancy.unloaded(name)
        self._device.unregister(self._weights.pop(name).content)
        self._stats.cooled += 1

    def forget(self, name: str) -> None:
        """Also of the host. Raises `Busy`, or `NotFreed`."""
        self.evict_if_present(name)
        self._occupancy = self._occupancy.removed(name)
        if (weights := self._weights.pop(name, None)) is not None:
            self._device.unregister(weights.content)

    def check(self) -> None:
        """Raises where the device can't be used any more."""
        self._device.check()

    def close(self) -> None:
        """Once nobody uses anything."""
        for name in [*self._pending_copies, *self._blocks]:
            self.evict_if_present(name)
        self._device.close()

    def _mark_evicted(self, name: str) -> None:
        evicted = self._occupancy.evicted(name).with_retained(name, is_retained=False)
        if name in self._blocks:  # an engine that was found where there is no room has none
            self._free(name, self._blocks.pop(name))
        self._occupancy = evicted

    def _is_waking(self, name: str) -> bool:
        event = self._pending_copies[name].event if name in self._pending_copies else None
        return isinstance(event, EngineWakeup) and not event.has_ended

    def _reserve_found(self, name: str) -> None:
        """What is found on the device, also by the device's own account, as far as that has room."""
        if name not in self._blocks:
            with suppress(DeviceFull):
                self._blocks[name] = self._device.reserve_external(self._occupancy.residency_of(name).size)

    def _ensure_resident(self, name: str, waiting: Sequence[str]) -> None:
        if name in self._pending_copies:
            # One that was begun ahead and broke off is begun anew: nobody has waited for it yet.
            with suppress(CopyFailed):
                self._finish_restore(name)
        if self._occupancy.residency_of(name).state is not ResidencyState.RESIDENT:
            self._make_room(name, waiting)
            self._start_restore(name, lambda size: self._allocate(name, size, waiting))
            self._finish_restore(name)

    def _acquire(self, name: str) -> None:
        """Somebody uses it. Of one that is on its way, once it is here."""
        if name in self._pending_copies:
            self._finish_restore(name)
        self._occupancy = self._occupancy.acquired(name, now=time.monotonic())

    def _make_room(self, name: str, waiting: Sequence[str]) -> None:
        while (leave := self._choose_evictions(name, waiting)) is not None:
            try:
                for other in leave:
                    self.evict(other)
            except EngineError as trouble:
                log.warning("an engine stays on the device: %s", trouble)
            else:
                return
        free = self._occupancy.available + sum(each.size for each in self._occupancy.eviction_order())
        raise InsufficientMemory(f"{name} needs {self._occupancy.residency_of(name).size} bytes; {free} can be had")

    def _choose_evictions(self, name: str, waiting: Sequence[str]) -> tuple[str, ...] | None:
        leave = self._evictions_for(name, waiting)
        while leave is None and (
            copied := next((each for each in self._pending_copies if each not in self._engines), None)
        ):
            # What is on its way can leave once it is here. Whoever wakes an engine waits for it.
            with suppress(CopyFailed):
                self._finish_restore(copied)
            leave = self._evictions_for(name, waiting)
        return leave

    def _evictions_for(self, name: str, waiting: Sequence[str]) -> tuple[str, ...] | None:
        return self._occupancy.evictions_for(name, now=time.monotonic(), queued=waiting, policy=self._eviction)

    def _start_restore(self, name: str, alloc: Callable[[int], DeviceBlock]) -> None:
        self._occupancy = self._occupancy.restoring(name)
        try:
            block = alloc(self._occupancy.residency_of(name).size)
            try:
                self._pending_copies[name] = _PendingCopy(block, self._start_copy(name, block))
            except BaseException:
                self._free(name, block)
                raise
        except BaseException:
            self._occupancy = self._occupancy.rolled_back(name)
            raise

    def _start_copy(self, name: str, block: DeviceBlock) -> CopyEvent:
        if name in self._engines:
            return self._engines[name].wake()
        return self._device.copy_async(block, self._weights[name].content)

    def _finish_restore(self, name: str) -> None:
        """Restoring to resident, or back to host. Raises `CopyFailed`."""
        copy = self._pending_copies[name]
        try:
            copy.event.wait()
        except BaseException:
            if not self._put_back_to_sleep(name):
                self._blocks[name] = self._pending_copies.pop(name).block
                self._occupancy = self._occupancy.restored(name).with_retained(name, is_retained=True)
                self._stats.failed += 1
                raise
            del self._pending_copies[name]
            self._occupancy = self._occupancy.rolled_back(name)
            self._stats.failed += 1
            self._free(name, copy.block)
            raise
        self._occupancy = self._occupancy.restored(name, restore_s=copy.event.took_s)
        self._blocks[name] = self._pending_copies.pop(name).block
        self._stats.restored_s.append(copy.event.took_s)

    def _put_back_to_sleep(self, name: str) -> bool:
        """Whether what half woke up holds nothing. Weights that half arrived are only bytes."""
        if (engine := self._engines.get(name)) is None:
            return True
        try:
            engine.sleep()
        except EngineError as trouble:
            log.warning("%s may hold its bytes still: %s", name, trouble)
            return False
        return True

    def _allocate(self, name: str, size: int, waiting: Sequence[str]) -> DeviceBlock:
        """Free bytes may lie apart: then more of the idle ones leave."""
        while True:
            try:
                return self._device.alloc(size)
            except DeviceFull as full:
                leaving = self._occupancy.eviction_order(now=time.monotonic(), queued=waiting, policy=self._eviction)
                idle = next((each.name for each in leaving if each.name not in self._engines), None)
                if idle is None:
                    raise InsufficientMemory(f"{name}: {full}") from full
                self.evict(idle)

    def _reserve_external(self, name: str, size: int) -> DeviceBlock:
        try:
            return self._device.reserve_external(size)
        except DeviceFull as full:
            raise InsufficientMemory(f"{name}: {full}") from full

    def _free(self, name: str, block: DeviceBlock) -> None:
        before = self._device.used
        self._device.free(block)
        if before - self._device.used != block.size:
            raise MemoryNotFreed(f"{name} left, and {before - self._device.used} of its {block.size} bytes came free")

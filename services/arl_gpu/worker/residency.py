"""Residency of weights and engines on a device: applies decisions of `arl_core.residency.occupancy` atomically."""

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
    """A lack of memory for a service in addition to the services that are in use."""


class MemoryNotFreed(Exception):
    """A device that did not return freed memory; its accounting is no longer reliable."""


@dataclass(frozen=True, slots=True)
class _PendingCopy:
    block: DeviceBlock
    event: CopyEvent


class DeviceResidency:
    """The residency of one device. It is not thread-safe: only the device's owner calls it.

    An engine counts like a service's weights: waking it is its copy, and putting it to sleep is its eviction.

    `waiting` lists services with queued work; the one that is needed first comes first.
    """

    def __init__(
        self, device: Device, *, eviction: EvictionPolicy = EvictionPolicy.COST, host_bytes: int | None = None
    ) -> None:
        """Initialise the residency. `host_bytes`: maximum bytes of weights in host memory; None for no limit."""
        self._device = device
        self._eviction, self._host_bytes = eviction, host_bytes
        self._occupancy = DeviceOccupancy(device.capacity)
        self._weights: dict[str, HostWeights] = {}
        self._engines: dict[str, EngineController] = {}
        self._blocks: dict[str, DeviceBlock] = {}
        self._pending_copies: dict[str, _PendingCopy] = {}
        """Copies that have not finished, by service."""
        self._stats = ResidencyStats()

    @property
    def states(self) -> Mapping[str, ResidencyState]:
        """Return the residency state of each known service."""
        return {name: held.state for name, held in self._occupancy.services.items()}

    @property
    def capacity(self) -> int:
        """Bytes of the device for weights and engines."""
        return self._occupancy.capacity

    @property
    def used(self) -> int:
        """Bytes of all services on the device."""
        return self._occupancy.used

    @property
    def fitting(self) -> frozenset[str]:
        """Services that are not on the device and fit into its free memory."""
        free, services = self._occupancy.available, self._occupancy.services
        return frozenset(n for n, each in services.items() if each.state is ResidencyState.HOST and each.size <= free)

    @property
    def unevictable(self) -> frozenset[str]:
        """Engines that cannot be evicted, until they report that they can sleep."""
        return frozenset(name for name, each in self._occupancy.services.items() if each.is_retained)

    def take_stats(self) -> ResidencyStats:
        """Return the statistics since the last call."""
        found, self._stats = self._stats, ResidencyStats()
        return found

    def reserve_host_bytes(self, name: str, size: int) -> None:
        """Make room for `size` bytes in host memory; other services are unloaded. Raises `InsufficientMemory`."""
        if self._host_bytes is None:
            return
        loaded = self._occupancy.loaded(name, size)
        if (leave := loaded.host_evictions(self._host_bytes, excluded=name, now=time.monotonic())) is None:
            raise InsufficientMemory(
                f"{name}: host memory would have {loaded.host_bytes} bytes of weights, but the limit is"
                f" {self._host_bytes}"
            )
        for other in leave:
            self.unload(other)

    def load(self, name: str, weights: HostWeights, *, took_s: float = 0.0) -> None:
        """Add a cold service's weights to host memory. Raises `InsufficientMemory`; then the service stays cold."""
        self.reserve_host_bytes(name, len(weights.content))
        self._device.register(weights.content)
        self._occupancy = self._occupancy.loaded(name, len(weights.content), load_s=took_s)
        self._weights[name] = weights

    def adopt_engine(self, name: str, engine: EngineController) -> None:
        """Add an engine. It counts as awake and unevictable until `check_engine` knows its state."""
        self._occupancy = (
            self._occupancy.loaded(name, engine.size, host_size=0)
            .marked_resident(name)
            .with_retained(name, is_retained=True)
        )
        self._engines[name] = engine
        self._reserve_found(name)

    def check_engine(self, name: str, *, is_used: bool = False) -> None:
        """Apply the state that an engine reports. If it is awake, unused and does not fit, put it to sleep.

        `is_used`: a user exists that is not counted yet. Raises `EngineError`, also if the state is unknown; then the
        engine keeps its state, or counts as awake and unevictable.
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
        """Restore the user of an engine from before this residency existed, if the engine can be awake."""
        if self._occupancy.residency_of(name).state is ResidencyState.RESIDENT:
            self._occupancy = self._occupancy.acquired(name, now=time.monotonic())

    def acquire_engine(self, name: str, *, users: int = 1, waiting: Sequence[str] = ()) -> bool:
        """Acquire an engine for `users` users in total. Return False while it is still waking up.

        Raises `InsufficientMemory`, `EngineError`, or `CopyFailed` if it did not wake up; then its memory is free
        again.
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
        """Set the remaining number of users. An engine that is not on the device has none."""
        if self._occupancy.residency_of(name).state is ResidencyState.RESIDENT:
            self._occupancy = self._occupancy.with_users(name, users)

    def pin(self, name: str, *, on: bool = True) -> None:
        """Pin or unpin a service in any state; another service's restore does not evict a pinned one."""
        self._occupancy = self._occupancy.with_pinned(name, is_pinned=on)

    @contextmanager
    def use(self, name: str, *, waiting: Sequence[str] = ()) -> Iterator[Any]:
        """Yield the service's bytes on the device; restore them if needed. They cannot be evicted in the meantime.

        Raises `InsufficientMemory` or the copy's error; then the service keeps its state, and its memory is free.
        """
        self._ensure_resident(name, waiting)
        self._acquire(name)
        try:
            yield self._blocks[name].view()
        finally:
            self._occupancy = self._occupancy.released(name)

    def prefetch(self, waiting: Sequence[str]) -> str | None:
        """Start copying the service that is needed next, if it fits without loss. Return its name or None."""
        copied = [each for each in waiting if each not in self._engines]  # engines wake in parallel anyway
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
        """Evict a resident service to host memory without a copy back. Raises `ServiceBusyError` and `MemoryNotFreed`.

        Raises `EngineError` for an engine that may still use its memory; it is then unevictable until its next check.
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
        """Evict a service, also one whose copy is pending.

        Raises `ServiceBusyError`, also for an engine that is waking up, and `MemoryNotFreed`.
        """
        if self._is_waking(name):
            raise ServiceBusyError(f"{name} is waking up")
        if name in self._pending_copies:
            with suppress(CopyFailed):
                self._finish_restore(name)
        if self._occupancy.residency_of(name).state is ResidencyState.RESIDENT:
            self.evict(name)

    def unload(self, name: str) -> None:
        """Remove a service from host memory. Raises `ServiceBusyError` and `MemoryNotFreed`."""
        self.evict_if_present(name)
        self._occupancy = self._occupancy.unloaded(name)
        self._device.unregister(self._weights.pop(name).content)
        self._stats.cooled += 1

    def forget(self, name: str) -> None:
        """Remove a service from the device and the host. Raises `ServiceBusyError` and `MemoryNotFreed`."""
        self.evict_if_present(name)
        self._occupancy = self._occupancy.removed(name)
        if (weights := self._weights.pop(name, None)) is not None:
            self._device.unregister(weights.content)

    def check(self) -> None:
        """Raise an error if the device is unusable."""
        self._device.check()

    def close(self) -> None:
        """Evict all services and close the device. No service may be in use."""
        for name in [*self._pending_copies, *self._blocks]:
            self.evict_if_present(name)
        self._device.close()

    def _mark_evicted(self, name: str) -> None:
        evicted = self._occupancy.evicted(name).with_retained(name, is_retained=False)
        if name in self._blocks:  # an engine that was found without free memory has no block
            self._free(name, self._blocks.pop(name))
        self._occupancy = evicted

    def _is_waking(self, name: str) -> bool:
        event = self._pending_copies[name].event if name in self._pending_copies else None
        return isinstance(event, EngineWakeup) and not event.has_ended

    def _reserve_found(self, name: str) -> None:
        """Reserve memory for an engine that is on the device, if the device has room."""
        if name not in self._blocks:
            with suppress(DeviceFull):
                self._blocks[name] = self._device.reserve_external(self._occupancy.residency_of(name).size)

    def _ensure_resident(self, name: str, waiting: Sequence[str]) -> None:
        if name in self._pending_copies:
            # A failed prefetch is restarted: no action waited for it yet.
            with suppress(CopyFailed):
                self._finish_restore(name)
        if self._occupancy.residency_of(name).state is not ResidencyState.RESIDENT:
            self._make_room(name, waiting)
            self._start_restore(name, lambda size: self._allocate(name, size, waiting))
            self._finish_restore(name)

    def _acquire(self, name: str) -> None:
        """Mark a service as used. A pending copy is finished first."""
        if name in self._pending_copies:
            self._finish_restore(name)
        self._occupancy = self._occupancy.acquired(name, now=time.monotonic())

    def _make_room(self, name: str, waiting: Sequence[str]) -> None:
        while (leave := self._choose_evictions(name, waiting)) is not None:
            try:
                for other in leave:
                    self.evict(other)
            except EngineError as trouble:
                log.warning("an engine could not be evicted from the device: %s", trouble)
            else:
                return
        free = self._occupancy.available + sum(each.size for each in self._occupancy.eviction_order())
        raise InsufficientMemory(
            f"{name} needs {self._occupancy.residency_of(name).size} bytes, but only {free} can be made available"
        )

    def _choose_evictions(self, name: str, waiting: Sequence[str]) -> tuple[str, ...] | None:
        leave = self._evictions_for(name, waiting)
        while leave is None and (
            copied := next((each for each in self._pending_copies if each not in self._engines), None)
        ):
            # A service can be evicted once its copy has finished. A waking engine is not waited for.
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
        """Change a service from restoring to resident, or back to host. Raises `CopyFailed`."""
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
        """Return True if a failed restore uses no memory. Partly copied weights need no clean-up."""
        if (engine := self._engines.get(name)) is None:
            return True
        try:
            engine.sleep()
        except EngineError as trouble:
            log.warning("%s may still use its device memory: %s", name, trouble)
            return False
        return True

    def _allocate(self, name: str, size: int, waiting: Sequence[str]) -> DeviceBlock:
        """Allocate a block. If free memory is fragmented, evict more idle services."""
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
            raise MemoryNotFreed(
                f"{name} was evicted, but only {before - self._device.used} of its {block.size} bytes were freed"
            )

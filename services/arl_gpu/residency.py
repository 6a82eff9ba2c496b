"""Does what `arl_core.residency` decides, on a device: all of it, or nothing."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from arl_core.residency import Occupancy, Residence
from arl_gpu.device import Block, Device, DeviceFull
from arl_gpu.kinds.model import Weights

__all__ = ["NoRoom", "NotFreed", "Residency"]


class NoRoom(Exception):
    """It does not fit beside what is in use."""


class NotFreed(Exception):
    """The device did not give back what was freed. Its arithmetic can't be trusted any more."""


class Residency:
    """One device's. Not for several threads: whoever owns the device calls it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._occupancy = Occupancy(device.capacity)
        self._weights: dict[str, Weights] = {}
        self._blocks: dict[str, Block] = {}
        self.restores = 0
        self.last_restore_s = 0.0

    @property
    def states(self) -> Mapping[str, Residence]:
        return {name: held.state for name, held in self._occupancy.services.items()}

    @property
    def used(self) -> int:
        """Bytes of all services on the device."""
        return self._occupancy.used

    def pin(self, name: str, *, on: bool = True) -> None:
        self._occupancy = self._occupancy.pinned(name, on=on)

    def forget(self, name: str) -> None:
        """Also of the host. Raises `Busy`, or `NotFreed`."""
        self.evict_if_resident(name)
        self._occupancy = self._occupancy.forgotten(name)
        self._weights.pop(name, None)

    def evict_if_resident(self, name: str) -> None:
        if self._occupancy.of(name).state is Residence.RESIDENT:
            self.evict(name)

    def load(self, name: str, weights: Weights) -> None:
        """Cold to host."""
        self._occupancy = self._occupancy.loaded(name, len(weights.content))
        self._weights[name] = weights

    @contextmanager
    def using(self, name: str) -> Iterator[Any]:
        """Its bytes on the device, restored if they weren't there; it can't be evicted meanwhile.

        Raises `NoRoom`, or what the copy failed with; then it is where it was, and its room is free.
        """
        if self._occupancy.of(name).state is not Residence.RESIDENT:
            self._restore(name)
        self._occupancy = self._occupancy.taken(name)
        try:
            yield self._blocks[name].view()
        finally:
            self._occupancy = self._occupancy.released(name)

    def evict(self, name: str) -> None:
        """Resident to host, without a copy back. Raises `Busy`, or `NotFreed`."""
        evicted = self._occupancy.evicted(name)
        block = self._blocks.pop(name)
        before = self._device.used
        self._device.free(block)
        self._occupancy = evicted
        if before - self._device.used != block.size:
            raise NotFreed(f"{name} was evicted, and {before - self._device.used} of its {block.size} bytes came free")

    def _restore(self, name: str) -> None:
        begun = time.monotonic()
        leaving = self._occupancy.evictions_for(name)
        if leaving is None:
            raise NoRoom(f"{name} needs {self._occupancy.of(name).size} bytes; {self._free_at_most()} can be had")
        for other in leaving:
            self.evict(other)
        self._occupancy = self._occupancy.restoring(name)
        try:
            self._blocks[name] = self._copied(name)
        except BaseException:
            self._occupancy = self._occupancy.rolled_back(name)
            raise
        self._occupancy = self._occupancy.restored(name)
        self.restores += 1
        self.last_restore_s = time.monotonic() - begun

    def _copied(self, name: str) -> Block:
        content = self._weights[name].content
        block = self._alloc(name, len(content))
        try:
            self._device.copy_async(block, content).wait()
        except BaseException:
            self._device.free(block)
            raise
        return block

    def _alloc(self, name: str, size: int) -> Block:
        """Free bytes may lie apart: then more of the idle ones leave."""
        while True:
            try:
                return self._device.alloc(size)
            except DeviceFull as full:
                idle = self._occupancy.idle()
                if not idle:
                    raise NoRoom(f"{name}: {full}") from full
                self.evict(idle[0])

    def _free_at_most(self) -> int:
        return self._occupancy.free + sum(self._occupancy.of(name).size for name in self._occupancy.idle())

"""A device in host memory: an arena of a fixed size, copies in a separate thread, and injected faults.

On a node without a GPU, services are resident on this device and are computed from it. The manager treats it like any
other device.
"""

import mmap
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from arl_gpu.devices.arena import Arena, ExternalReservation, align_up
from arl_gpu.devices.interface import CopyEvent, CopyFailed, DeviceBlock, DeviceFull

__all__ = ["CpuDevice", "FaultInjector"]

ALIGNMENT = 4096
"""Alignment of a block in bytes, so that its pages can be returned to the system."""
ROUNDED_BLOCKS = 256
"""Number of blocks whose alignment fits beyond the capacity."""
MAP_NORESERVE = 0x4000
"""Linux flag MAP_NORESERVE, which not every Python version of `mmap` defines."""
FaultInjector = Callable[[str, int], bool]
"""A function that gets `alloc` or `copy` and a size before each operation. If it returns True, the operation fails."""


@dataclass(frozen=True, slots=True, eq=False)
class _CpuBlock:
    offset: int
    size: int
    arena: memoryview

    def view(self) -> memoryview:
        """Return the bytes of the block."""
        return self.arena[self.offset : self.offset + self.size]


class _CpuCopyEvent:
    """The progress of a copy in the copier's thread."""

    def __init__(self, copied: Future[float]) -> None:
        self._copied = copied

    def wait(self) -> None:
        """Wait until the copy has ended. Raises the errors of the copy."""
        self._copied.result()

    @property
    def took_s(self) -> float:
        """Return the seconds that the copy took; waits for its end."""
        return self._copied.result()


class CpuDevice:
    """An `arl_gpu.devices.interface.Device` in host memory. `bytes_per_s` limits the bandwidth of copies."""

    kind = "cpu"

    def __init__(self, capacity: int, *, bytes_per_s: float | None = None, fault: FaultInjector | None = None) -> None:
        self.capacity = capacity
        self._bytes_per_s = bytes_per_s
        self._fault = fault or (lambda _what, _size: False)
        # Pages that were never written use no memory, even if engines reserve all capacity. Block sizes are rounded up.
        room = align_up(max(1, capacity), ALIGNMENT) + ROUNDED_BLOCKS * ALIGNMENT
        self._map = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        self._arena = memoryview(self._map)
        self._allocator = Arena(capacity=capacity, arena_bytes=room, alignment=ALIGNMENT)
        self._copier: ThreadPoolExecutor | None = None

    @property
    def used(self) -> int:
        """Return the allocated bytes."""
        return self._allocator.used

    def register(self, content: memoryview) -> None:
        """Do nothing: copies can read any host memory."""

    def unregister(self, content: memoryview) -> None:
        """Do nothing: `register` did nothing."""

    def alloc(self, size: int) -> DeviceBlock:
        """Allocate a block. Raises `DeviceFull`."""
        if self._fault("alloc", size):
            raise DeviceFull(f"{size} bytes requested; this allocation fails because of an injected fault")
        return _CpuBlock(self._allocator.allocate(size), size, self._arena)

    def reserve_external(self, size: int) -> DeviceBlock:
        """Reserve memory for another process. Raises `DeviceFull`."""
        if self._fault("alloc", size):
            raise DeviceFull(f"{size} bytes requested; this reservation fails because of an injected fault")
        return self._allocator.reserve_external(size)

    def copy_async(self, block: DeviceBlock, content: memoryview) -> CopyEvent:
        """Start to copy `content` to the block; the copy runs in a thread."""
        if len(content) != block.size:
            raise ValueError(f"{len(content)} bytes do not match a block of {block.size} bytes")
        if self._copier is None:
            self._copier = ThreadPoolExecutor(1, thread_name_prefix="device copy")
        return _CpuCopyEvent(self._copier.submit(self._copy, block.view(), content))

    def free(self, block: DeviceBlock) -> None:
        """Free a block, and return its pages to the system."""
        if isinstance(block, ExternalReservation):
            self._allocator.release_external(block)
            return
        assert isinstance(block, _CpuBlock)
        self._allocator.free(block.offset, block.size)
        self._map.madvise(mmap.MADV_DONTNEED, block.offset, align_up(block.size, ALIGNMENT))

    def check(self) -> None:
        """Do nothing: host memory has no lasting error."""

    def close(self) -> None:
        """Wait for pending copies and stop the thread."""
        if self._copier is not None:
            self._copier.shutdown()

    def _copy(self, target: memoryview, content: memoryview) -> float:
        """Copy the bytes and return the seconds that it took."""
        import numpy as np  # NumPy's copies release the GIL; slice assignment does not

        begun = time.monotonic()
        if self._fault("copy", len(content)):
            raise CopyFailed(f"the copy of {len(content)} bytes failed")
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(content, np.uint8))
        if self._bytes_per_s:
            time.sleep(max(0.0, len(content) / self._bytes_per_s - (time.monotonic() - begun)))
        return time.monotonic() - begun

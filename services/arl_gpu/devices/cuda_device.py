"""A GPU used by torch: one reservation for weights, and copies on a separate stream from pinned host memory.

A reader of a block waits for its copy on the host, so a forward on any stream finds the bytes. A copy waits on the
device for the work that the compute stream had when a block was last freed. So no forward loses weights while it reads
them, and no copy waits for a forward that reads other blocks.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from arl_gpu.devices.arena import Arena, ExternalReservation, align_up
from arl_gpu.devices.interface import CopyEvent, CopyFailed, DeviceBlock, DeviceFull

__all__ = ["CudaDevice"]

ALIGNMENT = 512
"""Alignment of a block in bytes, as in the caching allocator; tensor cores require 16."""
ROUNDED_BLOCKS = 256
"""Number of blocks whose alignment fits beyond the capacity."""
FREE_MEMORY_SHARE = 0.8
"""Share of the memory that is used for weights; the rest is for the results of forwards."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _CudaBlock:
    offset: int
    size: int
    arena: Any

    def view(self) -> Any:
        """Return the block as a uint8 tensor on the device."""
        return self.arena[self.offset : self.offset + self.size]


@dataclass(slots=True, eq=False)
class _DriverBlock:
    """A block that is returned to the driver when it is freed, so that an engine can use it."""

    size: int
    memory: Any

    def view(self) -> Any:
        """Return the block as a uint8 tensor on the device."""
        return self.memory


class _CudaCopyEvent:
    """The progress of a copy on the copy stream. `source` must outlive the copy."""

    def __init__(self, start_event: Any, ended: Any, source: Any) -> None:
        self._start_event, self._ended, self._source = start_event, ended, source

    def wait(self) -> None:
        try:
            self._ended.synchronize()
        except RuntimeError as error:
            raise CopyFailed(str(error)) from error

    @property
    def took_s(self) -> float:
        return float(self._start_event.elapsed_time(self._ended)) / 1000


class CudaDevice:
    """An `arl_gpu.devices.interface.Device` on a GPU. `capacity`: bytes for weights, by default most free bytes.

    A device that is `shared` with engines is not reserved: each block is separate memory. Its default capacity is most
    of the total memory, because an engine that is already awake uses part of that.

    Raises `LookupError` if the GPU does not exist, and `DeviceFull` if the reservation fails.
    """

    kind = "cuda"

    def __init__(self, index: int = 0, *, capacity: int | None = None, shared: bool = False) -> None:
        if index >= torch.cuda.device_count():
            raise LookupError(
                f"cuda:{index} does not exist: torch {torch.__version__} finds {torch.cuda.device_count()} GPUs"
            )
        self._index = index
        torch.cuda.set_device(index)
        free, total = torch.cuda.mem_get_info(index)
        self.capacity = capacity if capacity is not None else int((total if shared else free) * FREE_MEMORY_SHARE)
        room = align_up(self.capacity, ALIGNMENT) + ROUNDED_BLOCKS * ALIGNMENT
        self._arena = None if shared else self._allocate_tensor(room)
        self._allocator = Arena(capacity=self.capacity, arena_bytes=room, alignment=ALIGNMENT)
        self._stream = torch.cuda.Stream(index)
        self._last_free_event: Any = None
        """Event after all work that used a block that is now free."""
        self._pinned_bytes: dict[int, int] = {}
        """Size of each pinned region in bytes, by address."""

    @property
    def used(self) -> int:
        return self._allocator.used

    def register(self, content: memoryview) -> None:
        """Pin host memory, so that copies run at bus speed. If pinning fails, copies still work but are slower."""
        address = _as_tensor(content).data_ptr()
        failed = int(torch.cuda.cudart().cudaHostRegister(address, len(content), 0))
        if failed:
            log.warning("%d bytes of host memory could not be pinned: CUDA error %d", len(content), failed)
            self._clear_error()
        else:
            self._pinned_bytes[address] = len(content)

    def unregister(self, content: memoryview) -> None:
        """Undo `register`."""
        address = _as_tensor(content).data_ptr()
        if address in self._pinned_bytes:
            self._unpin(address)

    def _unpin(self, address: int) -> None:
        del self._pinned_bytes[address]
        if failed := int(torch.cuda.cudart().cudaHostUnregister(address)):
            log.warning("host memory could not be unpinned: CUDA error %d", failed)
            self._clear_error()

    def _clear_error(self) -> None:
        """Clear the last error. CUDA would otherwise report it at the next kernel launch, in an unrelated forward."""
        with suppress(RuntimeError):
            torch.ones(1, device=f"cuda:{self._index}")

    def _allocate_tensor(self, size: int) -> Any:
        try:
            return torch.empty(size, dtype=torch.uint8, device=f"cuda:{self._index}")
        except torch.cuda.OutOfMemoryError as error:
            free, _ = torch.cuda.mem_get_info(self._index)
            raise DeviceFull(f"{size} bytes requested; {free} are free") from error

    def alloc(self, size: int) -> DeviceBlock:
        """Allocate a block. Raises `DeviceFull`."""
        if self._arena is None:
            lent = self._allocator.reserve_external(size)
            # Otherwise torch could place the block in a cached segment of forwards, which then cannot be returned.
            torch.cuda.empty_cache()
            try:
                return _DriverBlock(size, self._allocate_tensor(size))
            except DeviceFull:
                self._allocator.release_external(lent)
                raise
        return _CudaBlock(self._allocator.allocate(size), size, self._arena)

    def reserve_external(self, size: int) -> DeviceBlock:
        """Reserve memory for another process. Raises `DeviceFull`, also if all memory is reserved."""
        if self._arena is not None:
            raise DeviceFull("all memory of this device is reserved; open the device as shared")
        # Torch caches the memory of forwards, so the other process could not allocate it.
        torch.cuda.empty_cache()
        return self._allocator.reserve_external(size)

    def copy_async(self, block: DeviceBlock, content: memoryview) -> CopyEvent:
        """Start to copy `content` to the block on the copy stream. Raises `CopyFailed`."""
        if len(content) != block.size:
            raise ValueError(f"{len(content)} bytes do not match a block of {block.size} bytes")
        source, target = _as_tensor(content), block.view()
        if self._last_free_event is not None:
            self._stream.wait_event(self._last_free_event)
        # `blocking`: a waiting thread does not spin on a core.
        begun, ended = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        try:
            with torch.cuda.stream(self._stream):
                begun.record()
                target.copy_(source, non_blocking=True)
                ended.record()
        except RuntimeError as error:
            # The started copy may still write to the block, which its owner frees next.
            self._stream.synchronize()
            raise CopyFailed(str(error)) from error
        return _CudaCopyEvent(begun, ended, source)

    def free(self, block: DeviceBlock) -> None:
        """Free a block after the work that uses it."""
        if isinstance(block, _DriverBlock):
            torch.cuda.synchronize(self._index)
            block.memory = None
            torch.cuda.empty_cache()
        if isinstance(block, ExternalReservation | _DriverBlock):
            self._allocator.release_external(ExternalReservation(block.size))
            return
        assert isinstance(block, _CudaBlock)
        self._last_free_event = torch.cuda.Event()
        self._last_free_event.record(torch.cuda.current_stream(self._index))
        self._allocator.free(block.offset, block.size)

    def check(self) -> None:
        """Raise a kernel's error, which stays in the CUDA context until the next synchronisation."""
        torch.cuda.synchronize(self._index)

    def close(self) -> None:
        """Wait for pending copies, unpin host memory and free the reservation."""
        self._stream.synchronize()
        for address in [*self._pinned_bytes]:
            self._unpin(address)
        self._arena = None
        torch.cuda.empty_cache()


def _as_tensor(content: memoryview) -> Any:
    return torch.frombuffer(content, dtype=torch.uint8)

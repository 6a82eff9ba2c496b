"""The device interface that the residency uses. It treats weights as plain bytes."""

from typing import Any, Protocol

__all__ = ["CopyEvent", "CopyFailed", "Device", "DeviceBlock", "DeviceFull", "wait_for_gpu"]


class DeviceFull(Exception):
    """A lack of a free block of the requested size; nothing was allocated."""


class CopyFailed(Exception):
    """A failed copy. Its block stays allocated."""


class DeviceBlock(Protocol):
    """A block of the device's memory."""

    @property
    def size(self) -> int:
        """Return the size in bytes."""

    def view(self) -> Any:
        """Return the bytes in a form that a forward can read until the block is freed."""
        ...


class CopyEvent(Protocol):
    """A copy that may still be running."""

    def wait(self) -> None:
        """Return once all bytes are on the device. Raise `CopyFailed` if the copy failed.

        Nothing writes to the block after this returns or raises.
        """

    @property
    def took_s(self) -> float:
        """Seconds that the copy took; known once all bytes are on the device."""
        ...


class Device(Protocol):
    """An accelerator, or a substitute for one. `free` returns exactly the bytes that `alloc` took."""

    @property
    def kind(self) -> str:
        """Return the kind of the device, `cpu` or `cuda`."""

    @property
    def capacity(self) -> int:
        """Bytes for weights."""
        ...

    @property
    def used(self) -> int:
        """Used bytes, as the device itself counts them."""
        ...

    def register(self, content: memoryview) -> None:
        """Prepare host memory for copies. Call it before the first copy."""

    def unregister(self, content: memoryview) -> None:
        """Undo `register`. No more copies read this memory."""

    def alloc(self, size: int) -> DeviceBlock:
        """Allocate a block. Raises `DeviceFull`."""
        ...

    def reserve_external(self, size: int) -> DeviceBlock:
        """Reserve memory for another process on this device; it cannot be read here. Raises `DeviceFull`."""
        ...

    def copy_async(self, block: DeviceBlock, content: memoryview) -> CopyEvent:
        """Start to copy `content` from host memory. The caller keeps it unchanged until the event."""
        ...

    def free(self, block: DeviceBlock) -> None:
        """Free a block. No copy may write to it, and no forward may read it."""

    def check(self) -> None:
        """Raise an error if the device is unusable, such as a GPU after an illegal access."""

    def close(self) -> None:
        """Wait for pending copies and free all memory."""


def wait_for_gpu() -> None:
    """Wait until all work of this process's GPU has finished.

    Torch may spin when it waits, for example for a tensor's value: that occupies a core for each GPU and adds CPU time
    that no forward used.
    """
    import torch  # torch is installed wherever a GPU is used

    done = torch.cuda.Event(blocking=True)
    done.record()
    done.synchronize()

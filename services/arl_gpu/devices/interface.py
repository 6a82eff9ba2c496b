"""What residency asks of a device. Nothing here knows what the bytes mean."""

from typing import Any, Protocol

__all__ = ["CopyEvent", "CopyFailed", "Device", "DeviceBlock", "DeviceFull", "wait_for_gpu"]


class DeviceFull(Exception):
    """There is no room of that size; nothing was taken."""


class CopyFailed(Exception):
    """Bytes did not arrive. The block still holds its place."""


class DeviceBlock(Protocol):
    """A piece of the device's memory."""

    @property
    def size(self) -> int: ...

    def view(self) -> Any:
        """Its bytes where a forward can read them, until it is freed."""
        ...


class CopyEvent(Protocol):
    """A copy that may still be running."""

    def wait(self) -> None:
        """Return once all bytes are there. Raise `CopyFailed` if the copy broke off.

        Nothing writes to the block after this returns or raises.
        """

    @property
    def took_s(self) -> float:
        """Seconds that the copy took; known once all bytes are there."""
        ...


class Device(Protocol):
    """One accelerator, or what stands in for one. Sizes are exact: what `alloc` took, `free` gives back."""

    @property
    def kind(self) -> str: ...

    @property
    def capacity(self) -> int:
        """Bytes for weights."""
        ...

    @property
    def used(self) -> int:
        """As the device itself counts them."""
        ...

    def register(self, content: memoryview) -> None:
        """Host memory that copies will come from, before the first of them."""

    def unregister(self, content: memoryview) -> None:
        """No copy comes from there any more."""

    def alloc(self, size: int) -> DeviceBlock:
        """Raises `DeviceFull`."""
        ...

    def reserve_external(self, size: int) -> DeviceBlock:
        """Room for what another process puts on this device; nothing can be read there. Raises `DeviceFull`."""
        ...

    def copy_async(self, block: DeviceBlock, content: memoryview) -> CopyEvent:
        """Begin to copy `content` from host memory; the caller keeps it unchanged until the event."""
        ...

    def free(self, block: DeviceBlock) -> None:
        """Give it back. No copy into it may be on its way, and no forward may read it."""

    def check(self) -> None:
        """Raises where nothing can be computed here any more, as after an illegal access on a GPU."""

    def close(self) -> None: ...


def wait_for_gpu() -> None:
    """What was given to this process's GPU is computed.

    Where torch itself waits, as for a number of a tensor, it may spin: a core for each GPU, and CPU time that no
    forward took.
    """
    import torch  # where there is a GPU, there is torch

    done = torch.cuda.Event(blocking=True)
    done.record()
    done.synchronize()

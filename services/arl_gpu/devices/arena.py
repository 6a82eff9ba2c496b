"""A first-fit allocator over a device's single preallocated arena, with exact sizes."""

from dataclasses import dataclass

from arl_gpu.devices.interface import DeviceFull

__all__ = ["Arena", "ExternalReservation", "align_up"]


@dataclass(frozen=True, slots=True, eq=False)
class ExternalReservation:
    """An `arl_gpu.devices.interface.DeviceBlock` for memory that another process fills."""

    size: int

    def view(self) -> None:
        """Return nothing: this process cannot read the memory."""


class Arena:
    """An allocator of `arena_bytes` bytes. Blocks use at most `capacity` of them; the rest is for alignment."""

    def __init__(self, *, capacity: int, arena_bytes: int, alignment: int) -> None:
        self._capacity, self._arena_bytes, self._alignment = capacity, arena_bytes, alignment
        self._allocated: list[tuple[int, int]] = []
        """Offset and size of each block, in order of offset."""
        self._external_sizes: list[int] = []
        """Sizes of the reservations for other processes, outside the arena."""

    @property
    def used(self) -> int:
        """Used bytes, without alignment."""
        return sum(size for _, size in self._allocated) + sum(self._external_sizes)

    def reserve_external(self, size: int) -> "ExternalReservation":
        """Reserve capacity for another process, without an offset. Raises `DeviceFull`."""
        self._check_fits(size)
        self._external_sizes.append(size)
        return ExternalReservation(size)

    def release_external(self, reservation: "ExternalReservation") -> None:
        """Release a reservation. Raises `ValueError` if it was released before."""
        try:
            self._external_sizes.remove(reservation.size)
        except ValueError:
            raise ValueError("the reservation was released before") from None

    def allocate(self, size: int) -> int:
        """Allocate a block and return the offset of the first sufficient gap. Raises `DeviceFull`."""
        self._check_fits(size)
        begin = 0
        for at, (offset, length) in enumerate([*self._allocated, (self._arena_bytes, 0)]):
            if offset - begin >= size:
                self._allocated.insert(at, (begin, size))
                return begin
            begin = align_up(offset + length, self._alignment)
        raise DeviceFull(f"{size} bytes requested; {self._capacity - self.used} are free, but no gap is large enough")

    def free(self, offset: int, size: int) -> None:
        """Free a block. Raises `ValueError` if it was freed before."""
        try:
            self._allocated.remove((offset, size))
        except ValueError:
            raise ValueError("the block was freed before") from None

    def _check_fits(self, size: int) -> None:
        if size <= 0:
            raise ValueError("a block must have at least one byte")
        if self.used + size > self._capacity:
            raise DeviceFull(f"{size} bytes requested; {self._capacity - self.used} of {self._capacity} are free")


def align_up(size: int, alignment: int) -> int:
    """Return the size rounded up to a multiple of the alignment, in bytes."""
    return -(-size // alignment) * alignment

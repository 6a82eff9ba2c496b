"""Places in a device's one reservation: first fit, exact sizes, no allocator of anybody else on the hot path."""

from dataclasses import dataclass

from arl_gpu.device import DeviceFull

__all__ = ["Lent", "Places", "aligned"]


@dataclass(frozen=True, slots=True, eq=False)
class Lent:
    """Answers `arl_gpu.device.Block` for bytes that another process fills."""

    size: int

    def view(self) -> None:
        """Nothing of it can be read here."""


class Places:
    """`room` bytes in all, of which places take `capacity` at most; what is beyond is for their alignment."""

    def __init__(self, *, capacity: int, room: int, alignment: int) -> None:
        self._capacity, self._room, self._alignment = capacity, room, alignment
        self._taken: list[tuple[int, int]] = []
        """Offset and size, in order."""
        self._lent: list[int] = []
        """Sizes of what others fill, elsewhere."""

    @property
    def used(self) -> int:
        """Bytes, without what alignment costs."""
        return sum(size for _, size in self._taken) + sum(self._lent)

    def lend(self, size: int) -> "Lent":
        """Of the capacity, and no place: where it is, another process knows. Raises `DeviceFull`."""
        self._must_fit(size)
        self._lent.append(size)
        return Lent(size)

    def end(self, lent: "Lent") -> None:
        """Raises `ValueError` for what was given back before."""
        try:
            self._lent.remove(lent.size)
        except ValueError:
            raise ValueError("this was given back before") from None

    def take(self, size: int) -> int:
        """The offset of the first gap that is wide enough. Raises `DeviceFull`."""
        self._must_fit(size)
        begin = 0
        for at, (offset, length) in enumerate([*self._taken, (self._room, 0)]):
            if offset - begin >= size:
                self._taken.insert(at, (begin, size))
                return begin
            begin = aligned(offset + length, self._alignment)
        raise DeviceFull(f"{size} bytes asked for; no gap is that wide, though {self._capacity - self.used} are free")

    def give_back(self, offset: int, size: int) -> None:
        """Raises `ValueError` for what was given back before."""
        try:
            self._taken.remove((offset, size))
        except ValueError:
            raise ValueError("this block was freed before") from None

    def _must_fit(self, size: int) -> None:
        if size <= 0:
            raise ValueError("a block has at least one byte")
        if self.used + size > self._capacity:
            raise DeviceFull(f"{size} bytes asked for, {self._capacity - self.used} of {self._capacity} are free")


def aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment

"""A model's weights in host memory, in one piece: this process's own, or a file that all workers of a node map.

They are copied there tensor by tensor from where they are read: of mapped files nothing is in memory twice.
"""

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import FileIO

__all__ = ["AllocateFn", "Chunk", "WeightBuffer", "load_private", "load_shared"]

CHUNK_BYTES = 8 << 20

Chunk = tuple[int, memoryview]
"""Bytes, and their offset. Of what is between pieces every byte is 0."""
AllocateFn = Callable[[int, Callable[[], Iterator[Chunk]]], memoryview]
"""Given a size and its pieces, which can be read more than once, in the order of their offsets: where they are kept."""


class WeightBuffer:
    """Weights in host memory, copied by `keep` or at the first use of `content`."""

    size: int
    """Bytes."""
    _content: memoryview | None = None

    @property
    def content(self) -> memoryview:
        if self._content is None:
            self.allocate(load_private)
        assert self._content is not None
        return self._content

    def allocate(self, allocate_fn: AllocateFn) -> None:
        """Once: what they were read from is let go. Raises what `hold` raises."""
        assert self._content is None
        self._content = allocate_fn(self.size, self._chunks)
        self._release_source()

    def _chunks(self) -> Iterator[Chunk]:
        raise NotImplementedError

    def _release_source(self) -> None:
        raise NotImplementedError


def load_private(size: int, chunks: Callable[[], Iterator[Chunk]]) -> memoryview:
    """Whole pages of this process's own, large ones where the system has them: devices register memory by pages."""
    pages = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    content = memoryview(pages)[:size]
    for offset, piece in chunks():
        content[offset : offset + len(piece)] = piece
    return content


def load_shared(path: str, size: int, chunks: Callable[[], Iterator[Chunk]]) -> memoryview:
    """A mapping of the file that all workers have; own bytes, where those that others have mapped are different ones.

    Whoever comes first writes. As long as they are mapped the file is locked (`LOCK_SH`), also if this process is
    killed afterwards; what nobody has locked may be emptied.
    """
    with FileIO(path, "r+") as file:
        # One at a time looks, and writes; the system takes this lock back from who dies. Closing the file ends it.
        fcntl.lockf(file, fcntl.LOCK_EX)
        if is_first := _is_unused(file):
            _write(file.fileno(), size, chunks)
        elif os.fstat(file.fileno()).st_size != size:
            return load_private(size, chunks)
        # What is mapped keeps the file open, and with it this lock.
        fcntl.flock(file, fcntl.LOCK_SH)
        # Writable, for a device that registers pages asks for that; nobody writes.
        mapped = memoryview(mmap.mmap(file.fileno(), size))
    return mapped if is_first or _has_same_content(mapped, chunks) else load_private(size, chunks)


def _is_unused(file: FileIO) -> bool:
    """Then it may be what one left that died in the middle, or be of another model that was here."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(descriptor: int, size: int, chunks: Callable[[], Iterator[Chunk]]) -> None:
    """As long as it is not whole, its size is another one."""
    os.ftruncate(descriptor, 0)
    for offset, piece in chunks():
        at = 0
        while at < len(piece):
            at += os.pwrite(descriptor, piece[at : at + CHUNK_BYTES], offset + at)
    os.ftruncate(descriptor, size)


def _has_same_content(mapped: memoryview, chunks: Callable[[], Iterator[Chunk]]) -> bool:
    return all(
        bytes(mapped[offset + at : offset + min(at + CHUNK_BYTES, len(piece))]) == bytes(piece[at : at + CHUNK_BYTES])
        for offset, piece in chunks()
        for at in range(0, len(piece), CHUNK_BYTES)
    )

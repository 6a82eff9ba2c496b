"""A model's weights in one buffer of host memory: private, or a file that all workers of a node map.

Tensors are copied one by one from mapped files, so no weights are in memory twice.
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
"""Bytes and their offset. Bytes between chunks are 0."""
AllocateFn = Callable[[int, Callable[[], Iterator[Chunk]]], memoryview]
"""A function that returns memory of a size, filled with chunks. They are ordered by offset and can be read again."""


class WeightBuffer:
    """A buffer of weights, filled by `allocate` or at the first use of `content`."""

    size: int
    """Size in bytes."""
    _content: memoryview | None = None

    @property
    def content(self) -> memoryview:
        """Return the weights; fill the buffer at the first use."""
        if self._content is None:
            self.allocate(load_private)
        assert self._content is not None
        return self._content

    def allocate(self, allocate_fn: AllocateFn) -> None:
        """Fill the buffer and release its source. Call it once. Raises the errors of `allocate_fn`."""
        assert self._content is None
        self._content = allocate_fn(self.size, self._chunks)
        self._release_source()

    def _chunks(self) -> Iterator[Chunk]:
        raise NotImplementedError

    def _release_source(self) -> None:
        raise NotImplementedError


def load_private(size: int, chunks: Callable[[], Iterator[Chunk]]) -> memoryview:
    """Copy the weights to private pages, huge ones if available: devices register memory by pages."""
    pages = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the kernel has no huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    content = memoryview(pages)[:size]
    for offset, piece in chunks():
        content[offset : offset + len(piece)] = piece
    return content


def load_shared(path: str, size: int, chunks: Callable[[], Iterator[Chunk]]) -> memoryview:
    """Map the file that all workers share; if other workers map different bytes, copy the weights to private memory.

    The first worker writes the file. The file is locked (`LOCK_SH`) as long as it is mapped, also if the process is
    killed. A file without a lock may be emptied.
    """
    with FileIO(path, "r+") as file:
        # A single process checks and writes at a time. The system releases this lock if the process dies or closes the
        # file.
        fcntl.lockf(file, fcntl.LOCK_EX)
        if is_first := _is_unused(file):
            _write(file.fileno(), size, chunks)
        elif os.fstat(file.fileno()).st_size != size:
            return load_private(size, chunks)
        # The mapping keeps the file open, and with it this lock.
        fcntl.flock(file, fcntl.LOCK_SH)
        # The mapping is writable only because devices require that to register pages.
        mapped = memoryview(mmap.mmap(file.fileno(), size))
    return mapped if is_first or _has_same_content(mapped, chunks) else load_private(size, chunks)


def _is_unused(file: FileIO) -> bool:
    """Return True if no process maps the file. It can contain an incomplete write or another model's weights."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(descriptor: int, size: int, chunks: Callable[[], Iterator[Chunk]]) -> None:
    """Write the chunks. The file gets its final size last, so an incomplete one has a different size."""
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

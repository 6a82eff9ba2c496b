"""Byte streams that are counted against a limit, digested and decompressed."""

import gzip
import hashlib
import io
import threading
from typing import Any, Protocol

import zstandard

from arl_cpu.templates.template import TemplateError

__all__ = ["DigestingReader", "ImportBudget", "ReadableStream", "decompress", "drain"]

_BLOCK = 1 << 20
_MAX_WINDOW_BYTES = 128 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class ReadableStream(Protocol):
    """A stream of bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes; fewer only at the end."""


class ImportBudget:
    """The bytes and members that one import may unpack. Raises TemplateError beyond them. Threads may share it."""

    def __init__(
        self,
        *,
        max_bytes: int,
        max_members: int,
        bytes_option: str = "--max-mib",
        members_option: str = "--max-members",
    ) -> None:
        self._lock = threading.Lock()
        self._bytes, self._members = max_bytes, max_members
        self._too_large = f"the image unpacks to more than {max_bytes >> 20} MiB; allow more with {bytes_option}"
        self._too_many = f"the image has more than {max_members} files; allow more with {members_option}"

    def spend_bytes(self, count: int) -> None:
        """Spend bytes. Raises `TemplateError` if the budget is exceeded."""
        with self._lock:
            self._bytes -= count
            exceeded = count < 0 or self._bytes < 0
        if exceeded:
            raise TemplateError(self._too_large)

    def spend_member(self) -> None:
        """Spend one member. Raises `TemplateError` if the budget is exceeded."""
        with self._lock:
            self._members -= 1
            exceeded = self._members < 0
        if exceeded:
            raise TemplateError(self._too_many)


class DigestingReader(io.RawIOBase):
    """A reader that passes `inner` through, computes its sha256 and charges the budget."""

    def __init__(self, inner: ReadableStream, budget: ImportBudget | None = None) -> None:
        self._inner, self._budget = inner, budget
        self._hash = hashlib.sha256()
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        data = self._inner.read(len(target))
        target[: len(data)] = data
        self._hash.update(data)
        self.count += len(data)
        if self._budget is not None:
            self._budget.spend_bytes(len(data))
        return len(data)

    @property
    def digest(self) -> str:
        """Return the digest of all bytes that were read."""
        return f"sha256:{self._hash.hexdigest()}"


def decompress(stream: "io.BufferedReader[Any]") -> ReadableStream:
    """Return the decompressed stream. The first bytes decide the format, not the name."""
    magic = stream.peek(4)[:4]
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=stream)
    if magic != _ZSTD:
        return stream
    # A frame declares the memory that it needs; zstd itself uses at most 8 MiB without `--long`.
    opened: ReadableStream = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(
        stream, read_across_frames=True
    )
    return opened


def drain(stream: ReadableStream) -> None:
    """Read the stream to its end, so that its digest covers all of it."""
    while stream.read(_BLOCK):
        pass

"""Byte streams that are counted against a limit, digested and decompressed."""

import gzip
import hashlib
import importlib
import io
import sys
from typing import Any, Protocol

from arl_cpu.templates.template import TemplateError

__all__ = ["DigestingReader", "ImportBudget", "ReadableStream", "decompress", "drain"]

_BLOCK = 1 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class ReadableStream(Protocol):
    """A stream of bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes; fewer only at the end."""


class ImportBudget:
    """The bytes and members that one import may unpack. Raises TemplateError beyond them."""

    def __init__(self, *, max_bytes: int, max_members: int) -> None:
        self._bytes, self._members = max_bytes, max_members
        self._too_large = f"the image unpacks to more than {max_bytes >> 20} MiB; allow more with --max-mib"
        self._too_many = f"the image has more than {max_members} files; allow more with --max-members"

    def spend_bytes(self, count: int) -> None:
        """Spend bytes. Raises `TemplateError` if the budget is exceeded."""
        self._bytes -= count
        if count < 0 or self._bytes < 0:
            raise TemplateError(self._too_large)

    def spend_member(self) -> None:
        """Spend one member. Raises `TemplateError` if the budget is exceeded."""
        self._members -= 1
        if self._members < 0:
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
    if sys.version_info < (3, 14):
        raise TemplateError(
            "the layers of the image are compressed with zstd, which needs Python 3.14 or newer. Convert the image:"
            " skopeo copy --dest-compress-format gzip"
        )
    opened: ReadableStream = importlib.import_module("compression.zstd").ZstdFile(stream)
    return opened


def drain(stream: ReadableStream) -> None:
    """Read the stream to its end, so that its digest covers all of it."""
    while stream.read(_BLOCK):
        pass

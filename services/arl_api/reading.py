"""The body of an answer: unpacked, its beginning kept, and the whole counted."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp

__all__ = ["Content", "Unreadable", "read"]

MOST = 16 << 20
"""Bytes that are read, to say how many there were; a longer answer is not waited for."""
CHUNK = 64 << 10
PACKINGS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class Unreadable(Exception):
    """It is packed in a way that nobody asked for, or ends before its end."""


@dataclass(frozen=True, slots=True)
class Content:
    kept: bytes
    total_bytes: int
    """Unpacked; of a very long one, how many were read."""


async def read(response: aiohttp.ClientResponse, *, keep: int) -> Content:
    """Raises `Unreadable`, and what aiohttp raises where the connection breaks off."""
    packing = response.headers.get("Content-Encoding", "").strip().lower() or "identity"
    if packing not in ("identity", *PACKINGS):
        raise Unreadable(f"its answer is packed as {packing[:32]!r}, which nobody asked for")
    unpacking = Unpacking(packing) if packing in PACKINGS else None
    kept, total = bytearray(), 0
    async for chunk in response.content.iter_chunked(CHUNK):
        for part in unpacking.of(chunk) if unpacking is not None else (chunk,):
            kept += part[: max(0, keep - len(kept))]
            total += len(part)
            if total > MOST:
                response.close()
                return Content(bytes(kept), total)
    if unpacking is not None and not unpacking.has_ended:
        raise Unreadable("its answer ends before its end")
    return Content(bytes(kept), total)


class Unpacking:
    """Gzip of one member after another (RFC 1952), or zlib's format, which some leave the head out of (RFC 1951)."""

    def __init__(self, packing: str) -> None:
        self._packing = packing
        self._unpacker: zlib._Decompress | None = None
        self._is_empty = True

    @property
    def has_ended(self) -> bool:
        return self._is_empty or self._unpacker is None or self._unpacker.eof

    def of(self, chunk: bytes) -> Iterator[bytes]:
        """In parts: a few bytes may be packed gigabytes."""
        while chunk:
            self._is_empty = False
            unpacker = self._unpacker = self._unpacker or self._begun(chunk)
            try:
                yield unpacker.decompress(chunk, CHUNK)
            except zlib.error:
                raise Unreadable("its answer is not packed as it says") from None
            chunk = unpacker.unconsumed_tail
            if unpacker.eof and unpacker.unused_data:
                chunk, self._unpacker = unpacker.unused_data.lstrip(b"\0"), None
                if chunk and self._packing == "deflate":
                    raise Unreadable("its answer goes on after its end")

    def _begun(self, chunk: bytes) -> "zlib._Decompress":
        has_no_head = self._packing == "deflate" and chunk[0] & 0x0F != zlib.DEFLATED
        return zlib.decompressobj(-zlib.MAX_WBITS if has_no_head else PACKINGS[self._packing])

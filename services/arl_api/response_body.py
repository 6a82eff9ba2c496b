"""The body of an answer: unpacked, its beginning kept, and the whole counted."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp

__all__ = ["BodyContent", "UnreadableBody", "read_body"]

MAX_READ_BYTES = 16 << 20
"""Bytes that are read, to say how many there were; a longer answer is not waited for."""
CHUNK_BYTES = 64 << 10
CONTENT_ENCODINGS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class UnreadableBody(Exception):
    """It is packed in a way that nobody asked for, or ends before its end."""


@dataclass(frozen=True, slots=True)
class BodyContent:
    prefix: bytes
    total_bytes: int
    """Unpacked; of a very long one, how many were read."""


async def read_body(response: aiohttp.ClientResponse, *, max_bytes: int) -> BodyContent:
    """Raises `Unreadable`, and what aiohttp raises where the connection breaks off."""
    packing = response.headers.get("Content-Encoding", "").strip().lower() or "identity"
    if packing not in ("identity", *CONTENT_ENCODINGS):
        raise UnreadableBody(f"its answer is packed as {packing[:32]!r}, which nobody asked for")
    unpacking = BodyDecompressor(packing) if packing in CONTENT_ENCODINGS else None
    kept, total = bytearray(), 0
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        for part in unpacking.decompress(chunk) if unpacking is not None else (chunk,):
            kept += part[: max(0, max_bytes - len(kept))]
            total += len(part)
            if total > MAX_READ_BYTES:
                response.close()
                return BodyContent(bytes(kept), total)
    if unpacking is not None and not unpacking.has_ended:
        raise UnreadableBody("its answer ends before its end")
    return BodyContent(bytes(kept), total)


class BodyDecompressor:
    """Gzip of one member after another (RFC 1952), or zlib's format, which some leave the head out of (RFC 1951)."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._decompressor: zlib._Decompress | None = None
        self._is_empty = True

    @property
    def has_ended(self) -> bool:
        return self._is_empty or self._decompressor is None or self._decompressor.eof

    def decompress(self, chunk: bytes) -> Iterator[bytes]:
        """In parts: a few bytes may be packed gigabytes."""
        while chunk:
            self._is_empty = False
            unpacker = self._decompressor = self._decompressor or self._start_member(chunk)
            try:
                yield unpacker.decompress(chunk, CHUNK_BYTES)
            except zlib.error:
                raise UnreadableBody("its answer is not packed as it says") from None
            chunk = unpacker.unconsumed_tail
            if unpacker.eof and unpacker.unused_data:
                chunk, self._decompressor = unpacker.unused_data.lstrip(b"\0"), None
                if chunk and self._encoding == "deflate":
                    raise UnreadableBody("its answer goes on after its end")

    def _start_member(self, chunk: bytes) -> "zlib._Decompress":
        has_no_head = self._encoding == "deflate" and chunk[0] & 0x0F != zlib.DEFLATED
        return zlib.decompressobj(-zlib.MAX_WBITS if has_no_head else CONTENT_ENCODINGS[self._encoding])

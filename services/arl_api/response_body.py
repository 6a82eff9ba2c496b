"""The body of a response: decompressed, its beginning kept, and its length counted."""

import asyncio
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp

__all__ = ["BodyContent", "UnreadableBody", "read_body"]

MAX_READ_BYTES = 16 << 20
"""Maximum bytes that are read, compressed or not; a longer response is cut off."""
MAX_MEMBERS = 1000
"""Maximum gzip members of a body. Each takes about 10 µs even if it is empty."""
CHUNK_BYTES = 64 << 10
CONTENT_ENCODINGS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class UnreadableBody(Exception):
    """The body has an encoding that was not requested, or it is incomplete."""


@dataclass(frozen=True, slots=True)
class BodyContent:
    """The retained beginning of a response body and its total size."""

    prefix: bytes
    total_bytes: int
    """Decompressed bytes; if the body is too long, the bytes that were read."""


async def read_body(response: aiohttp.ClientResponse, *, max_bytes: int) -> BodyContent:
    """Read a body. Raises `UnreadableBody`, or aiohttp's errors if the connection breaks off."""
    packing = response.headers.get("Content-Encoding", "").strip().lower() or "identity"
    if packing not in ("identity", *CONTENT_ENCODINGS):
        raise UnreadableBody(f"the response has the encoding {packing[:32]!r}, which was not requested")
    unpacking = BodyDecompressor(packing) if packing in CONTENT_ENCODINGS else None
    kept, total, received = bytearray(), 0, 0
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        received += len(chunk)
        for part in unpacking.decompress(chunk) if unpacking is not None else (chunk,):
            kept += part[: max(0, max_bytes - len(kept))]
            total += len(part)
            if max(total, received) > MAX_READ_BYTES:
                response.close()
                return BodyContent(bytes(kept), max(total, len(kept) + 1))
            await asyncio.sleep(0)  # calls of other endpoints continue between the parts
    if unpacking is not None and not unpacking.has_ended:
        raise UnreadableBody("the compressed response is incomplete")
    return BodyContent(bytes(kept), total)


class BodyDecompressor:
    """A decompressor for gzip with several members (RFC 1952) and for zlib's format.

    Some servers omit the header of zlib's format (RFC 1951).
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._decompressor: zlib._Decompress | None = None
        self._is_empty = True
        self._members = 0

    @property
    def has_ended(self) -> bool:
        """Return True if the compressed data is complete, or if the body is not compressed."""
        return self._is_empty or self._decompressor is None or self._decompressor.eof

    def decompress(self, chunk: bytes) -> Iterator[bytes]:
        """Yield parts of limited size: a few compressed bytes may be gigabytes."""
        while chunk:
            self._is_empty = False
            unpacker = self._decompressor = self._decompressor or self._start_member(chunk)
            try:
                yield unpacker.decompress(chunk, CHUNK_BYTES)
            except zlib.error:
                raise UnreadableBody("the response is not compressed as its Content-Encoding says") from None
            chunk = unpacker.unconsumed_tail
            if unpacker.eof and unpacker.unused_data:
                chunk, self._decompressor = unpacker.unused_data.lstrip(b"\0"), None
                if chunk and self._encoding == "deflate":
                    raise UnreadableBody("the response has data after its compressed content")

    def _start_member(self, chunk: bytes) -> "zlib._Decompress":
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise UnreadableBody(f"the compressed response has more than {MAX_MEMBERS} members")
        has_no_head = self._encoding == "deflate" and chunk[0] & 0x0F != zlib.DEFLATED
        return zlib.decompressobj(-zlib.MAX_WBITS if has_no_head else CONTENT_ENCODINGS[self._encoding])

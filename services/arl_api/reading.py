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
    packing = response.headers.get("Content-Encoding", "identity").strip().lower()
    if packing not in ("identity", "", *PACKINGS):
        raise Unreadable(f"its answer is packed as {packing[:32]!r}, which nobody asked for")
    unpacker = zlib.decompressobj(PACKINGS[packing]) if packing in PACKINGS else None
    kept, total = bytearray(), 0
    async for chunk in response.content.iter_chunked(CHUNK):
        for part in _unpacked(chunk, unpacker):
            kept += part[: max(0, keep - len(kept))]
            total += len(part)
            if total >= MOST:
                response.close()
                return Content(bytes(kept), total)
    if unpacker is not None and total and not unpacker.eof:
        raise Unreadable("its answer ends before its end")
    return Content(bytes(kept), total)


def _unpacked(chunk: bytes, unpacker: "zlib._Decompress | None") -> Iterator[bytes]:
    """In parts: a few bytes may be packed gigabytes."""
    if unpacker is None:
        yield chunk
        return
    try:
        while chunk:
            yield unpacker.decompress(chunk, CHUNK)
            chunk = unpacker.unconsumed_tail
    except zlib.error:
        raise Unreadable("its answer is not packed as it says") from None

"""Bounds on the headers of tar archives, which `tarfile` reads into memory and parses at any length that they claim."""

import tarfile
from typing import Any

__all__ = ["BoundedTarInfo", "OversizedTarHeader"]

MAX_EXTENDED_BYTES = 16 << 10
"""Maximum bytes of an extended header. Paths and link targets have at most 4 KiB each; some versions of `tarfile` need
time that is quadratic in this length.
"""
MAX_EXTENDED_HEADERS = 4
"""Maximum extended headers of one member."""
_EXTENDED_TYPES = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


class OversizedTarHeader(ValueError):
    """A header is too long, or a member has too many. It is no `TarError`: `tarfile` takes some for the end."""


class BoundedTarInfo(tarfile.TarInfo):
    """A member whose extended headers are bounded. Use a new subclass for each archive, because it counts headers."""

    extended_headers = 0

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Any:
        """Parse the block of a header. Raises `OversizedTarHeader`."""
        member = super().frombuf(buf, encoding, errors)
        if member.type not in _EXTENDED_TYPES:
            cls.extended_headers = 0
            return member
        cls.extended_headers += 1
        if member.size > MAX_EXTENDED_BYTES or cls.extended_headers > MAX_EXTENDED_HEADERS:
            raise OversizedTarHeader(
                f"a member must have at most {MAX_EXTENDED_HEADERS} extended headers of at most {MAX_EXTENDED_BYTES}"
                " bytes each"
            )
        return member

    @classmethod
    def for_one_archive(cls) -> "type[BoundedTarInfo]":
        """Return a class for the argument `tarinfo` of one archive."""
        return type("BoundedMember", (cls,), {})

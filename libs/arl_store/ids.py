"""Ids as the database's driver reads them."""

from uuid import UUID

from asyncpg.pgproto import pgproto

__all__ = ["as_read", "parsed"]


def as_read(id: UUID) -> UUID:
    """Equal, and hashed once instead of at each look-up: the standard library's hashes in Python, 0.2 µs each time."""
    return id if type(id) is pgproto.UUID else pgproto.UUID(id.bytes)


def parsed(text: str) -> UUID:
    """Raises ValueError."""
    found: UUID = pgproto.UUID(text)
    return found

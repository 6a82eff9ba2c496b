"""Conversion of ids and texts to values that Postgres and its driver accept."""

import json
import os
import re
import threading
import time
from typing import Any
from uuid import UUID

from asyncpg.pgproto import pgproto

from arl_wire.cells import with_cell

__all__ = ["parse_uuid", "storable", "storable_json", "to_driver_uuid", "uuid7"]

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that no text in Postgres can contain."""


def to_driver_uuid(id: UUID) -> UUID:
    """Return an equal UUID with a cached hash. The standard library computes its hash in Python, 0.2 µs each time."""
    return id if type(id) is pgproto.UUID else pgproto.UUID(id.bytes)


def parse_uuid(text: str) -> UUID:
    """Parse a UUID. Raises ValueError if `text` is not one."""
    found: UUID = pgproto.UUID(text)
    return found


_stamp_lock = threading.Lock()
_last_stamp = 0


def uuid7(cell: int = 0) -> UUID:
    """Return a UUIDv7: 48 bits of milliseconds, a 12-bit counter (RFC 9562, §6.2, method 1), then 62 random bits.

    With the number of a cell, the number replaces the first 14 random bits. The other 48 are enough, because only ids
    of the same cell, millisecond and counter can be equal.

    A counter that overflows borrows from the milliseconds, so that order is kept above 4096 ids per millisecond.
    """
    global _last_stamp
    with _stamp_lock:
        _last_stamp = max(_last_stamp + 1, (time.time_ns() // 1_000_000) << 12)
        stamp = _last_stamp
    random = int.from_bytes(os.urandom(8)) & ((1 << 62) - 1)
    value = (stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random
    return with_cell(UUID(int=value), cell)


def storable(text: str | None) -> str | None:
    """Replace characters that Postgres refuses by U+FFFD. Otherwise every retry of the statement would fail."""
    return None if text is None else UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def storable_json(document: str | None) -> str | None:
    """Apply `storable` to every text of a document that `json.dumps` wrote."""
    # Escaped, these characters begin with these prefixes. Most documents have none and are not parsed.
    if document is None or ("\\u0000" not in document and "\\ud" not in document):
        return document
    return json.dumps(_storable_value(json.loads(document)))


def _storable_value(value: Any) -> Any:
    match value:
        case str():
            return storable(value)
        case list():
            return [_storable_value(each) for each in value]
        case dict():
            return {storable(name): _storable_value(each) for name, each in value.items()}
        case _:
            return value

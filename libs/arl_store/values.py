"""Values as Postgres and its driver take them: ids and texts."""

import json
import os
import re
import threading
import time
from typing import Any
from uuid import UUID

from asyncpg.pgproto import pgproto

__all__ = ["parse_uuid", "storable", "storable_json", "to_driver_uuid", "uuid7"]

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""No text in Postgres has one of these."""


def to_driver_uuid(id: UUID) -> UUID:
    """Equal, and hashed once instead of at each look-up: the standard library's hashes in Python, 0.2 µs each time."""
    return id if type(id) is pgproto.UUID else pgproto.UUID(id.bytes)


def parse_uuid(text: str) -> UUID:
    """Raises ValueError."""
    found: UUID = pgproto.UUID(text)
    return found


_stamp_lock = threading.Lock()
_last_stamp = 0


def uuid7() -> UUID:
    """48 bits of milliseconds, then a 12-bit counter (method 1 of §6.2), then 62 random bits.

    A counter that overflows borrows from the milliseconds, so that order holds above 4096 a millisecond.
    """
    global _last_stamp
    with _stamp_lock:
        _last_stamp = max(_last_stamp + 1, (time.time_ns() // 1_000_000) << 12)
        stamp = _last_stamp
    random = int.from_bytes(os.urandom(8)) & ((1 << 62) - 1)
    value = (stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random
    return UUID(int=value)


def storable(text: str | None) -> str | None:
    """With U+FFFD where Postgres would refuse a character, and with it the whole statement for ever."""
    return None if text is None else UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def storable_json(document: str | None) -> str | None:
    """As `storable`, of every text in a document that `json.dumps` wrote."""
    # Escaped, each of these begins so. Most documents have none, and are not read again.
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

"""UUIDv7 (RFC 9562 §5.7): ordered by time, and within one process strictly by call."""

import os
import threading
import time
from uuid import UUID

__all__ = ["uuid7"]

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

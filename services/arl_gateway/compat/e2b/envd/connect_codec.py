"""Connect's protocol with JSON: envelopes of streams, and JSON of single messages. No I/O."""

import json
import struct
from typing import Any

from arl_gateway.compat.e2b.errors import GuestCallError

__all__ = ["EnvelopeReader", "encode_end", "encode_envelope", "parse_message", "timeout_of"]

HEADER = struct.Struct(">BI")
END_FLAG = 2
COMPRESSED_FLAG = 1
MAX_MESSAGE_BYTES = 8 << 20


def encode_envelope(message: dict[str, Any]) -> bytes:
    """Return a message of a stream."""
    return _frame(0, message)


def encode_end(error: dict[str, str] | None = None) -> bytes:
    """Return the last message of a stream. Without an error the stream has succeeded."""
    return _frame(END_FLAG, {} if error is None else {"error": error})


def _frame(flags: int, message: dict[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(flags, len(body)) + body


class EnvelopeReader:
    """Reader of the messages of a request stream, which arrives in parts of any size."""

    def __init__(self) -> None:
        self._partial = bytearray()

    def add(self, data: bytes) -> list[dict[str, Any]]:
        """Return the messages that are complete with `data`. Raises GuestCallError."""
        self._partial += data
        found: list[dict[str, Any]] = []
        while len(self._partial) >= HEADER.size:
            flags, length = HEADER.unpack_from(self._partial)
            if length > MAX_MESSAGE_BYTES:
                raise GuestCallError("resource_exhausted", f"a message must have at most {MAX_MESSAGE_BYTES} bytes")
            if flags & COMPRESSED_FLAG:
                raise GuestCallError("unimplemented", "a message is compressed: send it with encoding `identity`")
            if len(self._partial) < HEADER.size + length:
                break
            body = bytes(self._partial[HEADER.size : HEADER.size + length])
            del self._partial[: HEADER.size + length]
            if not flags & END_FLAG:
                found.append(parse_message(body))
        return found


def parse_message(body: bytes) -> dict[str, Any]:
    """Return a message from its JSON. Raises GuestCallError."""
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise GuestCallError("invalid_argument", "the message must be a JSON object")
    return found


def timeout_of(header: str | None) -> float:
    """Return the seconds of a `Connect-Timeout-Ms` header; 0 means no limit. Raises GuestCallError."""
    if header is None:
        return 0.0
    if not header.isdigit() or len(header) > 10:
        raise GuestCallError("invalid_argument", "Connect-Timeout-Ms must be a number of at most 10 digits")
    return int(header) / 1000

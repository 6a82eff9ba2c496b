"""Messages between the manager and a worker: JSON with a length prefix, over a socket pair."""

import asyncio
import json
import socket
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "HOST_FULL",
    "PROGRESS",
    "ResidencyStats",
    "check_response",
    "read_blocking",
    "read_message",
    "write_blocking",
    "write_message",
]

_LENGTH_BYTES = 4
MAX_MESSAGE_BYTES = 256 << 20
"""Maximum bytes of a message. A longer length means that the stream is not a message."""
PROGRESS = {"step": "on the way"}
"""Message of a worker before its response, any number of times.

It means that the worker starts or has finished a request to an engine, or has read more of a model.
"""
HOST_FULL = "host_full"
"""Error of an order whose service must be read first. `host_bytes` is its size; the order succeeds with `room`."""
RESPONSE_KEYS = frozenset({"states", "used_bytes", "moves", "fitting"})
ERROR_KEYS = RESPONSE_KEYS | {"error", "message"}
TIME_KEYS = frozenset({"forward_s", "forward_cpu_s", "model_s", "model_cpu_s", "restore_s"})
SCORE_KEYS = RESPONSE_KEYS | TIME_KEYS | {"entries", "texts", "tokens", "padding"}


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Read a message. Raises `ConnectionError` at the end of the stream and `ValueError` for invalid data."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
        if length > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {length} bytes exceeds the maximum")
        found: dict[str, Any] = json.loads(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise ConnectionError("the worker closed the connection") from None
    return found


def check_response(response: Any, *, items: int | None = None) -> dict[str, Any]:
    """Return a valid response to an order; `items` is the number of items to score. Raises `ValueError`."""
    done = RESPONSE_KEYS if items is None else SCORE_KEYS
    wanted = ERROR_KEYS if isinstance(response, dict) and "error" in response else done
    if not isinstance(response, dict) or (missing := wanted - response.keys()):
        raise ValueError(
            "the response is not an object"
            if not isinstance(response, dict)
            else f"{', '.join(sorted(missing))} missing"
        )
    if wanted is SCORE_KEYS and len(response["entries"]) != items:
        raise ValueError(f"the response has {len(response['entries'])} entries for {items} items")
    return response


def write_message(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """Write a message without waiting: the peer may write much before it reads."""
    writer.write(_frame(message))


def read_blocking(channel: socket.socket) -> dict[str, Any] | None:
    """Read a message; return None at the end of the stream."""
    head = _receive_exactly(channel, _LENGTH_BYTES)
    body = _receive_exactly(channel, int.from_bytes(head)) if head is not None else None
    return json.loads(body) if body is not None else None


def write_blocking(channel: socket.socket, message: dict[str, Any]) -> None:
    """Write a message and wait until the system has accepted it."""
    channel.sendall(_frame(message))


def _frame(message: dict[str, Any]) -> bytes:
    # A text can contain half of a surrogate pair, which JSON accepts and UTF-8 cannot encode.
    content = json.dumps(message, ensure_ascii=False).encode(errors="surrogatepass")
    return len(content).to_bytes(_LENGTH_BYTES) + content


def _receive_exactly(channel: socket.socket, count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        if not (piece := channel.recv(count - len(found))):
            return None
        found += piece
    return bytes(found)


@dataclass(slots=True)
class ResidencyStats:
    """Moves between host memory and the device since the last call of `take_stats`."""

    restored_s: list[float] = field(default_factory=list)
    """Seconds of each copy."""
    cooled: int = 0
    """Number of services that were unloaded from host memory for another one."""
    evicted: int = 0
    prefetched: int = 0
    """Number of restored services whose copy started before an action waited for it."""
    failed: int = 0
    """Number of copies that failed."""

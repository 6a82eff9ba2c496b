"""Messages between the manager and a worker: JSON after its length, over a socket pair."""

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
"""Bytes of a message. What says that it is longer is none."""
PROGRESS = {"step": "on the way"}
"""From a worker before its answer, any number of times: it asks something of an engine now, or has asked, or has read
some more of a model."""
HOST_FULL = "host_full"
"""The error of an order for which a service has to be read, with its `host_bytes`: given again with `room`, it is."""
RESPONSE_KEYS = frozenset({"states", "used_bytes", "moves", "fitting"})
ERROR_KEYS = RESPONSE_KEYS | {"error", "message"}
TIME_KEYS = frozenset({"forward_s", "forward_cpu_s", "model_s", "model_cpu_s", "restore_s"})
SCORE_KEYS = RESPONSE_KEYS | TIME_KEYS | {"entries", "texts", "tokens", "padding"}


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Raises `ConnectionError` at the end, and `ValueError` for what is no message."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
        if length > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {length} bytes")
        found: dict[str, Any] = json.loads(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise ConnectionError("the worker is gone") from None
    return found


def check_response(response: Any, *, items: int | None = None) -> dict[str, Any]:
    """An answer, to an order to score so many items or to another, with all that is read of it. Raises `ValueError`."""
    done = RESPONSE_KEYS if items is None else SCORE_KEYS
    wanted = ERROR_KEYS if isinstance(response, dict) and "error" in response else done
    if not isinstance(response, dict) or (missing := wanted - response.keys()):
        raise ValueError(
            "it is no object" if not isinstance(response, dict) else f"{', '.join(sorted(missing))} missing"
        )
    if wanted is SCORE_KEYS and len(response["entries"]) != items:
        raise ValueError(f"{len(response['entries'])} entries for {items} items")
    return response


def write_message(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """It leaves while its writer reads: the other end may have much to say before it reads this."""
    writer.write(_frame(message))


def read_blocking(channel: socket.socket) -> dict[str, Any] | None:
    """None at the end."""
    head = _receive_exactly(channel, _LENGTH_BYTES)
    body = _receive_exactly(channel, int.from_bytes(head)) if head is not None else None
    return json.loads(body) if body is not None else None


def write_blocking(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(_frame(message))


def _frame(message: dict[str, Any]) -> bytes:
    # A text may have half of a surrogate pair, which JSON reads and UTF-8 has no place for.
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
    """What came and went since somebody last asked."""

    restored_s: list[float] = field(default_factory=list)
    """What each copy took."""
    cooled: int = 0
    """Services that left host memory for another one."""
    evicted: int = 0
    prefetched: int = 0
    """Of the restored ones, those that nobody waited for yet when they began."""
    failed: int = 0
    """Copies that broke off."""

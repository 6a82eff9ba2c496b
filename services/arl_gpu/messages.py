"""What the manager and a worker say to each other: JSON after its length, over a socket pair."""

import asyncio
import json
import socket
from typing import Any

__all__ = ["read", "read_blocking", "write", "write_blocking"]

_LENGTH = 4


async def read(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Raises `ConnectionError` at the end."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH))
        found: dict[str, Any] = json.loads(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise ConnectionError("the worker is gone") from None
    return found


async def write(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(_framed(message))
    await writer.drain()


def read_blocking(channel: socket.socket) -> dict[str, Any] | None:
    """None at the end."""
    head = _exactly(channel, _LENGTH)
    body = _exactly(channel, int.from_bytes(head)) if head is not None else None
    return json.loads(body) if body is not None else None


def write_blocking(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(_framed(message))


def _framed(message: dict[str, Any]) -> bytes:
    content = json.dumps(message).encode()
    return len(content).to_bytes(_LENGTH) + content


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        if not (piece := channel.recv(count - len(found))):
            return None
        found += piece
    return bytes(found)

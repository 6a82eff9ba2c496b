"""The worker's end of its stream: chunks of an archive, and frames of JSON that say how it went.

A chunk is a 4-byte length and so many bytes; an empty one is the end. A length of all ones breaks an output off: the
frame that follows says why.
"""

import io
import json
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from .trees import Code, Refused

__all__ = ["BROKEN_OFF", "CHUNK_LENGTH", "MAX_CHUNK", "Peer"]

CHUNK_LENGTH = struct.Struct(">I")
MAX_CHUNK = 1 << 20
BROKEN_OFF = 0xFFFFFFFF
_BLOCK = 256 << 10


class Peer:
    """Whoever asked for the work, through one connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(True)
        self._socket = connected
        self._is_in_output = False

    def say(self, answer: Mapping[str, Any]) -> None:
        self._frame({"ok": answer})

    def fail(self, code: Code, message: str) -> None:
        """The last word. What the other side still sends is read and thrown away, so that it hears this."""
        try:
            if self._is_in_output:
                self._socket.sendall(CHUNK_LENGTH.pack(BROKEN_OFF))
            self._frame({"refused": code, "message": message[:2000]})
            while self._socket.recv(_BLOCK):
                pass
        except OSError:
            return  # nobody is there to be told

    def input(self) -> io.RawIOBase:
        return _Input(self._socket)

    @contextmanager
    def output(self) -> Iterator[BinaryIO]:
        """Ends the chunks where the work on them ends well."""
        self._is_in_output = True
        yield cast("BinaryIO", _Output(self._socket))
        self._socket.sendall(CHUNK_LENGTH.pack(0))
        self._is_in_output = False

    def _frame(self, message: Mapping[str, Any]) -> None:
        body = json.dumps(message).encode()
        self._socket.sendall(CHUNK_LENGTH.pack(len(body)) + body)


class _Input(io.RawIOBase):
    def __init__(self, connected: socket.socket) -> None:
        self._socket, self._left, self._ended = connected, 0, False

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        if self._left == 0 and not self._ended:
            (self._left,) = CHUNK_LENGTH.unpack(self._exactly(CHUNK_LENGTH.size))
            self._ended = self._left == 0
        if self._ended:
            return 0
        view = memoryview(target)[: self._left]
        count = self._socket.recv_into(view)
        if count == 0:
            raise Refused("invalid", "the archive broke off")
        self._left -= count
        return count

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not (more := self._socket.recv(size - len(data))):
                raise Refused("invalid", "the archive broke off")
            data += more
        return data


class _Output(io.RawIOBase):
    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = len(data)
        if size:
            self._socket.sendall(CHUNK_LENGTH.pack(size))
            self._socket.sendall(data)
        return size

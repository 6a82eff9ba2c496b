"""The worker's end of its stream: chunks of an archive, and frames of JSON that say how it went.

A chunk is a 4-byte length and so many bytes; an empty one is the end. A length of all ones breaks an output off: the
frame that follows says why. Nothing is ever sent in part: what interrupts the work waits for the end of what is being
sent, and where that cannot end the stream does.
"""

import io
import json
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

from .trees import Code, Refused

__all__ = ["BROKEN_OFF", "CHUNK_LENGTH", "MAX_ANSWER", "MAX_CHUNK", "Peer"]

CHUNK_LENGTH = struct.Struct(">I")
MAX_CHUNK = 1 << 20
MAX_ANSWER = 16 << 20
BROKEN_OFF = 0xFFFFFFFF
_BLOCK = 256 << 10


class Peer:
    """Whoever asked for the work, through one connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(True)
        self._socket = connected
        self._is_in_output = self._is_sending = False
        self._interruption: Refused | None = None

    def interrupt(self, why: Refused) -> None:
        """For a signal's handler: raises it, or has it raised as soon as what is being sent has been sent."""
        if not self._is_sending:
            raise why
        self._interruption = why

    def say(self, answer: Mapping[str, Any]) -> None:
        self._frame({"ok": answer})

    def fail(self, code: Code, message: str) -> None:
        """The last word. What the other side still sends is read and thrown away, so that it hears this."""
        try:
            if self._is_in_output:
                self._send(CHUNK_LENGTH.pack(BROKEN_OFF))
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
        yield cast("BinaryIO", _Output(self._send))
        self._send(CHUNK_LENGTH.pack(0))
        self._is_in_output = False

    def _frame(self, message: Mapping[str, Any]) -> None:
        body = json.dumps(message).encode()
        if len(body) > MAX_ANSWER:
            raise Refused("too_large", "the names in it are too long for one answer; ask for fewer of them")
        self._send(CHUNK_LENGTH.pack(len(body)) + body)

    def _send(self, data: bytes) -> None:
        """All of it. Where that fails the stream is at its end: nobody could tell what more would belong to."""
        if self._is_sending:
            raise ConnectionError("what was sent before did not all get there")
        self._is_sending = True
        try:
            self._socket.sendall(data)
        except BaseException:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            raise
        self._is_sending = False
        if (why := self._interruption) is not None:
            self._interruption = None
            raise why


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
    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        for start in range(0, len(view), MAX_CHUNK):
            chunk = view[start : start + MAX_CHUNK]
            self._send(b"".join((CHUNK_LENGTH.pack(len(chunk)), chunk)))
        return len(view)

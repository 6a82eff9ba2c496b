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

from arl_cpu.launcher.files.file_tree import FileAccessError, FileErrorCode

__all__ = ["ABORTED_LENGTH", "CHUNK_LENGTH", "MAX_CHUNK", "MAX_RESPONSE", "WorkerStream"]

CHUNK_LENGTH = struct.Struct(">I")
MAX_CHUNK = 1 << 20
MAX_RESPONSE = 16 << 20
ABORTED_LENGTH = 0xFFFFFFFF
_BLOCK = 256 << 10


class WorkerStream:
    """Whoever asked for the work, through one connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(True)
        self._socket = connected
        self._is_in_output = self._is_sending = False
        self._interruption: FileAccessError | None = None

    def interrupt(self, error: FileAccessError) -> None:
        """For a signal's handler: raises it, or has it raised as soon as what is being sent has been sent."""
        if not self._is_sending:
            raise error
        self._interruption = error

    def send_response(self, response: Mapping[str, Any]) -> None:
        self._send_frame({"ok": response})

    def send_error(self, code: FileErrorCode, message: str) -> None:
        """The last word. What the other side still sends is read and thrown away, so that it hears this."""
        try:
            if self._is_in_output:
                self._send(CHUNK_LENGTH.pack(ABORTED_LENGTH))
            self._send_frame({"refused": code, "message": message[:2000]})
            while self._socket.recv(_BLOCK):
                pass
        except OSError:
            return  # nobody is there to be told

    def input_stream(self) -> io.RawIOBase:
        return _ChunkReader(self._socket)

    @contextmanager
    def output_stream(self) -> Iterator[BinaryIO]:
        """Ends the chunks where the work on them ends well."""
        self._is_in_output = True
        yield cast("BinaryIO", _ChunkWriter(self._send))
        self._send(CHUNK_LENGTH.pack(0))
        self._is_in_output = False

    def _send_frame(self, message: Mapping[str, Any]) -> None:
        body = json.dumps(message).encode()
        if len(body) > MAX_RESPONSE:
            raise FileAccessError("too_large", "the names in it are too long for one answer; ask for fewer of them")
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


class _ChunkReader(io.RawIOBase):
    def __init__(self, connected: socket.socket) -> None:
        self._socket, self._remaining, self._ended = connected, 0, False

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        if self._remaining == 0 and not self._ended:
            (self._remaining,) = CHUNK_LENGTH.unpack(self._read_exactly(CHUNK_LENGTH.size))
            self._ended = self._remaining == 0
        if self._ended:
            return 0
        view = memoryview(target)[: self._remaining]
        count = self._socket.recv_into(view)
        if count == 0:
            raise FileAccessError("invalid", "the archive broke off")
        self._remaining -= count
        return count

    def _read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not (more := self._socket.recv(size - len(data))):
                raise FileAccessError("invalid", "the archive broke off")
            data += more
        return data


class _ChunkWriter(io.RawIOBase):
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

"""The worker's end of its stream: chunks of an archive, and JSON frames with results.

A chunk is a 4-byte length and that many bytes; an empty one is the end. A length of all ones aborts an output, and the
next frame gives the reason. Every send is complete: an interruption waits for its end. If a send cannot end, the stream
ends.
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
    """A connection to the client of the operation, through one connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(True)
        self._socket = connected
        self._is_in_output = self._is_sending = False
        self._interruption: FileAccessError | None = None

    def interrupt(self, error: FileAccessError) -> None:
        """Raise the error from a signal handler, or after the current send."""
        if not self._is_sending:
            raise error
        self._interruption = error

    def send_response(self, response: Mapping[str, Any]) -> None:
        """Send the response of a successful operation."""
        self._send_frame({"ok": response})

    def send_error(self, code: FileErrorCode, message: str) -> None:
        """Send a final error. Further input is read and discarded, so that the client can read the error."""
        try:
            if self._is_in_output:
                self._send(CHUNK_LENGTH.pack(ABORTED_LENGTH))
            self._send_frame({"refused": code, "message": message[:2000]})
            while self._socket.recv(_BLOCK):
                pass
        except OSError:
            return  # the client has disconnected

    def input_stream(self) -> io.RawIOBase:
        """Return the input as a stream; it ends with the client's empty chunk."""
        return _ChunkReader(self._socket)

    @contextmanager
    def output_stream(self) -> Iterator[BinaryIO]:
        """Send the chunks of an output. The end chunk is sent only if the block succeeds."""
        self._is_in_output = True
        yield cast("BinaryIO", _ChunkWriter(self._send))
        self._send(CHUNK_LENGTH.pack(0))
        self._is_in_output = False

    def _send_frame(self, message: Mapping[str, Any]) -> None:
        body = json.dumps(message).encode()
        if len(body) > MAX_RESPONSE:
            raise FileAccessError("too_large", "the list of names is too large for one response; request fewer entries")
        self._send(CHUNK_LENGTH.pack(len(body)) + body)

    def _send(self, data: bytes) -> None:
        """Send all of the data. If that fails, close the stream: the client could not parse more."""
        if self._is_sending:
            raise ConnectionError("earlier data was not sent completely")
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
            raise FileAccessError("invalid", "the archive ended early")
        self._remaining -= count
        return count

    def _read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not (more := self._socket.recv(size - len(data))):
                raise FileAccessError("invalid", "the archive ended early")
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

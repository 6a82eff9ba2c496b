"""The channel between launcher and agent: one JSON message per packet with open files; a memfd carries bulk data."""

import errno
import fcntl
import json
import os
import socket
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["PacketChannel", "create_sealed_file", "read_file"]

_MAX_PACKET = 64 << 10
_MAX_FILES = 8
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MAX_FILES * array("i").itemsize)
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class PacketChannel:
    """An end of a SOCK_SEQPACKET pair."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        """Send a message and files. Raises OSError if it is longer than the receiver's limit."""
        packet = json.dumps(message).encode()
        if len(packet) > _MAX_PACKET:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        socket.send_fds(self.socket, [packet], list(files))

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return the next message and its files, or None at the end. Raises ValueError for an invalid message."""
        try:
            # Not socket.recv_fds: it drops its flags, and actions would inherit the files.
            data, beside, _, _ = self.socket.recvmsg(_MAX_PACKET, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return None
        files = array("i")
        for _, _, part in beside:
            files.frombytes(part[: len(part) - len(part) % files.itemsize])
        if not data:
            return None
        try:
            return json.loads(data), files.tolist()
        except (ValueError, RecursionError) as error:
            for file in files:
                os.close(file)
            raise ValueError(f"the message is invalid: {error}") from error

    def close(self) -> None:
        """Close this end of the channel."""
        self.socket.close()


def create_sealed_file(content: bytes) -> int:
    """Create an immutable file in memory, positioned at its start."""
    file = os.memfd_create("tangram", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    return file


def read_file(file: int, size: int | None = None) -> bytes:
    """Read at most `size` bytes of a file, or all of it."""
    if size is None:
        size = os.fstat(file).st_size
    content = bytearray()
    while len(content) < size and (data := os.pread(file, size - len(content), len(content))):
        content += data
    return bytes(content)

"""Bytes in the queues of all sockets of this network namespace. Only a cgroup would count them for a process."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

__all__ = ["SocketMemory"]

_FEW_SOCKETS = 32
"""Minimum number of sockets. The sum of fewer is small and is not computed."""
_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_DONE, _ERROR = 3, 2
_SHOW_QUEUE, _SHOW_MEMORY = 0x10, 0x20
_QUEUE, _MEMORY = 4, 5
_HEADER = struct.Struct("=IHHII")
_UNIX_REQUEST = struct.Struct("=BBHIIIII")
_UNIX_MESSAGE_BYTES = 16
_ATTRIBUTE = struct.Struct("=HH")
_SENT = 2
"""Index of the bytes that were sent and not yet received."""
_INTERNET = ("tcp", "tcp6", "udp", "udp6")
_READ_BYTES = 1 << 17


class SocketMemory:
    """A reader of the queues. Create it before a filter refuses its socket."""

    def __init__(self) -> None:
        self._diagnosis: socket.socket | None = None
        with suppress(OSError):
            self._diagnosis = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)

    def used_bytes(self) -> int:
        """Return the sum over all sockets."""
        try:
            if _count() < _FEW_SOCKETS:
                return 0
            return self._unix_bytes() + sum(map(_internet_bytes, _INTERNET))
        except (OSError, ValueError):
            return 0  # a kernel without these files; the memory of processes is still counted

    def _unix_bytes(self) -> int:
        """Return the bytes between Unix sockets. A sender may be closed, and datagrams are counted for it only."""
        received = sent = 0
        for kind, value in self._unix_attributes():
            if kind == _QUEUE:
                received += struct.unpack_from("=I", value)[0]
            elif kind == _MEMORY:
                sent += struct.unpack_from("=I", value, 4 * _SENT)[0]
        return max(received, sent)

    def _unix_attributes(self) -> Iterator[tuple[int, bytes]]:
        if self._diagnosis is None:
            return
        request = _UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_QUEUE | _SHOW_MEMORY, 0, 0)
        self._diagnosis.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        while True:
            data, at = self._diagnosis.recv(_READ_BYTES), 0
            while at < len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind in (_DONE, _ERROR):
                    return
                yield from _attributes(data[at + _HEADER.size + _UNIX_MESSAGE_BYTES : at + length])
                at += -(-length // 4) * 4


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += max(-(-length // 4) * 4, _ATTRIBUTE.size)


def _count() -> int:
    """Return the number of sockets in this network namespace."""
    with open("/proc/net/sockstat") as file:
        return int(file.readline().split()[-1])


def _internet_bytes(table: str) -> int:
    """Return the sum of the send and receive queues, the fifth column."""
    path = f"/proc/net/{table}"
    if not os.path.exists(path):
        return 0
    with open(path) as file:
        next(file)
        queues = (line.split(maxsplit=5)[4].split(":") for line in file)
        return sum(int(sent, 16) + int(received, 16) for sent, received in queues)

"""DNS messages: the questions of programs and of this process, and their answers."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from arl_core.network.policy import IpAddress

__all__ = ["AAAA", "A", "DnsAnswer", "DnsQuestion", "InvalidMessage", "encode_answer", "encode_question"]

A, AAAA = 1, 28
NO_ERROR, SERVER_FAILURE, NO_SUCH_NAME = 0, 2, 3
_IN = 1
_HEADER = struct.Struct(">6H")
_RECORD = struct.Struct(">HHIH")
_RESPONSE, _TRUNCATED, _RECURSION = 0x8000, 0x0200, 0x0100
_MAX_LABEL, _MAX_NAME, _MAX_POINTERS = 63, 253, 16
_TTL_S = 30
_MAX_ADDRESSES = 16


class InvalidMessage(Exception):
    """Bytes that are not a DNS message of the expected form."""


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    """A query with one question."""

    id: int
    name: str
    """Name in lower case without the last dot."""
    kind: int
    section: bytes
    """The question as it was sent."""
    recursion: int

    @classmethod
    def parse(cls, data: bytes) -> "DnsQuestion":
        """Parse a query. Raises InvalidMessage."""
        if len(data) < _HEADER.size:
            raise InvalidMessage("the message is too short")
        id, flags, questions, *_ = _HEADER.unpack_from(data)
        if flags & _RESPONSE or flags & 0x7800 or questions != 1:
            raise InvalidMessage("this is not a query with one question")
        name, at = _read_name(data, _HEADER.size)
        if len(data) < at + 4:
            raise InvalidMessage("the question is too short")
        kind, network = struct.unpack_from(">HH", data, at)
        if network != _IN:
            raise InvalidMessage("the question is not about the Internet")
        return cls(id, name, kind, data[_HEADER.size : at + 4], flags & _RECURSION)


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """The answer of a name server."""

    code: int
    addresses: tuple[IpAddress, ...]
    is_truncated: bool

    @classmethod
    def parse(cls, data: bytes, asked: DnsQuestion) -> "DnsAnswer":
        """Parse the answer to this question. Raises InvalidMessage."""
        if len(data) < _HEADER.size:
            raise InvalidMessage("the message is too short")
        id, flags, questions, answers, *_ = _HEADER.unpack_from(data)
        if id != asked.id or not flags & _RESPONSE or questions != 1:
            raise InvalidMessage("this is not the answer to the question")
        name, at = _read_name(data, _HEADER.size)
        if name != asked.name:
            raise InvalidMessage("this is the answer to another question")
        at += 4
        addresses: list[IpAddress] = []
        for _ in range(answers):
            _, at = _read_name(data, at)
            if len(data) < at + _RECORD.size:
                break  # a truncated message
            kind, network, _, length = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            content = data[at : at + length]
            if kind == asked.kind and network == _IN and len(content) == (4 if kind == A else 16):
                addresses.append(ip_address(content))
            at += length
        return cls(flags & 0xF, tuple(addresses), bool(flags & _TRUNCATED))


def encode_question(id: int, name: str, kind: int) -> tuple[bytes, DnsQuestion]:
    """Return a query and its question. Raises InvalidMessage for a name that no query can have."""
    labels = name.encode("ascii", "replace").split(b".")
    if len(name) > _MAX_NAME or not all(0 < len(label) <= _MAX_LABEL for label in labels):
        raise InvalidMessage("the name is invalid")
    section = b"".join(bytes([len(label)]) + label for label in labels) + b"\0" + struct.pack(">HH", kind, _IN)
    return _HEADER.pack(id, _RECURSION, 1, 0, 0, 0) + section, DnsQuestion(id, name, kind, section, _RECURSION)


def encode_answer(asked: DnsQuestion, code: int, addresses: Sequence[IpAddress] = ()) -> bytes:
    """Return the answer to a question."""
    flags = _RESPONSE | asked.recursion | 0x80 | code
    shown = addresses[:_MAX_ADDRESSES]
    records = b"".join(
        struct.pack(">H", 0xC000 | _HEADER.size)
        + _RECORD.pack(A if each.version == 4 else AAAA, _IN, _TTL_S, len(each.packed))
        + each.packed
        for each in shown
    )
    return _HEADER.pack(asked.id, flags, 1, len(shown), 0, 0) + asked.section + records


def _read_name(data: bytes, at: int) -> tuple[str, int]:
    """Return a name in lower case and the position behind it. Raises InvalidMessage."""
    labels: list[bytes] = []
    end: int | None = None
    pointers = 0
    while True:
        if at >= len(data):
            raise InvalidMessage("a name is too short")
        length = data[at]
        if length & 0xC0 == 0xC0:
            pointers += 1
            if at + 2 > len(data) or pointers > _MAX_POINTERS:
                raise InvalidMessage("a name is invalid")
            end = end if end is not None else at + 2
            at = int.from_bytes(data[at : at + 2]) & 0x3FFF
            continue
        if length > _MAX_LABEL:
            raise InvalidMessage("a name is invalid")
        at += 1
        if length == 0:
            break
        labels.append(data[at : at + length])
        at += length
    name = b".".join(labels)
    if len(name) > _MAX_NAME or any(not 0x20 < sign < 0x7F for sign in name):
        raise InvalidMessage("a name is invalid")
    return name.decode().lower(), end if end is not None else at

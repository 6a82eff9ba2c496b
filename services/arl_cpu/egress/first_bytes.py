"""Parsers for the first bytes that a program sends: a TLS ClientHello, or the head of an HTTP request."""

import re
from dataclasses import dataclass

__all__ = [
    "HttpHead",
    "InvalidRequest",
    "client_hello_name",
    "is_tls",
    "looks_like_http",
    "parse_authority",
    "parse_head",
]

MAX_HEAD_BYTES = 16 << 10
MAX_HELLO_BYTES = 32 << 10
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
MAX_HELLO_RECORDS = 16
"""Records of a ClientHello. Each arriving part parses them again, so many small ones would cost much."""
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
"""Characters of methods and of names of headers (RFC 9110)."""
_NAME, _VALUE = re.compile(_TOKEN), re.compile(rb"[\x20-\x7e\x80-\xff\t]*")
_REQUEST_LINE = re.compile(rb"(%b) ([\x21-\x7e]+) HTTP/1\.[01]" % _TOKEN)
_REQUEST_START = re.compile(rb"[\r\n \t]*%b [^\r\n]*? HTTP/" % _TOKEN)
_REQUEST_PREFIX = re.compile(rb"[\r\n \t]*(%b( [^\r\n]*)?)?" % _TOKEN)
_HOP_HEADERS = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"upgrade"})


class InvalidRequest(Exception):
    """Bytes that are neither a complete ClientHello nor a valid head of a request."""


@dataclass(frozen=True, slots=True)
class HttpHead:
    """The head of an HTTP/1 request."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    @property
    def host(self) -> bytes:
        """The only Host header. Raises InvalidRequest if there is none or more than one."""
        hosts = [value for name, value in self.headers if name.lower() == b"host"]
        if len(hosts) != 1:
            raise InvalidRequest("a request needs exactly one Host header")
        return hosts[0]

    def encode(self, target: bytes) -> bytes:
        """Return the head with another target. The receiver closes the connection after its response.

        Otherwise later requests on the connection could name another host.
        """
        kept = [(name, value) for name, value in self.headers if name.lower() not in _HOP_HEADERS]
        lines = [b"%b %b HTTP/1.1" % (self.method, target)]
        lines += [b"%b: %b" % header for header in (*kept, (b"Connection", b"close"))]
        return b"\r\n".join(lines) + b"\r\n\r\n"


def parse_head(head: bytes) -> HttpHead:
    """Parse a head with its empty last line. Raises InvalidRequest for a form that parsers may read differently."""
    if len(head) > MAX_HEAD_BYTES:
        raise InvalidRequest(f"the head is longer than {MAX_HEAD_BYTES} bytes")
    request_line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    found = _REQUEST_LINE.fullmatch(request_line)
    if found is None:
        raise InvalidRequest("the first line is not the request line of HTTP/1")
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        if not colon or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise InvalidRequest("a header is invalid")
        headers.append((name, value))
    return HttpHead(found[1].upper(), found[2], tuple(headers))


def parse_authority(text: bytes, default_port: int | None = None) -> tuple[str, int]:
    """Return host in lower case and port of `HOST:PORT`, `[ADDRESS]:PORT` or `HOST`. Raises InvalidRequest."""
    try:
        authority = text.decode("ascii").lower()
    except UnicodeDecodeError:
        raise InvalidRequest("the host is not ASCII") from None
    host, separator, port = authority.rpartition(":")
    if not separator or authority.endswith("]"):
        host, port = authority, ""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidRequest("an IPv6 address needs brackets")
    host = host.removesuffix(".")
    if not host or any(sign in host for sign in "/@?#\\ []%"):
        raise InvalidRequest("the host is invalid")
    if not port and default_port is not None:
        return host, default_port
    if not port.isdecimal() or len(port) > 5 or not 1 <= int(port) <= 65_535:
        raise InvalidRequest("the port is invalid")
    return host, int(port)


def is_tls(data: bytes) -> bool:
    """Return True if the bytes begin like a TLS record with a handshake."""
    return data[:1] == bytes([_HANDSHAKE])


def looks_like_http(data: bytes) -> bool | None:
    """Return True if the bytes begin like a request of HTTP/1 or HTTP/2, and None if more bytes decide it."""
    if _REQUEST_START.match(data) is not None:
        return True
    return None if _REQUEST_PREFIX.fullmatch(data) is not None else False


def client_hello_name(data: bytes) -> tuple[bool, str | None]:
    """Return whether a ClientHello is complete, and its server name in lower case. Raises InvalidRequest."""
    message = bytearray()
    at = records = 0
    while at + 5 <= len(data):
        records += 1
        if records > MAX_HELLO_RECORDS:
            raise InvalidRequest("the TLS ClientHello has too many records")
        kind, length = data[at], int.from_bytes(data[at + 3 : at + 5])
        if kind != _HANDSHAKE or data[at + 1] != 3 or not 0 < length <= 1 << 14:
            raise InvalidRequest("this is not a TLS ClientHello")
        message += data[at + 5 : at + 5 + length]
        at += 5 + length
        if len(message) >= 4:
            if message[0] != _CLIENT_HELLO:
                raise InvalidRequest("this is not a TLS ClientHello")
            size = int.from_bytes(message[1:4])
            if size > MAX_HELLO_BYTES:
                raise InvalidRequest("the TLS ClientHello is too long")
            if len(message) >= 4 + size:
                return True, _server_name(bytes(message[4 : 4 + size]))
    if len(data) > MAX_HELLO_BYTES + 4096:
        raise InvalidRequest("the TLS ClientHello is too long")
    return False, None


def _server_name(hello: bytes) -> str | None:
    try:
        rest = hello[34:]  # version and random
        rest = rest[1 + rest[0] :]  # session id
        rest = rest[2 + int.from_bytes(rest[:2]) :]  # cipher suites
        rest = rest[1 + rest[0] :]  # compression methods
    except IndexError:
        raise InvalidRequest("the TLS ClientHello is invalid") from None
    extensions = rest[2 : 2 + int.from_bytes(rest[:2])]
    names = []
    while len(extensions) >= 4:
        kind, length = int.from_bytes(extensions[:2]), int.from_bytes(extensions[2:4])
        if kind == _SERVER_NAME:
            names.append(_host_name(extensions[4 : 4 + length]))
        extensions = extensions[4 + length :]
    if len(names) > 1:
        raise InvalidRequest("the TLS ClientHello has several server names")
    return names[0] if names else None


def _host_name(extension: bytes) -> str:
    length = int.from_bytes(extension[3:5])
    if len(extension) != 5 + length or extension[2] != _HOST_NAME or int.from_bytes(extension[:2]) != 3 + length:
        raise InvalidRequest("the server name of the TLS ClientHello is invalid")
    return parse_authority(extension[5:], 443)[0]

"""Handlers of the sockets of an environment: the proxy, TLS by server name, HTTP by Host header, and DNS."""

import asyncio
from urllib.parse import urlsplit

from arl_core.network.policy import parse_address
from arl_cpu.egress import first_bytes
from arl_cpu.egress.dialer import TargetRefused
from arl_cpu.egress.dns_messages import (
    NO_ERROR,
    NO_SUCH_NAME,
    SERVER_FAILURE,
    A,
    DnsQuestion,
    InvalidMessage,
    encode_answer,
)
from arl_cpu.egress.first_bytes import InvalidRequest
from arl_cpu.egress.gate import EnvironmentGate, GateConnection
from arl_cpu.egress.resolver import ResolveFailed

__all__ = ["DnsServer", "serve_http", "serve_proxy", "serve_tls"]

_FIRST_BYTES_TIMEOUT_S = 20.0
_HTTP_PORT, _TLS_PORT, _DNS_PORT, _PROXY_PORT = 80, 443, 53, 3128


async def serve_proxy(connection: GateConnection) -> None:
    """Serve a request to the proxy: CONNECT, or a request with a complete URL."""
    try:
        head = first_bytes.parse_head(await _read_head(connection))
        if head.method == b"CONNECT":
            await _serve_connect(connection, head)
            return
        url = urlsplit(head.target.decode("ascii"))
        if url.scheme.lower() != "http":
            raise InvalidRequest("the proxy serves CONNECT and URLs with `http`")
        host, port = first_bytes.parse_authority(url.netloc.encode(), _HTTP_PORT)
        await _forward_request(connection, head, host, port, target=url._replace(scheme="", netloc="").geturl())
    except (InvalidRequest, ValueError) as error:
        await _answer(connection, "400 Bad Request", str(error))
        raise TargetRefused("", _PROXY_PORT, "invalid") from error


async def serve_http(connection: GateConnection) -> None:
    """Serve a request that a program sent to port 80 of any address. Its Host header names the target."""
    try:
        head = first_bytes.parse_head(await _read_head(connection))
        host, _ = first_bytes.parse_authority(head.host, _HTTP_PORT)
        if not head.target.startswith(b"/") and head.target != b"*":
            raise InvalidRequest("the target of the request is not a path")
        await _forward_request(connection, head, host, _HTTP_PORT, target=head.target.decode("ascii"))
    except (InvalidRequest, ValueError) as error:
        await _answer(connection, "400 Bad Request", str(error))
        raise TargetRefused(_own_address(connection), _HTTP_PORT, "invalid") from error


async def serve_tls(connection: GateConnection) -> None:
    """Serve a TLS connection that a program made to port 443 of any address. Its server name is the target."""
    address = _own_address(connection)
    try:
        hello, name = await _read_hello(connection)
    except InvalidRequest as error:
        raise TargetRefused(address, _TLS_PORT, "invalid") from error
    policy = connection.gate.policy
    host = name if name is not None and policy.allows(name, _TLS_PORT) else address
    if not policy.allows(host, _TLS_PORT):
        raise TargetRefused(name or address, _TLS_PORT, "not_allowed")
    try:
        reader, writer = await connection.connect(host, _TLS_PORT)
    except ResolveFailed:
        return
    await connection.send_first(hello, writer)
    await connection.relay(reader, writer)


class DnsServer(asyncio.DatagramProtocol):
    """The name server of an environment. It answers only about names that the policy allows."""

    def __init__(self, gate: EnvironmentGate) -> None:
        self._gate = gate
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = transport  # type: ignore[assignment]  # the transport of a datagram endpoint

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer a query. Queries above the limit get no answer, and programs repeat them."""
        try:
            asked = DnsQuestion.parse(data)
        except InvalidMessage:
            return
        if not self._gate.policy.resolves(asked.name):
            self._gate.refuse(asked.name, _DNS_PORT, "not_allowed")
            self._send(encode_answer(asked, NO_SUCH_NAME), addr)
        elif asked.kind != A:
            self._send(encode_answer(asked, NO_ERROR), addr)
        elif not self._gate.lookups.locked():
            task = asyncio.get_running_loop().create_task(self._resolve(asked, addr))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _resolve(self, asked: DnsQuestion, addr: tuple[str, int]) -> None:
        async with self._gate.lookups:
            try:
                found = await self._gate.dialer.addresses(asked.name, _DNS_PORT)
                answer = encode_answer(asked, NO_ERROR, [each for each in found if each.version == 4])
            except ResolveFailed as failed:
                answer = encode_answer(asked, NO_SUCH_NAME if "has no address" in str(failed) else SERVER_FAILURE)
            except TargetRefused as refused:
                self._gate.refuse(refused.host, refused.port, refused.reason)
                answer = encode_answer(asked, NO_SUCH_NAME)
        self._send(answer, addr)

    def _send(self, answer: bytes, addr: tuple[str, int]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(answer, addr)


async def _serve_connect(connection: GateConnection, head: first_bytes.HttpHead) -> None:
    host, port = first_bytes.parse_authority(head.target)
    found = await _connect(connection, host, port)
    if found is None:
        return
    connection.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    await connection.writer.drain()
    await connection.relay(*found, check_first=lambda: _checked_first_bytes(connection, host, port))


async def _checked_first_bytes(connection: GateConnection, host: str, port: int) -> bytes:
    """Return the first bytes in a tunnel. Raises TargetRefused if they name another host than the tunnel's."""
    if connection.gate.policy.mode == "open" or parse_address(host) is not None:
        return b""
    data = await connection.reader.read(1)
    if first_bytes.is_tls(data):
        try:
            data, name = await _read_hello(connection, data)
        except InvalidRequest as error:
            raise TargetRefused(host, port, "invalid") from error
        if name not in (None, host):
            raise TargetRefused(name or "", port, "name_mismatch")
        return data
    while data and (is_http := first_bytes.looks_like_http(data)) is None:
        if len(data) > first_bytes.MAX_HEAD_BYTES or not (more := await connection.reader.read(4096)):
            return data
        data += more
    if data and is_http:
        data = await _read_head(connection, data)
        try:
            head, _, rest = data.partition(b"\r\n\r\n")
            parsed = first_bytes.parse_head(head + b"\r\n\r\n")
            named, _ = first_bytes.parse_authority(parsed.host, port)
        except InvalidRequest as error:
            raise TargetRefused(host, port, "invalid") from error
        if named != host:
            raise TargetRefused(named, port, "name_mismatch")
        return parsed.encode(parsed.target) + rest
    return data


async def _forward_request(
    connection: GateConnection, head: first_bytes.HttpHead, host: str, port: int, *, target: str
) -> None:
    """Forward one request and its response."""
    if first_bytes.parse_authority(head.host, port)[0] != host:
        await _answer(connection, "403 Forbidden", "the Host header names another host than the URL")
        raise TargetRefused(first_bytes.parse_authority(head.host, port)[0], port, "name_mismatch")
    found = await _connect(connection, host, port)
    if found is not None:
        reader, writer = found
        await connection.send_first(head.encode((target or "/").encode()), writer)
        await connection.relay(reader, writer)


async def _connect(
    connection: GateConnection, host: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """Connect, or answer the request with the reason. Raises TargetRefused after the answer."""
    try:
        return await connection.connect(host, port)
    except TargetRefused as refused:
        text = f"the network policy of the environment refuses {host}:{port}: {refused.reason}"
        await _answer(connection, "403 Forbidden", text)
        raise
    except (ResolveFailed, OSError) as error:
        text = "its name has no address" if isinstance(error, ResolveFailed) else "it does not answer"
        await _answer(connection, "502 Bad Gateway", f"{host}:{port} cannot be reached: {text}")
        return None


async def _answer(connection: GateConnection, status: str, text: str) -> None:
    body = f"{text}\n".encode(errors="replace")
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    connection.writer.write(head.encode() + body)
    await connection.writer.drain()


async def _read_head(connection: GateConnection, data: bytes = b"") -> bytes:
    """Return the bytes up to the end of a head; after `data`, also what has arrived behind it."""
    async with asyncio.timeout(_FIRST_BYTES_TIMEOUT_S):
        if not data:
            return await connection.reader.readuntil(b"\r\n\r\n")
        while b"\r\n\r\n" not in data:
            if len(data) > first_bytes.MAX_HEAD_BYTES or not (more := await connection.reader.read(1024)):
                raise ConnectionError("the head of the request does not end")
            data += more
    return data


async def _read_hello(connection: GateConnection, data: bytes = b"") -> tuple[bytes, str | None]:
    """Return a complete ClientHello and its server name. Raises InvalidRequest and ConnectionError."""
    async with asyncio.timeout(_FIRST_BYTES_TIMEOUT_S):
        while True:
            is_complete, name = first_bytes.client_hello_name(data)
            if is_complete:
                return data, name
            if not (more := await connection.reader.read(4096)):
                raise ConnectionError("the connection ended within its ClientHello")
            data += more


def _own_address(connection: GateConnection) -> str:
    """Return the address that the program connected to."""
    return str(connection.writer.get_extra_info("sockname")[0])

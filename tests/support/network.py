"""A small Internet on this machine: a name server with answers of the test, and servers that record connections."""

import asyncio
import io
import json
import os
import struct
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from arl_cpu.contract.executor import EnvironmentSpec
from support.sandbox import Bench, a_program

PUBLIC = f"127.7.{os.getpid() >> 8 & 0xFF}.{os.getpid() & 0xFF or 1}"
"""An address of this machine that stands for a public one; the egress process gets it as permitted. Each test process
has its own."""
VARIABLES_NETWORK = f"{PUBLIC}/32"

CLIENT = """
import json, socket, ssl

def read_all(end):
    end.settimeout(10)
    data = b""
    try:
        while more := end.recv(65536):
            data += more
    except ConnectionError:
        pass
    return data.decode(errors="replace")

def through_proxy(text, then=b""):
    with socket.create_connection(("127.0.0.1", 3128), 10) as end:
        end.sendall(text.encode())
        if not then:
            return read_all(end)
        first = end.recv(65536).decode()
        if " 200 " not in first:
            return first
        end.sendall(then)
        return read_all(end)

def connect(target, then=b"GET / HTTP/1.1\\r\\nHost: good.example\\r\\n\\r\\n"):
    return through_proxy(f"CONNECT {target} HTTP/1.1\\r\\n\\r\\n", then)

def get(url, host):
    return through_proxy(f"GET {url} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n")

def directly(address, port, data):
    with socket.create_connection((address, port), 10) as end:
        end.sendall(data)
        return read_all(end)

def hello(name):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()

def http(host, path="/"):
    return f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode()

def report(**attempts):
    found = {}
    for name, attempt in attempts.items():
        try:
            found[name] = str(attempt())
        except OSError as error:
            found[name] = f"error {error}"
    print(json.dumps(found))
"""


@dataclass
class SmallInternet:
    """The servers and names of a test."""

    names: dict[str, list[str]] = field(default_factory=dict)
    """Addresses by name. If there are several, each query takes the next one and the last one stays."""
    pages: dict[str, bytes] = field(default_factory=dict)
    """Bodies by path."""
    queries: list[str] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    """First bytes of each connection to the public servers."""
    private: list[bytes] = field(default_factory=list)
    """What reached the private server or the UDP server."""
    dns_port: int = 0
    private_port: int = 0
    udp_port: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """The settings of a launcher in this Internet."""
        resolvers = f"127.0.0.1:{self.dns_port}"
        return {"TANGRAM_NETWORK_PRIVATE": VARIABLES_NETWORK, "TANGRAM_NETWORK_RESOLVERS": resolvers}

    def publish(self, package: str, source: str) -> bytes:
        """Add a package with one module to the package index below `/simple/`, and return its wheel."""
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr(f"{package}.py", source)
            info = f"{package}-1.0.dist-info"
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        file, wheel = f"{package}-1.0-py3-none-any.whl", content.getvalue()
        self.pages |= {f"/simple/{package}/": f'<a href="/{file}">{file}</a>'.encode(), f"/{file}": wheel}
        return wheel

    def answer(self, query: bytes) -> bytes:
        """Return the answer to a DNS query."""
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        name, (kind,) = ".".join(labels), struct.unpack_from(">H", query, at + 1)
        self.queries.append(name)
        section = query[12 : at + 5]
        addresses = self.names.get(name, [])
        found = [addresses[0] if len(addresses) == 1 or kind != 1 else addresses.pop(0)] if addresses else []
        packed = [each.packed for each in map(ip_address, found) if each.version == (4 if kind == 1 else 6)]
        records = b"".join(struct.pack(">HHHIH", 0xC00C, kind, 1, 1, len(each)) + each for each in packed)
        code = 0 if addresses else 3
        return query[:2] + struct.pack(">5H", 0x8180 | code, 1, len(packed), 0, 0) + section + records

    async def serve_public(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer HTTP requests and anything else. `/hold` gets no end, `/away` is a redirect."""
        data = await reader.read(65536)
        self.received.append(data)
        if data.startswith(b"GET /hold"):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nheld\n")
            await reader.read()
        elif (page := self.pages.get(data[4:].partition(b" ")[0].decode(errors="replace"))) is not None:
            kind = b"text/html" if page.startswith(b"<") else b"application/octet-stream"
            head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, len(page))
            writer.write(head + page)
        elif data.startswith(b"GET /away"):
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n")
        elif data[:1].isalpha():
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
        elif data:
            writer.write(b"tls reached")
        writer.close()

    async def serve_private(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Record that a connection arrived."""
        self.private.append(b"connected")
        writer.write(b"secret")
        writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, internet: SmallInternet, *, is_dns: bool) -> None:
        self._internet, self._is_dns = internet, is_dns

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self._is_dns:
            self._transport.sendto(self._internet.answer(data), addr)  # type: ignore[attr-defined]
        else:
            self._internet.private.append(data)


@asynccontextmanager
async def a_small_internet(*ports: int) -> AsyncIterator[SmallInternet]:
    """Serve names, the ports at the public address, and a private server on loopback."""
    internet, loop = SmallInternet(), asyncio.get_running_loop()
    dns, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(internet, is_dns=True), local_addr=("127.0.0.1", 0))
    udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(internet, is_dns=False), local_addr=(PUBLIC, 0))
    private = await asyncio.start_server(internet.serve_private, "127.0.0.1", 0)
    public = [await asyncio.start_server(internet.serve_public, PUBLIC, port) for port in ports]
    internet.dns_port, internet.udp_port = dns.get_extra_info("sockname")[1], udp.get_extra_info("sockname")[1]
    internet.private_port = private.sockets[0].getsockname()[1]
    try:
        yield internet
    finally:
        for transport in (dns, udp):
            transport.close()
        for server in (private, *public):
            server.close()


async def attempts(sandbox: Bench, environment: EnvironmentSpec, **expressions: str) -> tuple[dict[str, str], Any]:
    """Run the attempts inside. Return their results and the use of the network."""
    lines = ", ".join(f"{name}=lambda: {expression}" for name, expression in expressions.items())
    report = await sandbox.run(a_program(f"{CLIENT}\nreport({lines})", environment=environment))
    assert report.outcome == "ok", report
    return json.loads(report.stdout.data), report.network


def reasons(network: Any) -> set[tuple[str, int, str]]:
    return {(each["host"], each["port"], each["reason"]) for each in network["refusals"]}

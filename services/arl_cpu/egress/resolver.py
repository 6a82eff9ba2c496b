"""Resolution of host names by the host's name servers, without threads and without a cache."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from arl_core.network.addresses import NameServer
from arl_core.network.policy import IpAddress, parse_address
from arl_cpu.egress.dns_messages import AAAA, NO_ERROR, NO_SUCH_NAME, A, DnsAnswer, InvalidMessage, encode_question

__all__ = ["DnsResolver", "HostResolver", "ResolveFailed"]

_TIMEOUT_S = 2.0
_ROUNDS = 2
_MAX_SERVERS = 3


class ResolveFailed(Exception):
    """A name without an address, or name servers that do not answer."""


class HostResolver(Protocol):
    """A source of addresses."""

    async def resolve(self, name: str) -> Sequence[IpAddress]:
        """Return the addresses of a name in lower case. Raises ResolveFailed."""
        ...


class DnsResolver:
    """A client of name servers. Names of `/etc/hosts` take precedence."""

    def __init__(self, servers: Sequence[NameServer], hosts: Mapping[str, Sequence[IpAddress]]) -> None:
        self._servers, self._hosts = servers, hosts

    @classmethod
    def of_this_host(cls, servers: Sequence[NameServer] = (), etc: Path = Path("/etc")) -> "DnsResolver":
        """Return a resolver with these servers, or with those of `resolv.conf`."""
        return cls(servers or _configured_servers(etc / "resolv.conf"), _known_hosts(etc / "hosts"))

    async def resolve(self, name: str) -> Sequence[IpAddress]:
        """Return the IPv4 addresses of a name, or its IPv6 addresses if it has no other."""
        if (known := self._hosts.get(name)) is not None:
            return known
        return await self._ask_all(name, A) or await self._ask_all(name, AAAA) or _fail(name, "has no address")

    async def _ask_all(self, name: str, kind: int) -> Sequence[IpAddress]:
        problem = "no name server is configured"
        for _ in range(_ROUNDS):
            for server in self._servers:
                try:
                    answer = await _ask(server, name, kind)
                except (OSError, TimeoutError, InvalidMessage) as error:
                    problem = f"name server {server.address} did not answer: {error or 'timeout'}"
                    continue
                if answer.code in (NO_ERROR, NO_SUCH_NAME):
                    return answer.addresses
                problem = f"name server {server.address} answered with code {answer.code}"
        return _fail(name, problem)


def _fail(name: str, problem: str) -> Sequence[IpAddress]:
    raise ResolveFailed(f"{name}: {problem}")


async def _ask(server: NameServer, name: str, kind: int) -> DnsAnswer:
    query, asked = encode_question(secrets.randbelow(1 << 16), name, kind)
    async with asyncio.timeout(_TIMEOUT_S):
        answer = DnsAnswer.parse(await _exchange(server, query), asked)
        if answer.is_truncated:
            answer = DnsAnswer.parse(await _exchange_by_tcp(server, query), asked)
        return answer


async def _exchange(server: NameServer, query: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(_OneDatagram, remote_addr=(server.address, server.port))
    try:
        transport.sendto(query)
        return await protocol.received
    finally:
        transport.close()


async def _exchange_by_tcp(server: NameServer, query: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(server.address, server.port)
    try:
        writer.write(len(query).to_bytes(2) + query)
        try:
            return await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        except asyncio.IncompleteReadError as error:
            raise InvalidMessage("the answer is too short") from error
    finally:
        writer.close()


class _OneDatagram(asyncio.DatagramProtocol):
    """The first datagram of a connected socket, which accepts only those of its server."""

    def __init__(self) -> None:
        self.received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        """Deliver the first datagram."""
        if not self.received.done():
            self.received.set_result(data)

    def error_received(self, exc: Exception) -> None:
        """Deliver an error, such as a refusal by the server's host."""
        if not self.received.done():
            self.received.set_exception(exc)


def _configured_servers(path: Path) -> tuple[NameServer, ...]:
    found = []
    for line in _lines(path):
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver" and parse_address(words[1]) is not None:
            found.append(NameServer(words[1]))
    return tuple(found[:_MAX_SERVERS])


def _known_hosts(path: Path) -> dict[str, tuple[IpAddress, ...]]:
    found: dict[str, tuple[IpAddress, ...]] = {}
    for line in _lines(path):
        address, *names = line.partition("#")[0].split() or [""]
        if (parsed := parse_address(address)) is not None:
            for name in names:
                found[name.lower()] = (*found.get(name.lower(), ()), parsed)
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []

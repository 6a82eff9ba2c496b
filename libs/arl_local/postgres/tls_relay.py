"""`python -m arl_local.postgres.tls_relay`: serve the embedded Postgres to nodes on other machines, over TLS.

The binaries of the embedded Postgres are built without TLS. The relay accepts TLS connections and passes them to the
private Unix socket. It refuses addresses outside the networks of the cluster, and roles that are not those of nodes:
the owner and the services connect from this machine only.
"""

import asyncio
import logging
import os
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path

import uvloop
from pydantic import Field, IPvAnyNetwork, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from arl_core.domain.states import MANAGER_ROLES
from arl_kit.settings import load_settings
from arl_local.state_dir import bind
from arl_store.guards import role_name

__all__ = ["DatabaseRelay", "RelaySettings", "node_role_of", "tls_context"]

_PROTOCOL_3, _CANCEL_REQUEST = 0x30000, 80877102
_MAX_STARTUP_BYTES = 10_000
_STARTUP_TIMEOUT_S = 10.0
_CHUNK_BYTES = 256 << 10
_AUTHENTICATION_OK = 0
_AUTHENTICATION_QUESTIONS = frozenset({10, 11})
"""Kinds of authentication messages that the client answers: SASL and SASLContinue (scram-sha-256)."""
MAX_CONNECTIONS, MAX_PER_ADDRESS, MAX_LOGINS_PER_ADDRESS = 240, 120, 24
_ACCEPT_PAUSE_S, _BACKLOG = 0.2, 128
IPAddress = IPv4Address | IPv6Address
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_ALPN = "postgresql"

log = logging.getLogger(__name__)


class RelaySettings(BaseSettings):
    """The settings from `TANGRAM_*` environment variables."""

    model_config = SettingsConfigDict(env_prefix="TANGRAM_", frozen=True, extra="ignore")

    host: str = Field(description="Address on which nodes connect")
    port: int = Field(ge=1, le=65535)
    networks: tuple[IPvAnyNetwork, ...] = Field(description="Networks whose addresses may connect")
    database: str = Field(description="Name of the database, which is the prefix of its roles")
    socket: Path = Field(description="Unix socket of Postgres")
    certificate_pem: str = Field(description="Certificate of the server")
    key_pem: SecretStr = Field(description="Private key of the server")


def node_role_of(startup: bytes, database: str) -> str | None:
    """Return the role in a startup message if it is that of one node of this database, or None."""
    words = startup[8:].split(b"\0")
    given = dict(zip(words[::2], words[1::2], strict=False))
    user, wanted = (
        given.get(b"user", b"").decode(errors="replace"),
        given.get(b"database", b"").decode(errors="replace"),
    )
    prefixes = tuple(f"{role_name(database, role)}_" for role in MANAGER_ROLES)
    return user if wanted == database and user.startswith(prefixes) else None


class _Refused(Exception):
    """A connection that is answered with an error, by its SQLSTATE and its message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class DatabaseRelay:
    """The relay for one embedded Postgres."""

    def __init__(
        self,
        server: Path,
        *,
        database: str,
        networks: Sequence[IPv4Network | IPv6Network],
        max_connections: int = MAX_CONNECTIONS,
        max_logins: int = MAX_LOGINS_PER_ADDRESS,
    ) -> None:
        """Create a relay.

        Args:
            server: The Unix socket of Postgres.
            database: Name of the database, which is the prefix of its roles.
            networks: Networks whose addresses may connect.
            max_connections: Maximum number of connections to Postgres. The others are for the services.
            max_logins: Maximum number of connections of one address that have not logged in.
        """
        self._server = server
        self._database = database
        self._networks = networks
        self._max_connections = max_connections
        self._max_logins = max_logins
        self._connected: Counter[IPAddress] = Counter()
        self._logins: Counter[IPAddress] = Counter()

    async def serve_forever(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """Accept connections of a listening socket that does not block, until this call is cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as connections:
            while True:
                try:
                    accepted, address = await loop.sock_accept(listener)
                except OSError as error:  # no descriptor is free, or the client has gone
                    log.warning("a connection could not be accepted: %s", error)
                    await asyncio.sleep(_ACCEPT_PAUSE_S)
                    continue
                connections.create_task(self._serve(accepted, ip_address(address[0].partition("%")[0]), context))

    async def _serve(self, accepted: socket.socket, peer: IPAddress, context: ssl.SSLContext) -> None:
        """Serve one connection until either side closes it. Its address is checked before TLS."""
        if self._logins[peer] >= self._max_logins or not self._is_in_network(peer):
            accepted.close()
            return
        _keep_alive(accepted)
        client = None
        self._logins[peer] += 1
        try:
            try:
                async with asyncio.timeout(_STARTUP_TIMEOUT_S):
                    client = await _start_tls(accepted, context)
                    upstream = await self._log_in(peer, *client)
            finally:
                self._logins[peer] -= 1
            if upstream is not None:
                await self._relay(peer, client, upstream)
        except _Refused as error:
            log.warning("a connection of %s was refused: %s", peer, error)
            if client is not None:
                await _send_error(client[1], error)
        except (OSError, TimeoutError, EOFError) as error:
            log.info("the connection of %s ended: %s", peer, error or type(error).__name__)
        finally:
            if client is not None:
                await _close(client[1])
            accepted.close()

    def _is_in_network(self, peer: IPAddress) -> bool:
        if any(peer in network for network in self._networks):
            return True
        log.warning("%s is outside the networks of this cluster (tangram up --network)", peer)
        return False

    async def _log_in(
        self, peer: IPAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Streams | None:
        """Return the connection to Postgres after a login, or None if Postgres refused it. Raises `_Refused`.

        Postgres itself checks the password. Until it accepts it, the connection counts as a login.
        """
        length, code = struct.unpack("!II", head := await reader.readexactly(8))
        if not 8 <= length <= _MAX_STARTUP_BYTES:
            return None
        startup = head + await reader.readexactly(length - 8)
        is_cancel = code == _CANCEL_REQUEST
        if not is_cancel and (code >> 16 != _PROTOCOL_3 >> 16 or node_role_of(startup, self._database) is None):
            raise _Refused("28000", "only nodes that joined may connect from other machines")
        if self._connected.total() >= self._max_connections or self._connected[peer] >= MAX_PER_ADDRESS:
            raise _Refused("53300", "the nodes have too many connections to the Postgres of this system")
        try:
            upstream = await asyncio.open_unix_connection(str(self._server), limit=_CHUNK_BYTES)
        except OSError:
            raise _Refused("57P03", "the Postgres of this system is starting or stopped") from None
        is_accepted = False
        try:
            upstream[1].write(startup)
            is_accepted = is_cancel or await _pass_login((reader, writer), upstream)
        finally:
            if not is_accepted:
                upstream[1].transport.abort()  # a client that does not log in occupies no connection to Postgres
        return upstream if is_accepted else None

    async def _relay(self, peer: IPAddress, client: _Streams, upstream: _Streams) -> None:
        self._connected[peer] += 1
        pumps = [
            asyncio.create_task(_pump(client[0], upstream[1])),
            asyncio.create_task(_pump(upstream[0], client[1])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._connected[peer] -= 1
            await _close(upstream[1])


async def _pass_login(client: _Streams, upstream: _Streams) -> bool:
    """Pass the messages of a login. Return True after Postgres has accepted it, and False after its error."""
    while True:
        head = await upstream[0].readexactly(5)
        kind, length = head[:1], struct.unpack("!I", head[1:])[0]
        body = await upstream[0].readexactly(length - 4)
        client[1].write(head + body)
        await client[1].drain()
        if kind != b"R":
            return False
        answer = struct.unpack("!I", body[:4])[0]
        if answer == _AUTHENTICATION_OK:
            return True
        if answer in _AUTHENTICATION_QUESTIONS:
            head = await client[0].readexactly(5)
            length = struct.unpack("!I", head[1:])[0]
            if not 4 <= length <= _MAX_STARTUP_BYTES:
                return False
            upstream[1].write(head + await client[0].readexactly(length - 4))


def _keep_alive(accepted: socket.socket) -> None:
    """Notice a node that lost its power or its network, so that its connections end."""
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 10),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_KEEPCNT, 4),
        (socket.TCP_USER_TIMEOUT, 30_000),
    ):
        accepted.setsockopt(socket.IPPROTO_TCP, option, value)


async def _start_tls(accepted: socket.socket, context: ssl.SSLContext) -> _Streams:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, accepted, ssl=context, ssl_handshake_timeout=_STARTUP_TIMEOUT_S
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _send_error(writer: asyncio.StreamWriter, error: _Refused) -> None:
    """Send an error as Postgres sends it."""
    lines = ((b"S", "FATAL"), (b"C", error.code), (b"M", str(error)))
    fields = b"".join(tag + text.encode() + b"\0" for tag, text in lines) + b"\0"
    writer.write(b"E" + struct.pack("!I", len(fields) + 4) + fields)
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(1):
            await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError, ssl.SSLError, TimeoutError):
        async with asyncio.timeout(1):
            await writer.wait_closed()


def tls_context(certificate_pem: str, key_pem: str) -> ssl.SSLContext:
    """Return the context of the server. OpenSSL reads the key from a file, which exists in memory only."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    memory = os.memfd_create("tangram-server-key")
    try:
        os.write(memory, f"{key_pem}\n{certificate_pem}".encode())
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)
    context.set_alpn_protocols([_ALPN])
    return context


async def _run(settings: RelaySettings) -> None:
    context = tls_context(settings.certificate_pem, settings.key_pem.get_secret_value())
    relay = DatabaseRelay(settings.socket, database=settings.database, networks=settings.networks)
    with bind(settings.host, settings.port) as listener:
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        await relay.serve_forever(listener, context)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    uvloop.run(_run(load_settings(RelaySettings)))

"""`python -m arl_local.postgres.tls_relay`: serve the embedded Postgres to nodes on other machines, over TLS.

The binaries of the embedded Postgres are built without TLS. The relay accepts TLS connections and passes them to the
private Unix socket. It refuses addresses outside the networks of the cluster, and roles that are not those of nodes:
the owner and the services connect from this machine only.
"""

import asyncio
import logging
import os
import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path

import uvloop
from pydantic import Field, IPvAnyNetwork, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from arl_core.domain.states import MANAGER_ROLES
from arl_kit.settings import load_settings
from arl_store.guards import role_name

__all__ = ["DatabaseRelay", "RelaySettings", "node_role_of", "tls_context"]

_PROTOCOL_3, _CANCEL_REQUEST = 0x30000, 80877102
_MAX_STARTUP_BYTES = 10_000
_STARTUP_TIMEOUT_S = 10.0
_CHUNK_BYTES = 256 << 10
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


class DatabaseRelay:
    """The relay for one embedded Postgres."""

    def __init__(self, socket: Path, *, database: str, networks: Sequence[IPv4Network | IPv6Network]) -> None:
        self._socket = socket
        self._database = database
        self._networks = networks

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a node until either side closes it."""
        try:
            if (startup := await self._admitted(reader, writer)) is None:
                return
            upstream_reader, upstream = await asyncio.open_unix_connection(str(self._socket), limit=_CHUNK_BYTES)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            log.info("a connection ended before it began: %s", error or type(error).__name__)
            return
        finally:
            if writer.transport.is_closing():
                await _close(writer)
        upstream.write(startup)
        pumps = [asyncio.create_task(_pump(reader, upstream)), asyncio.create_task(_pump(upstream_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            await _close(upstream)
            await _close(writer)

    async def _admitted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """Return the startup message of a permitted connection. Answer others with an error, and close them."""
        peer = ip_address(str(writer.get_extra_info("peername")[0]).partition("%")[0])
        async with asyncio.timeout(_STARTUP_TIMEOUT_S):
            head = await reader.readexactly(8)
            length, code = struct.unpack("!II", head)
            if not 8 <= length <= _MAX_STARTUP_BYTES:
                writer.transport.abort()
                return None
            startup = head + await reader.readexactly(length - 8)
        if not any(peer in network for network in self._networks):
            await _refuse(writer, f"{peer} is outside the networks of this cluster (tangram up --network)")
            return None
        if code == _CANCEL_REQUEST:
            return startup
        if code >> 16 != _PROTOCOL_3 >> 16 or node_role_of(startup, self._database) is None:
            await _refuse(writer, "only nodes that joined may connect from other machines")
            return None
        return startup


async def _refuse(writer: asyncio.StreamWriter, message: str) -> None:
    """Send an error as Postgres sends it: invalid authorization."""
    fields = b"".join(tag + text.encode() + b"\0" for tag, text in ((b"S", "FATAL"), (b"C", "28000"), (b"M", message)))
    writer.write(b"E" + struct.pack("!I", len(fields) + 5) + fields + b"\0")
    log.warning("a connection was refused: %s", message)
    with suppress(ConnectionError):
        await writer.drain()
    writer.close()


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
    server = await asyncio.start_server(
        relay.serve,
        settings.host,
        settings.port,
        ssl=context,
        ssl_handshake_timeout=_STARTUP_TIMEOUT_S,
        limit=_CHUNK_BYTES,
    )
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    uvloop.run(_run(load_settings(RelaySettings)))

"""Test the relay through which nodes of other machines reach the embedded Postgres."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlencode

import asyncpg
import pytest
import pytest_asyncio

from arl_local.postgres.certificates import issue_server_certificate
from arl_local.postgres.tls_relay import DatabaseRelay, tls_context
from arl_local.state_dir import bind
from arl_store.logins import NodeLogin, database_of
from arl_store.migrate import upgrade
from support.conditions import eventually
from support.postgres import PASSWORDS, Databases

LOGIN = NodeLogin("cpu", "n", "password")


class Relay:
    def __init__(self, database: str, port: int, authority: Path) -> None:
        self.database, self.port, self.authority = database, port, authority

    def url(self, role: str, password: str, *, database: str | None = None) -> str:
        query = {"sslmode": "verify-full", "sslnegotiation": "direct", "sslrootcert": str(self.authority)}
        return f"postgresql://{role}:{password}@127.0.0.1:{self.port}/{database or self.database}?{urlencode(query)}"

    def node_url(self) -> str:
        return self.url(LOGIN.role(self.database), LOGIN.password)


@pytest_asyncio.fixture
async def relay(
    databases: Databases, database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Relay]:
    await upgrade(database, PASSWORDS, nodes=[LOGIN])
    changes = {"networks": ["127.0.0.0/8"], "server": databases.server.socket} | getattr(request, "param", {})
    changes["networks"] = [ip_network(each) for each in changes["networks"]]
    files = issue_server_certificate(tmp_path / "tls", "127.0.0.1")
    served = DatabaseRelay(database=database_of(database), **changes)
    context = tls_context(files.certificate.read_text(), files.key.read_text())
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        listener.setblocking(False)
        serving = asyncio.create_task(served.serve_forever(listener, context))
        yield Relay(database_of(database), listener.getsockname()[1], files.authority)
        serving.cancel()
        await asyncio.wait([serving])


async def test_node_connects_over_tls_with_its_role(relay: Relay) -> None:
    connection = await asyncpg.connect(relay.node_url())
    assert await connection.fetchval("select session_user::text") == LOGIN.role(relay.database)
    assert len(await connection.fetchval("select repeat('x', 3000000)")) == 3_000_000
    await connection.close()


async def test_no_login_is_lost(relay: Relay) -> None:
    # The client's first message arrives with its connection.
    for _ in range(30):
        connection = await asyncpg.connect(relay.node_url(), timeout=10)
        await connection.close()


async def test_wrong_password_is_refused_by_postgres(relay: Relay) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(relay.url(LOGIN.role(relay.database), "wrong"))


@pytest.mark.parametrize("role", ["gateway", "scheduler", "cpu"])
async def test_role_of_a_service_is_refused_with_the_right_password(relay: Relay, role: str) -> None:
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="only nodes that joined"):
        await asyncpg.connect(relay.url(f"{relay.database}_{role}", PASSWORDS[role]))


@pytest.mark.parametrize("relay", [{"networks": ["10.9.0.0/16"]}], indirect=True)
async def test_address_outside_the_networks_is_closed_before_tls(relay: Relay) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    assert await reader.read() == b""
    writer.close()
    with pytest.raises((ConnectionError, ssl.SSLError)):
        await asyncpg.connect(relay.node_url())


@pytest.mark.parametrize("relay", [{"max_connections": 2}], indirect=True)
async def test_nodes_leave_connections_to_the_services(relay: Relay) -> None:
    held = [await asyncpg.connect(relay.node_url()) for _ in range(2)]
    with pytest.raises(asyncpg.TooManyConnectionsError, match="too many connections"):
        await asyncpg.connect(relay.node_url())
    await held[0].close()
    await eventually_connects(relay)
    await held[1].close()


async def eventually_connects(relay: Relay) -> None:
    """Connect as soon as the relay has noticed the end of another connection."""

    async def connects() -> bool:
        try:
            await (await asyncpg.connect(relay.node_url())).close()
        except asyncpg.TooManyConnectionsError:
            return False
        return True

    await eventually(connects)


@pytest.mark.parametrize("relay", [{"max_logins": 1}], indirect=True)
async def test_connections_that_do_not_log_in_are_limited(relay: Relay) -> None:
    silent = await asyncio.open_connection("127.0.0.1", relay.port)
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    assert await reader.read() == b"", "the second one is closed at once"
    writer.close()
    silent[1].close()


async def test_failed_logins_hold_no_connection(relay: Relay, database: str) -> None:
    for _ in range(5):
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(relay.url(LOGIN.role(relay.database), "wrong"))
    owner = await asyncpg.connect(database)
    count = "select count(*) from pg_stat_activity where usename = $1"
    await eventually(lambda: _is_zero(owner, count, LOGIN.role(relay.database)))
    await owner.close()


async def test_client_that_leaves_during_its_login_holds_no_connection(relay: Relay, database: str) -> None:
    context = ssl.create_default_context(cafile=str(relay.authority))
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port, ssl=context)
    words = b"\0".join((b"user", LOGIN.role(relay.database).encode(), b"database", relay.database.encode(), b"", b""))
    writer.write(struct.pack("!II", len(words) + 8, 0x30000) + words)
    assert (await reader.readexactly(1)) == b"R", "Postgres asks for the password"
    writer.close()
    owner = await asyncpg.connect(database)
    count = "select count(*) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid() and usename is null"
    await eventually(lambda: _is_zero(owner, count, relay.database))
    await owner.close()


async def _is_zero(connection: asyncpg.Connection, count: str, *values: str) -> bool:
    return bool(await connection.fetchval(count, *values) == 0)


@pytest.mark.parametrize("relay", [{"server": Path("/nonexistent/socket")}], indirect=True)
async def test_node_is_told_that_postgres_is_stopped(relay: Relay) -> None:
    with pytest.raises(asyncpg.CannotConnectNowError, match="starting or stopped"):
        await asyncpg.connect(relay.node_url())


async def test_certificate_of_another_authority_is_refused_by_the_node(relay: Relay, tmp_path: Path) -> None:
    relay.authority = issue_server_certificate(tmp_path / "other", "127.0.0.1").authority
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncpg.connect(relay.node_url())


async def test_connection_without_tls_is_refused(relay: Relay) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    writer.write(b"\0\0\0\x08\x04\xd2\x16\x2f")  # Postgres's request for TLS
    assert await reader.read() == b""
    writer.close()


async def test_authority_stays_the_same_at_the_next_start(tmp_path: Path) -> None:
    first = issue_server_certificate(tmp_path, "127.0.0.1")
    authority, certificate = first.authority.read_text(), first.certificate.read_text()
    second = issue_server_certificate(tmp_path, "10.0.0.1")
    assert second.authority.read_text() == authority
    assert second.certificate.read_text() != certificate
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}

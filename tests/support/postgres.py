"""A real PostgreSQL for tests: one server per session, one database per test, cloned from a migrated template."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest_asyncio

from arl_local.postgres.embedded_postgres import EmbeddedPostgres, create_database, run_server

PASSWORDS = {service: f"{service}-password" for service in ("gateway", "admission", "scheduler", "cpu", "gpu", "api")}
"""The passwords of every clone's service roles; see `arl_store.migrate.role_url`."""

FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "max_connections": "200"}
ROOM_BYTES = 2 << 30
SPOOL_DIR = Path(tempfile.gettempdir()) / "tangram-test-spool"
"""Directory of results of managers in this process. Each database has its own directory below it."""
_TEMPLATE = "tangram_template"

CloneDatabase = Callable[[], Awaitable[str]]


class Databases:
    """A factory of databases with the schema; it also drops them with their roles."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server = server
        self._numbers = count(1)
        self._migrated = False

    async def clone(self) -> str:
        """Create a database with the schema and no rows, and return its owner's URL."""
        from arl_store.migrate import upgrade

        admin_url = self.server.owner_url("postgres")
        template_url = self.server.owner_url(_TEMPLATE)
        if not self._migrated:
            await create_database(admin_url, _TEMPLATE)
            await upgrade(template_url, PASSWORDS)
            self._migrated = True
        name = f"test_{next(self._numbers)}"
        await _execute(admin_url, f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        clone_url = self.server.owner_url(name)
        await upgrade(clone_url, PASSWORDS)  # roles belong to the server, so each database has its own
        return clone_url

    async def empty(self, name: str) -> str:
        """Create an empty database and return its owner's URL; `drop` removes it too."""
        await create_database(self.server.owner_url("postgres"), name)
        return self.server.owner_url(name)

    async def drop(self, owner_url: str) -> None:
        """Drop a database and its roles, even if clients are connected."""
        name = urlsplit(owner_url).path.removeprefix("/")
        admin_url = self.server.owner_url("postgres")
        await _execute(admin_url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        for roles in (await _roles_of_nodes(admin_url, name), [f"{name}_{service}" for service in PASSWORDS]):
            if roles:
                await _execute(admin_url, f"DROP ROLE IF EXISTS {', '.join(roles)}")


@asynccontextmanager
async def fast_postgres() -> AsyncIterator[EmbeddedPostgres]:
    """Run a temporary server, in memory if there is space, because files take most of the time."""
    place = in_memory()
    directory = Path(tempfile.mkdtemp(prefix="tangram-test-", dir=place))
    homes = place / "tangram-homes"
    try:
        async with run_server(directory, settings=FAST, root_base_dir=homes) as server:
            yield server
    finally:
        EmbeddedPostgres(directory, root_base_dir=homes).purge()
        shutil.rmtree(directory)


def in_memory() -> Path:
    """Return a directory in memory, or the directory for temporary files if memory is short."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM_BYTES
    return memory if roomy else Path(tempfile.gettempdir())


@pytest_asyncio.fixture(scope="session")
async def databases() -> AsyncIterator[Databases]:
    """Provide the database factory of the session's server."""
    async with fast_postgres() as server:
        yield Databases(server)


@pytest_asyncio.fixture
async def clone_database(databases: Databases) -> AsyncIterator[CloneDatabase]:
    """Provide a function that creates a database and returns its owner's URL; all are dropped afterwards."""
    made: list[str] = []

    async def clone() -> str:
        made.append(await databases.clone())
        return made[-1]

    yield clone
    for owner_url in made:
        await databases.drop(owner_url)


@pytest_asyncio.fixture
async def database(clone_database: CloneDatabase) -> str:
    """Provide the owner's URL of a new database."""
    return await clone_database()


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _roles_of_nodes(admin_url: str, database: str) -> list[str]:
    connection = await asyncpg.connect(admin_url)
    try:
        rows = await connection.fetch(
            "select rolname::text from pg_roles where rolname ~ ('^' || $1 || '_(cpu|gpu|api)_[0-9a-f]{12}$')", database
        )
    finally:
        await connection.close()
    return [row["rolname"] for row in rows]

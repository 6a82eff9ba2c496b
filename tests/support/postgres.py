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
_TEMPLATE = "tangram_template"

CloneDatabase = Callable[[], Awaitable[str]]


class Databases:
    """Hands out databases with the schema in them, and drops each of them with its roles."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server = server
        self._numbers = count(1)
        self._migrated = False

    async def clone(self) -> str:
        """The owner's URL of a new database with the schema and no rows."""
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
        """The owner's URL of a new database in which nothing is yet; `drop` removes it, too."""
        await create_database(self.server.owner_url("postgres"), name)
        return self.server.owner_url(name)

    async def drop(self, owner_url: str) -> None:
        """Drop a clone, whoever is still connected to it, and its roles."""
        name = urlsplit(owner_url).path.removeprefix("/")
        roles = [f"{name}_{service}" for service in PASSWORDS]
        admin_url = self.server.owner_url("postgres")
        await _execute(admin_url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await _execute(admin_url, f"DROP ROLE IF EXISTS {', '.join(roles)}")


@asynccontextmanager
async def fast_postgres() -> AsyncIterator[EmbeddedPostgres]:
    """A server that forgets everything at the end, in memory where there is room: files are most of the time."""
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
    """Where files are fast; the ordinary place for temporary ones if memory is short."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM_BYTES
    return memory if roomy else Path(tempfile.gettempdir())


@pytest_asyncio.fixture(scope="session")
async def databases() -> AsyncIterator[Databases]:
    """The session's server."""
    async with fast_postgres() as server:
        yield Databases(server)


@pytest_asyncio.fixture
async def clone_database(databases: Databases) -> AsyncIterator[CloneDatabase]:
    """`await clone_database()` gives the owner's URL of a fresh database; all of them go with the test."""
    made: list[str] = []

    async def clone() -> str:
        made.append(await databases.clone())
        return made[-1]

    yield clone
    for owner_url in made:
        await databases.drop(owner_url)


@pytest_asyncio.fixture
async def database(clone_database: CloneDatabase) -> str:
    """The owner's URL of one fresh database."""
    return await clone_database()


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()

"""Access to Postgres. A path that only reads gets a type that cannot write."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
from sqlalchemy import Executable, Row, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

__all__ = ["ReadTx", "Store", "WriteTx", "engine_for", "is_temporary", "open_store"]

Parameters = Mapping[str, Any]
CLIENT_MARGIN_S = 5.0
TEMPORARY_STATES = frozenset({"57P01", "57P02", "57P03", "57014", "40P01", "40001"})
"""SQLSTATEs: shutdown, crash, starting up, statement timeout, deadlock, serialization."""


class ReadTx:
    """Statements outside a transaction: each is its own snapshot."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def fetch(self, statement: Executable, parameters: Parameters | None = None) -> Sequence[Row[Any]]:
        return (await self._connection.execute(statement, parameters)).all()

    async def first(self, statement: Executable, parameters: Parameters | None = None) -> Row[Any] | None:
        return (await self._connection.execute(statement, parameters)).first()


class WriteTx(ReadTx):
    """One short transaction. It commits where it was opened, and nobody waits for the network inside."""

    async def execute(self, statement: Executable, parameters: Parameters | None = None) -> int:
        """Number of rows the statement changed."""
        return int((await self._connection.execute(statement, parameters)).rowcount)


class Store:
    """A bounded pool. Asking for a connection fails after `acquire_timeout_s` instead of piling up."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.acquire_failures = 0
        """How often there was no connection to be had, in all."""
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def read(self) -> AsyncIterator[ReadTx]:
        async with self._counted(self._autocommit.connect()) as connection:
            yield ReadTx(connection)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[WriteTx]:
        async with self._counted(self._engine.begin()) as connection:
            yield WriteTx(connection)

    @asynccontextmanager
    async def _counted(
        self, connecting: AbstractAsyncContextManager[AsyncConnection]
    ) -> AsyncIterator[AsyncConnection]:
        acquired = False
        try:
            async with connecting as connection:
                acquired = True
                yield connection
        except Exception:
            self.acquire_failures += not acquired
            raise

    async def ping(self) -> None:
        async with self.read() as tx:
            await tx.first(text("select 1"))

    async def close(self) -> None:
        await self._engine.dispose()


def is_temporary(error: Exception) -> bool:
    """Not reachable, starting, stopping, overloaded or chosen to end a deadlock: the same may succeed later."""
    if isinstance(error, (OSError, TimeoutError, OperationalError, InterfaceError, PoolTimeout)):
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = str(getattr(error.orig, "sqlstate", "") or "")
    return error.connection_invalidated or state[:2] in ("08", "53") or state in TEMPORARY_STATES


def open_store(
    url: str,
    *,
    name: str,
    pool_size: int,
    acquire_timeout_s: float = 5.0,
    pool_wait_s: float | None = None,
    statement_timeout_s: float = 10.0,
) -> Store:
    """`url` is `postgresql://…`; `name` shows in pg_stat_activity.

    `acquire_timeout_s` bounds making a connection, `pool_wait_s` waiting for one of the pool.
    """
    timeout_ms = str(int(statement_timeout_s * 1000))
    server_settings = {
        "application_name": name,
        "statement_timeout": timeout_ms,
        "idle_in_transaction_session_timeout": timeout_ms,
        "jit": "off",
    }
    engine = engine_for(
        url,
        # The server ends a statement in time; this ends the wait for a server that is not there any more.
        connect={
            "timeout": acquire_timeout_s,
            "command_timeout": statement_timeout_s + CLIENT_MARGIN_S,
            "server_settings": server_settings,
        },
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=acquire_timeout_s if pool_wait_s is None else pool_wait_s,
        pool_use_lifo=True,
    )
    return Store(engine)


def engine_for(url: str, *, connect: Mapping[str, Any] | None = None, **options: Any) -> AsyncEngine:
    """The driver reads the URL itself, so that every libpq form works: sslmode, socket directories, several hosts.

    Parameters never reach an error's text: they hold what clients pass to their programs.
    """
    arguments = dict(connect or {})

    async def open_connection() -> asyncpg.Connection:
        return await asyncpg.connect(url, **arguments)

    return create_async_engine("postgresql+asyncpg://", async_creator=open_connection, hide_parameters=True, **options)

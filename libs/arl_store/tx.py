"""Access to Postgres. A path that only reads gets a type that cannot write.

Statements are SQLAlchemy's, so that parameters have names; they are compiled once and run by asyncpg itself, which
takes a third of the CPU time (docs/decisions/0005).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from sqlalchemy import ClauseElement, TextClause, text
from sqlalchemy.dialects.postgresql.asyncpg import dialect as asyncpg_dialect
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.sql.compiler import SQLCompiler

__all__ = [
    "FULL_DISK_S",
    "PoolBusy",
    "PostgresStore",
    "ReadTx",
    "Row",
    "WriteTx",
    "engine_for",
    "is_temporary",
    "open_store",
]

Parameters = Mapping[str, Any]
CLIENT_MARGIN_S = 5.0
NEVER = float("-inf")
FULL_DISK_S = 30.0
"""Seconds after a write that failed because of a full disk in which the database counts as not ready."""
TEMPORARY_STATES = frozenset({"57P01", "57P02", "57P03", "57014", "40P01", "40001", "55P03", "25006", "28P01"})
"""SQLSTATEs after which a retry may succeed.

Shutdown, crash, start-up, statement timeout, deadlock and serialization failure; a lock of another session, such as a
backup's; a read-only server, after a failover or with a full disk; a password that has just changed.
"""
SELECT_READ_ONLY = text("select current_setting('transaction_read_only') = 'on' as is_so")


class PoolBusy(Exception):
    """No connection of the pool became free in time."""


class Row(asyncpg.Record):  # type: ignore[misc]
    """A row whose columns are attributes."""

    def __getattr__(self, column: str) -> Any:
        try:
            return self[column]
        except KeyError:
            raise AttributeError(column) from None


class ReadTx:
    """Statements outside a transaction: each is its own snapshot."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def fetch(self, statement: ClauseElement, parameters: Parameters | None = None) -> Sequence[Row]:
        """Return all rows of the statement."""
        sql, values = _bind(statement, parameters)
        return list(await self._connection.fetch(sql, *values))

    async def first(self, statement: ClauseElement, parameters: Parameters | None = None) -> Row | None:
        """Return the first row, or None."""
        sql, values = _bind(statement, parameters)
        row: Row | None = await self._connection.fetchrow(sql, *values)
        return row


class WriteTx(ReadTx):
    """A short transaction. It commits at the end of its block; no network call may wait inside it."""

    async def execute(self, statement: ClauseElement, parameters: Parameters | None = None) -> int:
        """Execute the statement and return the number of rows that it changed."""
        sql, values = _bind(statement, parameters)
        tag = str(await self._connection.execute(sql, *values))
        count = tag.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0


class PostgresStore:
    """A bounded connection pool. A caller that gets no connection in time receives `PoolBusy`."""

    def __init__(self, url: str, *, pool_size: int, pool_wait_s: float, connect: Mapping[str, Any]) -> None:
        self._url = url
        self._size = pool_size
        self._wait_s = pool_wait_s
        self._connect = dict(connect)
        self._pool: asyncpg.Pool | None = None
        self._slots = asyncio.Semaphore(pool_size)
        self.acquire_failures = 0
        """Total number of failures to get a connection."""
        self._last_success_at = NEVER
        self._is_read_only = False
        self._full_disk_at = NEVER
        """Time of the latest write that failed because the disk of the server is full."""

    @asynccontextmanager
    async def read(self) -> AsyncIterator[ReadTx]:
        """Use a connection outside a transaction. Raises `PoolBusy`."""
        async with self._slot(), self._connection() as connection:
            yield ReadTx(connection)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[WriteTx]:
        """Open a transaction that commits at the end of the block and rolls back on an error. Raises `PoolBusy`."""
        async with self._slot(), self._connection(writes=True) as connection, connection.transaction():
            yield WriteTx(connection)

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[WriteTx]:
        """Run each statement in a separate transaction: it has committed when it returns."""
        async with self._slot(), self._connection(writes=True) as connection:
            yield WriteTx(connection)

    async def ping(self, *, within_s: float = 0.0) -> None:
        """Check the database. Raises the errors of a statement, also if the server is read-only or its disk is full.

        It sends no statement if another succeeded within the last `within_s` seconds, a connection is open and nothing
        has failed since.
        """
        if not (self._is_read_only or self._has_full_disk()) and self._has_succeeded_within(within_s):
            return
        async with self.read() as tx:
            row = await tx.first(SELECT_READ_ONLY)
        self._is_read_only = row is None or row.is_so
        if self._is_read_only:
            await self._expire_connections()
            raise asyncpg.ReadOnlySQLTransactionError("the database is read-only")
        if self._has_full_disk():
            raise asyncpg.DiskFullError("a write has just failed: the disk of the database is full")

    async def close(self) -> None:
        """Close all connections at once, also those in use."""
        if self._pool is not None:
            self._pool.terminate()

    def _has_full_disk(self) -> bool:
        return time.monotonic() - self._full_disk_at < FULL_DISK_S

    def _has_succeeded_within(self, within_s: float) -> bool:
        is_open = self._pool is not None and self._pool.get_size() > 0
        return is_open and time.monotonic() - self._last_success_at < within_s

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        try:
            if self._slots.locked():
                async with asyncio.timeout(self._wait_s):
                    await self._slots.acquire()
            else:
                await self._slots.acquire()
        except TimeoutError:
            self.acquire_failures += 1
            raise PoolBusy(f"all {self._size} connections to the database are in use") from None
        try:
            yield
        finally:
            self._slots.release()

    @asynccontextmanager
    async def _connection(self, *, writes: bool = False) -> AsyncIterator[asyncpg.Connection]:
        self._last_success_at = NEVER  # until the block succeeds
        try:
            pool = await self._open_pool()
            connection = await pool.acquire()
        except Exception:
            self.acquire_failures += 1
            raise
        try:
            yield connection
            self._last_success_at = time.monotonic()
        except asyncpg.DataError as error:
            # The driver's message contains the parameter's value, which is client data.
            raise RuntimeError(f"a parameter does not fit its column ({type(error).__name__})") from None
        except asyncpg.ReadOnlySQLTransactionError:
            self._is_read_only = True
            await self._expire_connections()
            raise
        except asyncpg.PostgresError as error:
            if writes and isinstance(error, asyncpg.DiskFullError):
                self._full_disk_at = time.monotonic()
            # The detail quotes the row that failed.
            error.detail = None
            raise
        finally:
            await pool.release(connection)

    async def _expire_connections(self) -> None:
        """Close all connections after their use. New ones may reach a writable server after a failover."""
        if self._pool is not None:
            await self._pool.expire_connections()

    async def _open_pool(self) -> asyncpg.Pool:
        """Return the pool. Connections open at their first use; opening an empty pool awaits nothing."""
        if self._pool is None:
            self._pool = await asyncpg.create_pool(
                self._url, min_size=0, max_size=self._size, record_class=Row, reset=_skip_reset, **self._connect
            )
        return self._pool


def is_temporary(error: Exception) -> bool:
    """Return True if the same statement may succeed later.

    This covers a server that is unreachable, starting, stopping or overloaded, and the victim of a deadlock.
    """
    # The driver raises `InternalClientError` if a connection breaks off in the middle of a response.
    if isinstance(error, (OSError, TimeoutError, PoolBusy, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        return True
    if not isinstance(error, asyncpg.PostgresError):
        return False
    state = str(error.sqlstate or "")
    return state[:2] in ("08", "53") or state in TEMPORARY_STATES


def open_store(
    url: str,
    *,
    name: str,
    pool_size: int,
    acquire_timeout_s: float = 5.0,
    pool_wait_s: float | None = None,
    statement_timeout_s: float = 10.0,
) -> PostgresStore:
    """Return a store. `url` is `postgresql://…`; `name` appears in pg_stat_activity.

    `acquire_timeout_s` limits opening a connection, `pool_wait_s` waiting for a connection of the pool.
    """
    timeout_ms = str(int(statement_timeout_s * 1000))
    server_settings = {
        "application_name": name,
        "statement_timeout": timeout_ms,
        "idle_in_transaction_session_timeout": timeout_ms,
        "jit": "off",
        # Planning a join of partitioned tables takes 1 ms, running it 0.1; all statements look rows up by index.
        "plan_cache_mode": "force_generic_plan",
        # A plan that was made while a table was small would scan the whole table for the life of the connection.
        "enable_seqscan": "off",
    }
    return PostgresStore(
        url,
        pool_size=pool_size,
        pool_wait_s=acquire_timeout_s if pool_wait_s is None else pool_wait_s,
        # The server ends a slow statement. This timeout ends the wait for a server that no longer responds.
        connect={
            "timeout": acquire_timeout_s,
            "command_timeout": statement_timeout_s + CLIENT_MARGIN_S,
            "server_settings": server_settings,
        },
    )


def engine_for(url: str) -> AsyncEngine:
    """Return an engine for migrations.

    The driver parses the URL, so every libpq form works: sslmode, socket directories. Error texts never contain
    parameters.
    """

    async def open_connection() -> asyncpg.Connection:
        """Connect for SQLAlchemy."""
        return await asyncpg.connect(url)

    return create_async_engine("postgresql+asyncpg://", async_creator=open_connection, hide_parameters=True)


_DIALECT = asyncpg_dialect()  # type: ignore[no-untyped-call]
_compiled_texts: dict[TextClause, tuple[str, tuple[str, ...]]] = {}
"""Compiled statements. Statements of fixed text are constants of a repository, so their number is bounded."""


def _bind(statement: ClauseElement, parameters: Parameters | None) -> tuple[str, list[Any]]:
    """Return the statement with numbered parameters, and their values in that order."""
    if not isinstance(statement, TextClause):
        compiled = _compile(statement)
        return compiled.string, [compiled.params[name] for name in compiled.positiontup or ()]
    known = _compiled_texts.get(statement)
    if known is None:
        compiled = _compile(statement)
        known = _compiled_texts[statement] = (compiled.string, tuple(compiled.positiontup or ()))
    given = parameters or {}
    return known[0], [given[name] for name in known[1]]


def _compile(statement: ClauseElement) -> SQLCompiler:
    compiled = statement.compile(dialect=_DIALECT)
    if not isinstance(compiled, SQLCompiler):
        raise TypeError(f"{type(statement).__name__} cannot take parameters")
    return compiled


async def _skip_reset(connection: asyncpg.Connection) -> None:
    """Do nothing: statements leave no state in their session, and the pool's default reset costs a round trip."""

"""Access to Postgres. A path that only reads gets a type that cannot write."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Executable, Row, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

__all__ = ["ReadTx", "Store", "WriteTx", "open_store"]

Parameters = Mapping[str, Any]


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
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def read(self) -> AsyncIterator[ReadTx]:
        async with self._autocommit.connect() as connection:
            yield ReadTx(connection)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[WriteTx]:
        async with self._engine.begin() as connection:
            yield WriteTx(connection)

    async def ping(self) -> None:
        async with self.read() as tx:
            await tx.first(text("select 1"))

    async def close(self) -> None:
        await self._engine.dispose()


def open_store(
    url: str, *, name: str, pool_size: int, acquire_timeout_s: float = 5.0, statement_timeout_s: float = 10.0
) -> Store:
    """`url` is `postgresql://…`; `name` shows in pg_stat_activity."""
    timeout_ms = str(int(statement_timeout_s * 1000))
    engine = create_async_engine(
        url.replace("postgresql://", "postgresql+asyncpg://", 1),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=acquire_timeout_s,
        pool_use_lifo=True,
        connect_args={
            "timeout": acquire_timeout_s,
            "server_settings": {
                "application_name": name,
                "statement_timeout": timeout_ms,
                "idle_in_transaction_session_timeout": timeout_ms,
                "jit": "off",
            },
        },
    )
    return Store(engine)

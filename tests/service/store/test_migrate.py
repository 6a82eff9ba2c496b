"""Test migrations and writes during backups, in read-only mode and with other versions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from sqlalchemy import text

from arl_scheduler.queries import repository
from arl_store.migrate import upgrade
from arl_store.tx import PostgresStore, is_temporary, open_store
from support.postgres import PASSWORDS, Databases
from support.rows import store_of

LAST_DAYS = "do $$ declare name text; begin for name in select inhrelid::regclass::text from pg_inherits where"
LAST_DAYS += " inhparent in ('actions'::regclass, 'action_specs'::regclass, 'action_results'::regclass)"
LAST_DAYS += " and inhrelid::regclass::text !~ 'default' loop execute 'drop table ' || name; end loop; end $$"


@asynccontextmanager
async def backed_up(owner_url: str) -> AsyncIterator[None]:
    """Lock all tables as `pg_dump` does while partitions are missing."""
    connection = await asyncpg.connect(owner_url)
    try:
        await connection.execute(LAST_DAYS)
        async with connection.transaction():
            await connection.execute("lock table actions, action_specs, action_results in access share mode")
            yield
    finally:
        await connection.close()


async def test_partition_creation_fails_fast_during_a_backup(database: str) -> None:
    async with backed_up(database), store_of(database, "scheduler") as store:
        with pytest.raises(asyncpg.LockNotAvailableError) as caught:
            async with asyncio.timeout(2), store.write() as tx:
                await repository.ensure_partitions(tx, days=3)
        assert is_temporary(caught.value)
        async with asyncio.timeout(2), store.read() as tx:
            await tx.first(text("select count(*) from actions"))


@pytest.mark.slow
async def test_upgrade_waits_for_a_backup_without_blocking_readers(database: str) -> None:
    async with backed_up(database), store_of(database, "gateway") as store:
        upgrading = asyncio.create_task(upgrade(database, PASSWORDS))
        done, _ = await asyncio.wait((upgrading,), timeout=2.5)
        assert not done
        async with asyncio.timeout(4), store.read() as tx:
            await tx.first(text("select count(*) from actions"))
    await upgrading


async def test_read_only_server_is_a_temporary_error_and_not_ready(database: str) -> None:
    store = open_store(database, name="test", pool_size=1)
    admin = await asyncpg.connect(database)
    name = await admin.fetchval("select current_database()")
    try:
        await admin.execute(f'alter database "{name}" set default_transaction_read_only = on')
        for doing in (store.ping(), _write(store)):
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError) as caught:
                await doing
            assert is_temporary(caught.value)
        await admin.execute(f'alter database "{name}" set default_transaction_read_only = off')
        await store.ping()  # by a new connection: those of before still only read
        await _write(store)
    finally:
        await store.close()
        await admin.close()


async def _write(store: PostgresStore) -> None:
    async with store.write() as tx:
        await tx.execute(text("create table written (n int)"))


async def test_database_of_a_newer_version_is_refused(database: str) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute("update alembic_version set version_num = '9999'")
    await connection.close()
    with pytest.raises(RuntimeError, match="probably newer, version"):
        await upgrade(database, PASSWORDS)


async def test_database_without_utf8_encoding_is_refused(databases: Databases) -> None:
    admin = await asyncpg.connect(databases.server.owner_url("postgres"))
    await admin.execute("create database test_ascii template template0 encoding 'SQL_ASCII' locale 'C'")
    try:
        with pytest.raises(RuntimeError, match="SQL_ASCII"):
            await upgrade(databases.server.owner_url("test_ascii"), PASSWORDS)
    finally:
        await databases.drop(databases.server.owner_url("test_ascii"))
        await admin.close()

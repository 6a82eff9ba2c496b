"""Test the bounded connection pool: it fails fast without a free connection and counts failures."""

from urllib.parse import urlsplit

import asyncpg
import pytest
from sqlalchemy import text

from arl_store import tx as tx_module
from arl_store.tx import PoolBusy, open_store
from support.conditions import eventually
from support.postgres import Databases


async def test_only_failed_connection_acquires_count_as_failures(database: str) -> None:
    store = open_store(database, name="test", pool_size=1, acquire_timeout_s=0.05)
    try:
        with pytest.raises(asyncpg.UndefinedColumnError):
            async with store.read() as tx:
                await tx.fetch(text("select no_such_column"))
        async with store.write():
            assert store.acquire_failures == 0
            with pytest.raises(PoolBusy):
                async with store.read():
                    pass
        assert store.acquire_failures == 1
    finally:
        await store.close()


class TestPing:
    async def test_ping_reuses_a_recent_answer(self, database: str) -> None:
        store, admin = open_store(database, name="pinging", pool_size=1), await asyncpg.connect(database)
        asked = "select query_start from pg_stat_activity where application_name = 'pinging'"
        try:
            await store.ping(within_s=60)
            first = await admin.fetchval(asked)
            await store.ping(within_s=60)
            assert await admin.fetchval(asked) == first is not None
            await store.ping()
            assert await admin.fetchval(asked) > first
        finally:
            await store.close()
            await admin.close()

    async def test_ping_notices_a_lost_server_despite_a_recent_answer(
        self, databases: Databases, database: str
    ) -> None:
        store, admin = (
            open_store(database, name="pinging", pool_size=1),
            await asyncpg.connect(databases.server.owner_url("postgres")),
        )
        name = urlsplit(database).path.removeprefix("/")

        async def is_noticed() -> bool:
            try:
                await store.ping(within_s=60)
            except asyncpg.PostgresError:
                return True
            return False

        try:
            await store.ping(within_s=60)
            await admin.execute(f"alter database {name} allow_connections false")
            await admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pinging'"
            )
            await eventually(is_noticed)
            await admin.execute(f"alter database {name} allow_connections true")
            await store.ping(within_s=60)
        finally:
            await store.close()
            await admin.close()

    async def test_ping_checks_for_read_only_mode_after_a_refused_write(self, database: str) -> None:
        store, admin = open_store(database, name="pinging", pool_size=1), await asyncpg.connect(database)
        name = urlsplit(database).path.removeprefix("/")
        try:
            await admin.execute(f"alter database {name} set default_transaction_read_only = on")
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                async with store.write() as tx:
                    await tx.execute(text("create table written (n int)"))
            async with store.read() as tx:
                await tx.first(text("select 1"))
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                await store.ping(within_s=60)
        finally:
            await store.close()
            await admin.close()

    async def test_ping_fails_for_a_while_after_a_write_to_a_full_disk(
        self, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = open_store(database, name="pinging", pool_size=1)
        full = text("do $$ begin raise exception 'no space' using errcode = 'disk_full'; end $$")
        try:
            with pytest.raises(asyncpg.DiskFullError):
                async with store.write() as tx:
                    await tx.execute(full)
            for _ in range(2):
                with pytest.raises(asyncpg.DiskFullError):
                    await store.ping(within_s=60)
            monkeypatch.setattr(tx_module, "FULL_DISK_S", 0.0)
            await store.ping(within_s=60)
            monkeypatch.undo()
            with pytest.raises(asyncpg.DiskFullError):
                await store.ping()
        finally:
            await store.close()

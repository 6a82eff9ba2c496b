"""Test that retention deletes only expired settled rows. Tests pass the time as a parameter."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest_asyncio

from arl_admission.retention import MAX_BATCHES_PER_STEP, RetentionLoop
from arl_store.tx import PostgresStore
from support.builders import EPOCH
from support.rows import Rows, rows_in, store_of

RETAIN = timedelta(seconds=30)
NODE = "insert into nodes (name, kind, url, epoch, driver, capacity) values ('n', 'cpu', 'http://n', $1, 'd', '{}')"


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


@pytest_asyncio.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    async with store_of(database, "admission") as store:
        yield store


def retention_of(store: PostgresStore, *, batch: int = 1000) -> RetentionLoop:
    return RetentionLoop(store, retention_s=RETAIN.total_seconds(), batch=batch)


def in_future(**ahead: float) -> datetime:
    return datetime.now(UTC) + timedelta(**ahead)


async def settled(rows: Rows, **columns: Any) -> UUID:
    """Insert a settled action with its result."""
    id = await rows.action(state="settled", outcome="ok", **columns)
    await rows.execute("insert into action_results (id, grant_no) values ($1, 1)", id)
    return id


async def counts(rows: Rows) -> tuple[int, int, int]:
    tables = ("actions", "action_specs", "action_results")
    actions, specs, results = [await rows.value(f"select count(*) from {table}") for table in tables]
    return actions, specs, results


async def test_earlier_attempts_are_deleted_with_their_action(store: PostgresStore, rows: Rows) -> None:
    lost = "insert into attempts (id, grant_no, granted_at) values ($1, 1, now())"
    await rows.execute(lost, await settled(rows))
    await rows.execute(lost, await rows.action())
    await retention_of(store).step(now=in_future(seconds=40))
    assert await rows.value("select count(*) from attempts") == 1


class TestActions:
    async def test_settled_action_is_deleted_with_spec_and_result_after_retention(
        self, store: PostgresStore, rows: Rows
    ) -> None:
        await settled(rows)
        await retention_of(store).step(now=in_future(seconds=20))
        assert await counts(rows) == (1, 1, 1)
        await retention_of(store).step(now=in_future(seconds=40))
        assert await counts(rows) == (0, 0, 0)

    async def test_unsettled_action_is_never_deleted(self, store: PostgresStore, rows: Rows) -> None:
        for state in ("queued", "granted", "running"):
            await rows.action(state=state)
        await settled(rows)
        await retention_of(store).step(now=in_future(days=3000))
        assert await counts(rows) == (3, 3, 0)

    async def test_retention_counts_from_the_settle_time(self, store: PostgresStore, rows: Rows) -> None:
        now = in_future(days=10)
        await settled(rows, settled_at=now - timedelta(seconds=20))
        await retention_of(store).step(now=now)
        assert await counts(rows) == (1, 1, 1)

    async def test_step_deletes_a_bounded_number_and_reports_whether_more_remain(
        self, store: PostgresStore, rows: Rows
    ) -> None:
        for _ in range(MAX_BATCHES_PER_STEP + 2):
            await settled(rows)
        await rows.action()
        retention = retention_of(store, batch=1)
        assert await retention.step(now=in_future(days=1))
        assert await counts(rows) == (3, 3, 2)
        assert not await retention.step(now=in_future(days=1))
        assert await counts(rows) == (1, 1, 0)

    async def test_action_settled_after_a_sweep_is_deleted_by_the_next(self, store: PostgresStore, rows: Rows) -> None:
        """The next sweep finds an action that the previous sweep skipped because it was running."""
        first = await rows.action(state="running")
        for _ in range(3):
            await settled(rows)
        retention = retention_of(store, batch=1)
        while await retention.step(now=in_future(days=1)):
            pass
        async with rows.pool.acquire() as connection, connection.transaction():
            await connection.execute("set local session_replication_role = replica")
            sql = "update actions set state = 'settled', outcome = 'ok', settled_at = now() where id = $1"
            await connection.execute(sql, first)
        await retention.step(now=in_future(days=1))
        assert await counts(rows) == (0, 0, 0)


class TestPartitions:
    async def days(self, rows: Rows) -> set[str]:
        sql = "select relname from pg_class where relname ~ '^action(s|_specs|_results)_[0-9]{8}$' and relkind = 'r'"
        return {row["relname"] for row in await rows.pool.fetch(sql)}

    async def test_empty_partition_of_a_past_day_is_dropped(self, store: PostgresStore, rows: Rows) -> None:
        await settled(rows)
        await retention_of(store).step(now=in_future(days=3))
        days = await self.days(rows)
        today = f"{datetime.now(UTC):%Y%m%d}"
        assert not {f"actions_{today}", f"action_specs_{today}", f"action_results_{today}"} & days
        assert f"actions_{in_future(days=3):%Y%m%d}" in days

    async def test_partition_with_rows_is_kept(self, store: PostgresStore, rows: Rows) -> None:
        id = await rows.action()
        await retention_of(store).step(now=in_future(days=3))
        assert await rows.state(id) == ("queued", None, None)

    async def test_partition_drop_gives_up_while_a_reader_holds_a_lock(self, store: PostgresStore, rows: Rows) -> None:
        """The drop gives up and is tried again by the next step, so readers never wait."""
        today = f"actions_{datetime.now(UTC):%Y%m%d}"
        async with rows.pool.acquire() as reader, reader.transaction():
            await reader.fetch("select * from actions")
            await retention_of(store).step(now=in_future(days=3))
        assert today in await self.days(rows)
        await retention_of(store).step(now=in_future(days=3))
        assert today not in await self.days(rows)


class TestKeys:
    async def test_idempotency_key_is_deleted_after_its_own_expiry(self, store: PostgresStore, rows: Rows) -> None:
        sql = "insert into submissions values ($1, $2, '', '{}', now() + make_interval(secs => $3))"
        for key, left_s in (("over", -1.0), ("soon", 50.0), ("long", 5000.0)):
            await rows.execute(sql, rows.project, key, left_s)
        await retention_of(store).step()
        assert await rows.value("select array_agg(key order by key) from submissions") == ["long", "soon"]
        await retention_of(store).step(now=in_future(seconds=60))
        assert await rows.value("select array_agg(key) from submissions") == ["long"]


class TestEnvironments:
    async def test_only_a_deleted_and_ended_environment_is_removed(self, store: PostgresStore, rows: Rows) -> None:
        """Other environments still reserve their names; a new one of that name would be silently empty."""
        await rows.execute(NODE, EPOCH)
        node = await rows.value("select id from nodes")
        now = datetime.now(UTC)
        for name, columns in {
            "live": {},
            "tombstone": {"lost_at": now},
            "idle": {"ended_at": now, "end_reason": "idle"},
            "ending": {"delete_requested_at": now},
            "ended": {"delete_requested_at": now, "ended_at": now},
            "lost": {"delete_requested_at": now, "lost_at": now},
        }.items():
            await rows.environment(name, node, **columns)
        await retention_of(store).step(now=in_future(seconds=20))
        assert await rows.value("select count(*) from environments") == 6
        await retention_of(store).step(now=in_future(days=1))
        left = await rows.value("select array_agg(trajectory order by trajectory) from environments")
        assert left == ["ending", "idle", "live", "tombstone"]

"""What is over and old goes, and nothing else does. Time is a parameter."""

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
    """An action with its result."""
    id = await rows.action(state="settled", outcome="ok", **columns)
    await rows.execute("insert into action_results (id, grant_no) values ($1, 1)", id)
    return id


async def counts(rows: Rows) -> tuple[int, int, int]:
    tables = ("actions", "action_specs", "action_results")
    actions, specs, results = [await rows.value(f"select count(*) from {table}") for table in tables]
    return actions, specs, results


async def test_earlier_attempts_go_with_their_action(store: PostgresStore, rows: Rows) -> None:
    lost = "insert into attempts (id, grant_no, granted_at) values ($1, 1, now())"
    await rows.execute(lost, await settled(rows))
    await rows.execute(lost, await rows.action())
    await retention_of(store).step(now=in_future(seconds=40))
    assert await rows.value("select count(*) from attempts") == 1


class TestActions:
    async def test_a_settled_one_goes_with_its_spec_and_result_when_its_time_is_over(
        self, store: PostgresStore, rows: Rows
    ) -> None:
        await settled(rows)
        await retention_of(store).step(now=in_future(seconds=20))
        assert await counts(rows) == (1, 1, 1)
        await retention_of(store).step(now=in_future(seconds=40))
        assert await counts(rows) == (0, 0, 0)

    async def test_one_that_is_not_settled_stays_however_old_it_is(self, store: PostgresStore, rows: Rows) -> None:
        for state in ("queued", "granted", "running"):
            await rows.action(state=state)
        await settled(rows)
        await retention_of(store).step(now=in_future(days=3000))
        assert await counts(rows) == (3, 3, 0)

    async def test_time_counts_from_the_outcome_and_not_from_the_submission(
        self, store: PostgresStore, rows: Rows
    ) -> None:
        now = in_future(days=10)
        await settled(rows, settled_at=now - timedelta(seconds=20))
        await retention_of(store).step(now=now)
        assert await counts(rows) == (1, 1, 1)

    async def test_a_step_is_bounded_and_says_whether_there_is_more(self, store: PostgresStore, rows: Rows) -> None:
        for _ in range(MAX_BATCHES_PER_STEP + 2):
            await settled(rows)
        await rows.action()
        retention = retention_of(store, batch=1)
        assert await retention.step(now=in_future(days=1))
        assert await counts(rows) == (3, 3, 2)
        assert not await retention.step(now=in_future(days=1))
        assert await counts(rows) == (1, 1, 0)

    async def test_a_sweep_begins_again_with_the_oldest(self, store: PostgresStore, rows: Rows) -> None:
        """What was passed because it ran then is found when it has settled."""
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

    async def test_a_day_that_is_over_and_empty_is_dropped(self, store: PostgresStore, rows: Rows) -> None:
        await settled(rows)
        await retention_of(store).step(now=in_future(days=3))
        days = await self.days(rows)
        today = f"{datetime.now(UTC):%Y%m%d}"
        assert not {f"actions_{today}", f"action_specs_{today}", f"action_results_{today}"} & days
        assert f"actions_{in_future(days=3):%Y%m%d}" in days

    async def test_a_day_with_anything_in_it_stays(self, store: PostgresStore, rows: Rows) -> None:
        id = await rows.action()
        await retention_of(store).step(now=in_future(days=3))
        assert await rows.state(id) == ("queued", None, None)

    async def test_a_reader_is_not_kept_waiting(self, store: PostgresStore, rows: Rows) -> None:
        """It gives up and comes again; the reader's transaction is as long as it likes."""
        today = f"actions_{datetime.now(UTC):%Y%m%d}"
        async with rows.pool.acquire() as reader, reader.transaction():
            await reader.fetch("select * from actions")
            await retention_of(store).step(now=in_future(days=3))
        assert today in await self.days(rows)
        await retention_of(store).step(now=in_future(days=3))
        assert today not in await self.days(rows)


class TestKeys:
    async def test_one_goes_when_its_own_time_is_over(self, store: PostgresStore, rows: Rows) -> None:
        sql = "insert into submissions values ($1, $2, '', '{}', now() + make_interval(secs => $3))"
        for key, left_s in (("over", -1.0), ("soon", 50.0), ("long", 5000.0)):
            await rows.execute(sql, rows.project, key, left_s)
        await retention_of(store).step()
        assert await rows.value("select array_agg(key order by key) from submissions") == ["long", "soon"]
        await retention_of(store).step(now=in_future(seconds=60))
        assert await rows.value("select array_agg(key) from submissions") == ["long"]


class TestEnvironments:
    async def test_only_one_that_ended_and_was_deleted_goes(self, store: PostgresStore, rows: Rows) -> None:
        """The others' names are not free; made anew they would be silently empty."""
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

"""Test that paged backlog reads and the following polls return every queued row."""

import gc
import weakref
from typing import Any, cast

import pytest

from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.leader.backlog import read_backlog
from arl_scheduler.leader.election import LeaderElection
from arl_scheduler.queries import repository
from arl_scheduler.queries.repository import FIRST_PAGE, PagePosition, poll, queued_before
from arl_store.tx import ReadTx
from support.rows import rows_in, store_of


async def test_paged_backlog_returns_each_row_once_during_concurrent_inserts(database: str) -> None:
    """Late commits and re-queued rows appear in the pages or in the poll that follows the checkpoint."""
    async with rows_in(database) as rows, store_of(database, "scheduler") as store, store.read() as tx:
        before = [await rows.action() for _ in range(5)]
        held = await rows.action(state="granted")
        late = await rows.pool.acquire()
        transaction = late.transaction()
        await transaction.start()
        await late.fetchval("select pg_current_xact_id()")
        before += [await rows.action() for _ in range(3)]
        first = await poll(tx, checkpoint=0, in_pages=True)
        hidden, meanwhile, place = await rows.action(), [], FIRST_PAGE
        seen = [row.id for row in first.queued]
        while place is not None:
            page, place = await queued_before(tx, checkpoint=first.checkpoint, after=place, limit=2)
            assert len(page) <= 2
            seen += [row.id for row in page]
            meanwhile.append(await rows.action())
        await late.execute("set local session_replication_role = replica")
        await late.execute("update actions set admitted_xid = pg_current_xact_id() where id = $1", hidden)
        sql = "update actions set state = 'queued', admitted_xid = pg_current_xact_id() where id = $1"
        await late.execute(sql, held)
        await transaction.commit()
        await rows.pool.release(late)
        second = await poll(tx, checkpoint=first.checkpoint)
    assert {row.fence.action_id for row in first.allocations} == {held}
    assert len(seen) == len(set(seen))
    assert set(before) <= set(seen)
    assert len(meanwhile) >= 3
    assert {*before[5:], *meanwhile, hidden, held} <= {row.id for row in second.queued}
    assert not set(before[:5]) & {row.id for row in second.queued}


async def test_rows_of_one_transaction_are_read_across_several_pages(database: str) -> None:
    async with rows_in(database) as rows, store_of(database, "scheduler") as store, store.read() as tx:
        queued = [await rows.action() for _ in range(7)]
        async with rows.pool.acquire() as one, one.transaction():
            await one.execute("set local session_replication_role = replica")
            await one.execute("update actions set admitted_xid = pg_current_xact_id()")
        first = await poll(tx, checkpoint=0, in_pages=True)
        seen, place = [], FIRST_PAGE
        while place is not None:
            page, place = await queued_before(tx, checkpoint=first.checkpoint, after=place, limit=2)
            seen += [row.id for row in page]
    assert first.queued == ()
    assert sorted(seen) == queued


async def test_index_of_a_failed_backlog_read_is_garbage_collected(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AsLeader:
        async def renew_if_due(self) -> bool:
            return True

    async def breaks_off(tx: ReadTx, *, checkpoint: int, after: PagePosition, limit: int) -> Any:
        if after != FIRST_PAGE:
            raise ConnectionResetError
        return await queued_before(tx, checkpoint=checkpoint, after=after, limit=limit)

    async with rows_in(database) as rows, store_of(database, "scheduler") as store:
        for _ in range(3):
            await rows.action()
        async with store.read() as tx:
            mark = (await poll(tx, checkpoint=0, in_pages=True)).checkpoint
        monkeypatch.setattr(repository, "queued_before", breaks_off)
        index = SchedulerIndex()
        index.checkpoint = mark
        with pytest.raises(ConnectionResetError):
            await read_backlog(store, cast(LeaderElection, AsLeader()), index, page_rows=2)
    assert index.queued_count == 2
    read = weakref.ref(index)
    del index
    gc.collect()
    assert read() is None

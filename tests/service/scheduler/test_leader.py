"""Test leader election: one leader at a time, and a former leader writes nothing."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import pytest_asyncio

from arl_core.domain.model import Fence, Grant
from arl_scheduler.leader.election import LeaderElection
from arl_scheduler.queries import leader_queries, repository
from arl_scheduler.queries.leader_queries import TermLostError
from arl_store.tx import PostgresStore
from support.rows import Rows, rows_in, store_of

LEASE_RAN_OUT = "update leader_lease set expires_at = now() - interval '1 millisecond'"
WAITS_FOR_A_LOCK = (
    "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
)


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


@pytest_asyncio.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    async with store_of(database, "scheduler") as store:
        yield store


def a_contender(store: PostgresStore, *, ttl_s: float = 10.0) -> LeaderElection:
    return LeaderElection(store, cell="default", ttl_s=ttl_s)


class TestAcquire:
    async def test_standby_takes_over_only_after_the_lease_expires(self, rows: Rows, store: PostgresStore) -> None:
        first, second = a_contender(store), a_contender(store)
        assert (await first.acquire(), await second.acquire()) == (True, False)
        await rows.execute(LEASE_RAN_OUT)
        assert await second.acquire()
        assert (first.term, second.term) == (1, 2)

    async def test_one_of_several_contenders_becomes_leader(self, rows: Rows, store: PostgresStore) -> None:
        for _ in range(5):
            await rows.execute(LEASE_RAN_OUT)
            contenders = [a_contender(store) for _ in range(4)]
            assert sorted(await asyncio.gather(*(each.acquire() for each in contenders))) == [False] * 3 + [True]
        assert await rows.value("select term from leader_term") == 5

    async def test_take_over_waits_for_the_old_leaders_open_transaction(self, rows: Rows, store: PostgresStore) -> None:
        node, action = await rows.node(), await rows.action()
        old, new = a_contender(store), a_contender(store)
        await old.acquire()
        await rows.execute(LEASE_RAN_OUT)
        grant = Grant(fence=Fence(action, 1), node=node, resources={"cpu_milli": 1000})
        async with store.write() as tx:
            await leader_queries.lock_term(tx, cell="default", term=1)
            taking_over = asyncio.create_task(new.acquire())
            await rows.until_value(1, WAITS_FOR_A_LOCK)
            granted = await repository.grant(tx, [grant], epochs={node: UUID(int=7)})
            assert not taking_over.done()
        assert granted == {grant.fence}
        assert await taking_over
        with pytest.raises(TermLostError):
            async with store.write() as tx:
                await leader_queries.lock_term(tx, cell="default", term=1)
        assert (await rows.of(action))["grant_no"] == 1


class TestRenew:
    async def test_lease_is_renewed_after_half_of_its_lifetime(self, rows: Rows, store: PostgresStore) -> None:
        leader = a_contender(store, ttl_s=0.0)
        await leader.acquire()
        before = await rows.value("select expires_at from leader_lease")
        assert await leader.renew_if_due()
        assert await rows.value("select expires_at from leader_lease") > before

    async def test_fresh_lease_is_not_renewed(self, rows: Rows, store: PostgresStore) -> None:
        leader = a_contender(store)
        await leader.acquire()
        before = await rows.value("select xmin::text from leader_lease")
        assert await leader.renew_if_due()
        assert await rows.value("select xmin::text from leader_lease") == before

    async def test_old_leader_loses_its_term_after_a_take_over(self, rows: Rows, store: PostgresStore) -> None:
        old, new = a_contender(store, ttl_s=0.0), a_contender(store)
        await old.acquire()
        await rows.execute(LEASE_RAN_OUT)
        await new.acquire()
        assert not await old.renew_if_due()
        assert (old.term, new.term) == (None, 2)

    async def test_renewal_is_not_blocked_by_leader_transactions(self, rows: Rows, store: PostgresStore) -> None:
        leader = a_contender(store, ttl_s=0.0)
        await leader.acquire()
        async with store.write() as tx:
            await leader_queries.lock_term(tx, cell="default", term=1)
            assert await asyncio.wait_for(leader.renew_if_due(), 5)


class TestResign:
    async def test_standby_takes_over_immediately_after_a_resignation(self, rows: Rows, store: PostgresStore) -> None:
        leader, standby = a_contender(store), a_contender(store)
        await leader.acquire()
        await leader.resign()
        assert leader.term is None
        assert await standby.acquire()

    async def test_resignation_of_an_old_leader_keeps_the_new_lease(self, rows: Rows, store: PostgresStore) -> None:
        old, new = a_contender(store), a_contender(store)
        await old.acquire()
        await rows.execute(LEASE_RAN_OUT)
        await new.acquire()
        await old.resign()
        assert not await a_contender(store).acquire()

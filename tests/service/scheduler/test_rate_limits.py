"""Test rate limits on a real Postgres: the leader wakes for tokens and never exceeds the rate."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest_asyncio

from arl_core.capacity.snapshot import CellSnapshot
from arl_core.control.rate_limits import RateLimit
from arl_core.domain.model import Fence, SchedulingPlan
from arl_core.policies.policy import FirstComeFirstServed
from arl_scheduler.leader.scheduling_loop import SchedulingLoop
from arl_scheduler.queries import repository
from arl_wire.internal.node import GrantBatchRequest
from support.builders import a_queued_row
from support.peers import RecordingPeers
from support.rows import Rows, rows_in, store_of
from support.scheduler import leading

SEARCH = "calls:search"
SELDOM = {"poll_busy_s": 1.0, "poll_idle_s": 30.0, "node_ttl_s": 60.0}
"""Poll intervals as in production, so that a test that depends on polls is slow."""


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


async def a_broker(rows: Rows, *, calls: int, rates: Any) -> int:
    node = await rows.node("broker")
    sql = "update nodes set kind = 'api', capacity = $2, rates = $3 where id = $1"
    await rows.execute(sql, node, json.dumps({SEARCH: calls}), json.dumps(rates))
    return node


async def calls(rows: Rows, count: int, **columns: Any) -> list[UUID]:
    return [await rows.action(demand={SEARCH: 1}, shape="quota", **columns) for _ in range(count)]


async def granted_at(rows: Rows) -> list[float]:
    sql = "select extract(epoch from granted_at)::float8 as at from actions where granted_at is not null order by 1"
    return [row["at"] for row in await rows.pool.fetch(sql)]


def most_beyond(moments: list[float], rate: RateLimit) -> float:
    """Return the largest number of grants above the rate in any time window."""
    windows = ((first, last) for last in range(len(moments)) for first in range(last + 1))
    return max(last - first + 1 - rate.burst - rate.per_s * (moments[last] - moments[first]) for first, last in windows)


@dataclass(frozen=True)
class Counting(FirstComeFirstServed):
    """A policy that records the time of every round."""

    rounds: list[float] = field(default_factory=list)

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        self.rounds.append(snapshot.now)
        return FirstComeFirstServed.plan(self, snapshot)


async def end_at_once(rows: Rows, leader: SchedulingLoop, peers: RecordingPeers, *, count: int) -> None:
    """Settle granted calls immediately, as a broker with instant calls, until `count` have ended."""
    seen = ended = 0
    while ended < count:
        await peers.until(lambda peers, seen=seen: len(peers.hints) > seen)
        batches = [batch for _, batch in peers.hints[seen:] if isinstance(batch, GrantBatchRequest)]
        fences = [Fence(grant.id, grant.grant_no) for batch in batches for grant in batch.grants]
        seen, ended = len(peers.hints), ended + len(fences)
        settle = "update actions set state = 'settled', outcome = 'ok', settled_at = now() where id = any($1)"
        await rows.unguarded(settle, [fence.action_id for fence in fences])
        leader.inbox.freed(fences)


class TestGrants:
    RATE = RateLimit(per_s=50.0, burst=5)

    async def test_queued_calls_are_granted_at_the_rate_without_other_events(self, rows: Rows) -> None:
        await a_broker(rows, calls=100, rates={SEARCH: {"per_s": 50.0, "burst": 5}})
        await calls(rows, 60)
        async with leading(rows, **SELDOM):
            await rows.until_value(60, "select count(*) from actions where state = 'granted'")
        moments = await granted_at(rows)
        assert most_beyond(moments, self.RATE) < 0.5
        assert 1.09 < moments[-1] - moments[0] < 4.0, "polls alone would take 11 s"

    async def test_call_that_ends_immediately_frees_concurrency_but_no_token(self, rows: Rows) -> None:
        await a_broker(rows, calls=3, rates={SEARCH: {"per_s": 50.0, "burst": 5}})
        await calls(rows, 60)
        peers = RecordingPeers()
        async with leading(rows, peers, **SELDOM) as leader:
            await end_at_once(rows, leader, peers, count=60)
        moments = await granted_at(rows)
        assert most_beyond(moments, self.RATE) < 0.5
        assert 1.09 < moments[-1] - moments[0] < 4.0, "polls alone would take 11 s"

    async def test_fast_rate_needs_few_rounds(self, rows: Rows) -> None:
        await a_broker(rows, calls=1000, rates={SEARCH: {"per_s": 1000.0, "burst": 100}})
        await calls(rows, 400)
        policy = Counting()
        async with leading(rows, policy=policy, **SELDOM):
            await rows.until_value(400, "select count(*) from actions where state = 'granted'")
        moments = await granted_at(rows)
        assert most_beyond(moments, RateLimit(per_s=1000.0, burst=100)) < 0.5
        # Each grant is followed by a look whether more came.
        assert len(policy.rounds) < 10 + 2 * (moments[-1] - moments[0]) / 0.02

    async def test_new_leader_counts_running_calls_as_spent_tokens(self, rows: Rows) -> None:
        node = await a_broker(rows, calls=100, rates={SEARCH: {"per_s": 0.001, "burst": 5}})
        await calls(rows, 3, state="running", node_id=node, amounts={SEARCH: 1})
        waiting = await calls(rows, 4)
        async with leading(rows, **SELDOM):
            late = await rows.action(deadline_at=await rows.value("select now() + interval '50 milliseconds'"))
            for action in waiting[:2]:
                await rows.until_state(action, "granted")
            await rows.until_state(late, "settled")
        assert [(await rows.of(action))["state"] for action in waiting[2:]] == ["queued"] * 2


class TestWaking:
    async def test_empty_bucket_without_queued_calls_starts_no_rounds(self, rows: Rows) -> None:
        await a_broker(rows, calls=1000, rates={SEARCH: {"per_s": 40.0, "burst": 80}})
        await rows.action(state="running", node_id=await rows.node("busy", cores=1))
        await calls(rows, 80)
        policy = Counting()
        async with leading(rows, policy=policy, **SELDOM) as leader:
            await rows.until_value(80, "select count(*) from actions where state = 'granted'")
            leader.inbox.admitted(a_queued_row(number) for number in range(10_000))
            in_a_second = await rows.value("select now() + interval '1 second'")
            late = await rows.action(deadline_at=in_a_second)
            leader.inbox.admitted([])
            before = len(policy.rounds)
            await rows.until_state(late, "settled")
            assert (view := leader.view()) is not None
            assert view[0].queued_count == 10_000
            assert len(policy.rounds) - before < 10


class TestPoll:
    async def test_invalid_rates_of_a_node_are_ignored_or_clamped(self, rows: Rows) -> None:
        node = await a_broker(rows, calls=10, rates={})
        for said, read in (
            ({SEARCH: {"per_s": 10.5, "burst": 20}}, {SEARCH: RateLimit(10.5, 20)}),
            ({SEARCH: {"per_s": 1, "burst": 1}, "calls:other": {"per_s": 1, "burst": 1}}, {SEARCH: RateLimit(1.0, 1)}),
            ({SEARCH: {"per_s": 0, "burst": -3}}, {SEARCH: RateLimit(1e-6, 1)}),
            ({SEARCH: {"per_s": 10**400, "burst": 10**400}}, {SEARCH: RateLimit(1e6, 1_000_000)}),
            ({SEARCH: {"per_s": "10", "burst": 20}}, {}),
            ({SEARCH: {"per_s": 10}}, {}),
            ({SEARCH: [10, 20]}, {}),
            ({SEARCH: None}, {}),
            ([SEARCH], {}),
            (None, {}),
        ):
            await rows.execute("update nodes set rates = $2 where id = $1", node, json.dumps(said))
            async with store_of(rows.owner_url, "scheduler") as store, store.read() as tx:
                poll = await repository.poll(tx, checkpoint=0)
            assert {each.id: dict(each.rate_limits) for each in poll.nodes} == {node: read}, said

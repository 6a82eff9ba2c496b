"""Test what the leader learns from ended attempts and passes on to the next leader."""

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
import pytest_asyncio

from arl_core.domain.model import ActionClass, Fence, ResourceDemand, ResourceShape
from arl_scheduler.leader.duration_learner import SAVE_BATCH, DurationLearner
from arl_scheduler.leader.election import LeaderElection
from arl_scheduler.queries.estimate_queries import RunDuration
from arl_store.tx import PostgresStore
from support.builders import a_class
from support.rows import AMOUNTS, Rows, rows_in
from support.scheduler import leading

RUN = RunDuration(run_us=2_000_000, cpu_us=500_000)
SETTLED = "update actions set state = 'settled', outcome = $2, run_us = $3, settled_at = now() where id = $1"


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        await rows.node()
        yield rows


async def granted(rows: Rows) -> Fence:
    action = await rows.action()
    await rows.until_state(action, "granted")
    return await rows.fence(action)


async def settle(rows: Rows, fence: Fence, outcome: str = "ok") -> None:
    """Settle the attempt as its manager does, without notifying the leader."""
    sql = "insert into action_results (id, grant_no, cpu_us) values ($1, 1, $2)"
    await rows.execute(sql, fence.action_id, RUN.cpu_us)
    await rows.unguarded(SETTLED, fence.action_id, outcome, RUN.run_us)


async def kept(rows: Rows) -> list[list[list[int]]]:
    return [
        json.loads(each) for each in await rows.value("select coalesce(array_agg(runs), '{}') from class_estimates")
    ]


async def until_kept(rows: Rows, count: int) -> None:
    async def is_kept() -> bool:
        return sum(map(len, await kept(rows))) == count

    await rows.until(is_kept)


async def class_of(rows: Rows, action: UUID) -> ActionClass:
    key = await rows.value("select class_key from action_specs where id = $1", action)
    return ActionClass(key=key, kind="exec", shape=ResourceShape.DIVISIBLE, demand=ResourceDemand(AMOUNTS))


async def test_notified_run_time_is_known_to_the_next_leader(rows: Rows) -> None:
    async with leading(rows) as rounds:
        fence = await granted(rows)
        await settle(rows, fence)
        rounds.inbox.freed([fence], runs={fence: RUN})
        await until_kept(rows, 1)
    assert await kept(rows) == [[[1000, RUN.run_us, RUN.cpu_us, 1]]]
    async with leading(rows) as rounds:
        await granted(rows)
        assert rounds.duration_learner.estimates.seconds(await class_of(rows, fence.action_id), 1000) == 2.0


async def test_run_times_are_saved_when_a_leader_stops(rows: Rows) -> None:
    async with leading(rows) as rounds:
        for _ in range(2):
            fence = await granted(rows)
            await settle(rows, fence)
            rounds.inbox.freed([fence], runs={fence: RUN})
            following = await granted(rows)  # by a round after that mail was read
            rounds.inbox.freed([following])
    assert sum(map(len, await kept(rows))) == 2


async def test_run_time_without_notification_is_read_from_its_row(rows: Rows) -> None:
    async with leading(rows):
        await settle(rows, await granted(rows))
        await until_kept(rows, 1)
    assert await kept(rows) == [[[1000, RUN.run_us, RUN.cpu_us, 1]]]


@pytest.mark.parametrize("outcome", ["user_timeout", "cancelled", "limit_exceeded"])
async def test_killed_attempts_are_not_learned(rows: Rows, outcome: str) -> None:
    async with leading(rows):
        await settle(rows, await granted(rows), outcome)
        await settle(rows, await granted(rows))
        await until_kept(rows, 1)


async def test_leader_that_lost_its_term_saves_nothing(rows: Rows) -> None:
    async with leading(rows) as rounds:
        fence = await granted(rows)
        await rows.execute("update leader_term set term = term + 1")
        await settle(rows, fence)
        rounds.inbox.freed([fence], runs={fence: RUN})

        async def has_lost() -> bool:
            return rounds.election.term is None

        await rows.until(has_lost)
    assert await kept(rows) == []


async def test_new_leader_learns_from_actions_granted_by_its_predecessor(rows: Rows) -> None:
    """The new leader has seen no action of this class in the queue."""
    async with leading(rows):
        fence = await granted(rows)
    async with leading(rows) as rounds:
        await granted(rows)
        await settle(rows, fence)
        rounds.inbox.freed([fence], runs={fence: RUN})
        await until_kept(rows, 1)


async def test_estimates_unused_for_a_month_are_deleted(rows: Rows) -> None:
    sql = "insert into class_estimates (class_key, runs, seen_at) values ($1, '[]', now() - $2::text::interval)"
    for key, age in ((1, "31 days"), (2, "29 days")):
        await rows.execute(sql, key, age)
    async with leading(rows):
        await rows.until_value([2], "select array_agg(class_key) from class_estimates")


class Failing:
    """A store whose writes fail."""

    def write(self) -> None:
        raise OSError("no room")


async def test_failed_save_fails_one_poll_but_not_the_next() -> None:
    learning = DurationLearner(cast(PostgresStore, Failing()))
    for key in range(SAVE_BATCH):
        learning.estimates.observe(a_class(key), amount=1000, run_s=1.0)
    leadership = cast(LeaderElection, SimpleNamespace(cell=0, term=1))
    with pytest.raises(OSError, match="no room"):
        await learning.save(leadership)
    await learning.save(leadership)
    assert len(learning.estimates.take_changes(limit=SAVE_BATCH)) == SAVE_BATCH

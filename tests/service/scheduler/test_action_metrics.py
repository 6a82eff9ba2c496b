"""Test that the leader counts each action that it settles, also those that it reclaims from a lost node."""

from collections.abc import AsyncIterator
from functools import partial
from uuid import UUID

import pytest_asyncio

from arl_kit.metrics import Metrics
from support.builders import EPOCH
from support.conditions import eventually
from support.rows import Rows, rows_in
from support.scheduler import leading

EXEC = {"project": "p", "kind": "exec"}


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


async def running_on_a_silent_node(rows: Rows, *, retries: int) -> UUID:
    node = await rows.node(f"n{retries}", cores=4)
    action = await rows.action(
        state="running",
        node_id=node,
        node_epoch=EPOCH,
        grant_no=1,
        retries=retries,
        amounts='{"cpu_milli": 2000}',
        queue_id=await rows.queue_of(f"retries-{retries}"),
    )
    await rows.unguarded("update actions set granted_at = now() - interval '1 minute' where id = $1", action)
    await rows.execute("update node_beats set last_beat = now() - interval '1 hour' where node_id = $1", node)
    return action


async def test_reclaimed_action_is_counted_with_its_cores_only_if_it_settles(rows: Rows) -> None:
    metrics = Metrics()
    lost = await running_on_a_silent_node(rows, retries=0)
    again = await running_on_a_silent_node(rows, retries=1)
    async with leading(rows, metrics=metrics):
        await rows.until_state(lost, "settled")
        await rows.until_state(again, "queued")
        value = metrics.registry.get_sample_value
        await eventually(lambda: value("tangram_attempts_reclaimed_total") == 2)
        for task in ("retries-0", "retries-1"):
            counted = partial(value, "tangram_allocated_core_seconds_total", EXEC | {"task": task})
            await eventually(lambda counted=counted: counted() is not None)
    without, having = EXEC | {"task": "retries-0"}, EXEC | {"task": "retries-1"}
    ended = {"outcome": "infra_error", "reason": "node_lost"}
    assert value("tangram_actions_settled_total", without | ended) == 1
    assert value("tangram_action_completion_seconds_count", without) == 1
    assert value("tangram_action_completion_seconds_count", having) is None
    for task in (without, having):
        assert 120 <= (value("tangram_allocated_core_seconds_total", task) or 0) < 500
        assert value("tangram_used_core_seconds_total", task) == 0


async def test_action_cancelled_or_late_in_the_queue_is_counted_with_its_queueing_delay(rows: Rows) -> None:
    metrics = Metrics()
    cancelled = await rows.action(queue_id=await rows.queue_of("cancels"))
    await rows.unguarded("update actions set cancel_requested_at = now() where id = $1", cancelled)
    late = await rows.action(queue_id=await rows.queue_of("late"), deadline_at=await rows.value("select now()"))
    async with leading(rows, metrics=metrics):
        await rows.until_state(cancelled, "settled")
        await rows.until_state(late, "settled")
        # The leader counts after the commit and after it has read the names.
        value = metrics.registry.get_sample_value
        for task in ("cancels", "late"):
            counted = partial(value, "tangram_action_queueing_seconds_count", EXEC | {"task": task})
            await eventually(lambda counted=counted: counted() == 1)
    for task, outcome in (("cancels", "cancelled"), ("late", "deadline_in_queue")):
        labels = EXEC | {"task": task}
        assert value("tangram_actions_settled_total", labels | {"outcome": outcome, "reason": ""}) == 1
        assert value("tangram_action_queueing_seconds_count", labels) == 1
        assert value("tangram_action_run_seconds_count", labels) == 0

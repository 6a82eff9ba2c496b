"""Test the broker on a real Postgres against the manager contract."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from aiohttp import web

from arl_core.domain.model import Fence
from arl_store.tx import Row
from support.api import Broker, brokering
from support.conditions import eventually
from support.endpoint import Asked, External, external
from support.rows import Rows, rows_in

WISHED = "update actions set cancel_requested_at = now() where id = $1"


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


@pytest_asyncio.fixture
async def there() -> AsyncIterator[External]:
    async with external() as there:
        yield there


@pytest_asyncio.fixture
async def broker(rows: Rows, there: External) -> AsyncIterator[Broker]:
    async with brokering(rows, there, concurrency=2) as broker:
        yield broker


def holding(there: External) -> asyncio.Event:
    """Make the endpoint hold its answers until the returned event is set."""
    may_answer = asyncio.Event()

    async def answer(_: Asked) -> web.StreamResponse:
        await may_answer.wait()
        return web.Response(text="found")

    there.answer = answer
    return may_answer


async def test_repeated_offers_and_polls_of_a_grant_send_one_request(broker: Broker) -> None:
    may_answer = holding(broker.there)
    action = await broker.granted()
    for _ in range(3):
        await broker.offer(action)
    await eventually(lambda: broker.there.in_flight == 1)
    await broker.manager.poll()
    may_answer.set()
    await eventually(lambda: broker.manager.fences == frozenset())
    assert await broker.end(action) == ("settled", "ok", None)
    assert len(broker.there.asked) == 1
    found = await broker.rows.pool.fetchrow("select stdout, response from action_results where id = $1", action)
    assert (found["stdout"], json.loads(found["response"])["status"]) == (b"found", 200)


async def test_grant_without_notification_is_found_by_the_poll(broker: Broker) -> None:
    action = await broker.granted()
    await eventually(lambda: len(broker.there.asked) == 1 and broker.manager.fences == frozenset())
    assert await broker.end(action) == ("settled", "ok", None)


async def test_calls_above_endpoint_concurrency_are_requeued(broker: Broker) -> None:
    may_answer = holding(broker.there)
    actions = [await broker.granted() for _ in range(3)]
    await broker.offer(*actions)
    await eventually(lambda: broker.there.in_flight == 2)
    states = [(await broker.end(action))[0] for action in actions]
    assert sorted(states) == ["queued", "running", "running"]
    assert await broker.rows.value("select array_agg(reason) from attempts") == ["refused"]
    may_answer.set()
    await eventually(lambda: broker.manager.fences == frozenset())


async def test_call_cancelled_before_start_is_never_sent(broker: Broker) -> None:
    action = await broker.granted()
    await broker.rows.unguarded(WISHED, action)
    await broker.offer(action)
    await eventually(lambda: broker.manager.fences == frozenset())
    assert await broker.end(action) == ("settled", "cancelled", None)
    assert broker.there.asked == []


async def test_cancel_request_stops_a_running_call(broker: Broker) -> None:
    holding(broker.there)
    action = await broker.granted()
    await broker.offer(action)
    await eventually(lambda: broker.there.in_flight == 1)
    await broker.rows.unguarded(WISHED, action)
    await eventually(lambda: broker.manager.fences == frozenset())
    assert await broker.end(action) == ("settled", "cancelled", None)
    await eventually(lambda: broker.there.in_flight == 0)


async def test_call_killed_before_its_task_starts_settles_as_cancelled(broker: Broker) -> None:
    holding(broker.there)
    action = await broker.granted()
    launch = broker.manager.launch

    async def launch_and_kill(rows: Mapping[Fence, Row]) -> None:
        await launch(rows)
        await broker.manager.kill(list(rows))

    broker.manager.launch = launch_and_kill  # type: ignore[method-assign]
    await broker.offer(action)
    await eventually(lambda: broker.manager.fences == frozenset())
    assert await broker.end(action) == ("settled", "cancelled", None)


async def test_call_with_a_lost_fence_is_aborted_and_writes_nothing(broker: Broker) -> None:
    may_answer = holding(broker.there)
    action = await broker.granted()
    await broker.offer(action)
    await eventually(lambda: broker.there.in_flight == 1)
    await broker.rows.unguarded("update actions set node_epoch = $2 where id = $1", action, uuid4())
    await eventually(lambda: broker.there.in_flight == 0)
    may_answer.set()
    await eventually(lambda: broker.manager.fences == frozenset())
    assert (await broker.end(action))[0] == "running"
    assert await broker.rows.value("select count(*) from action_results") == 0


async def test_lapsed_lease_blocks_sending_until_the_next_poll(broker: Broker) -> None:
    manager = broker.manager
    await manager._grants.stop_polling()  # from now on the test says when it polls
    assert manager._can_send()
    heartbeat = manager._grants._heartbeat
    assert heartbeat is not None
    heartbeat.lease_lapses += 1
    assert not manager._can_send()
    await manager.poll()
    assert manager._can_send()


async def test_running_row_that_was_never_sent_is_sent(broker: Broker) -> None:
    action = await broker.granted(state="running")
    await eventually(lambda: len(broker.there.asked) == 1 and broker.manager.fences == frozenset())
    assert await broker.end(action) == ("settled", "ok", None)


async def test_missing_endpoint_and_unreadable_request_settle_with_their_reason(broker: Broker) -> None:
    gone = await broker.granted(request={"endpoint": "other"})
    unreadable = await broker.granted(request={"body": "é"})
    await broker.offer(gone, unreadable)
    await eventually(lambda: broker.manager.fences == frozenset())
    assert await broker.end(gone) == ("settled", "infra_error", "endpoint_gone")
    assert await broker.end(unreadable) == ("settled", "infra_error", "setup_failed")


@pytest.mark.parametrize("request_", [{"method": "DELETE"}, {"headers": {"Range": "bytes=0-2"}}])
async def test_request_that_the_endpoint_does_not_allow_is_never_sent(
    rows: Rows, there: External, request_: dict[str, Any]
) -> None:
    async with brokering(rows, there, key="sk-0123456789") as broker:
        refused = await broker.granted(request=request_)
        await broker.offer(refused)
        await eventually(lambda: broker.manager.fences == frozenset())
        assert await broker.end(refused) == ("settled", "user_error", None)
    assert there.asked == []


async def test_infrastructure_error_is_requeued_while_retries_are_left(rows: Rows, there: External) -> None:
    async with brokering(rows, there, max_attempts=1) as broker:
        there.answers(500, 500)
        again, last = await broker.granted(retries=1), await broker.granted(retries=0)
        await broker.offer(again, last)
        await eventually(lambda: broker.manager.fences == frozenset())
        assert await broker.end(again) == ("queued", None, None)
        assert await rows.value("select reason from attempts where id = $1", again) == "endpoint_unavailable"
        assert await broker.end(last) == ("settled", "infra_error", "endpoint_unavailable")


async def test_node_publishes_capacity_and_halves_it_while_throttled(rows: Rows, there: External) -> None:
    said = "select capacity::text, rates::text, endpoints::text from nodes where name = 'b'"
    async with brokering(rows, there, concurrency=8, rate_per_s=50, max_attempts=1) as broker:
        capacity, rates, _ = map(json.loads, await rows.pool.fetchrow(said))
        assert (capacity, rates) == ({"calls:e": 8}, {"calls:e": {"per_s": 50.0, "burst": 50}})
        there.answers(429)
        await broker.offer(await broker.granted())

        async def is_halved() -> bool:
            capacity, _, endpoints = map(json.loads, await rows.pool.fetchrow(said))
            return capacity == {"calls:e": 4} and endpoints[0]["health"].startswith("endpoint_throttled")

        await eventually(is_halved)


async def test_response_bytes_that_postgres_text_rejects_still_settle(broker: Broker) -> None:
    async def odd(_: Asked) -> web.StreamResponse:
        return web.Response(body=b"\x00\xff", headers={"X-Odd": "\udcff"}, content_type="application/octet-stream")

    broker.there.answer = odd
    action = await broker.granted()
    await broker.offer(action)
    await eventually(lambda: broker.manager.fences == frozenset())
    assert await broker.end(action) == ("settled", "ok", None)
    assert await broker.rows.value("select stdout from action_results where id = $1", action) == b"\x00\xff"


async def test_stopping_broker_lets_running_calls_finish(rows: Rows, there: External) -> None:
    may_answer = holding(there)
    async with brokering(rows, there) as broker:
        action = await broker.granted()
        await broker.offer(action)
        await eventually(lambda: there.in_flight == 1)
        asyncio.get_running_loop().call_later(0.1, may_answer.set)
    assert await broker.end(action) == ("settled", "ok", None)


async def test_call_aborted_by_a_stopping_broker_stays_running(rows: Rows, there: External) -> None:
    holding(there)
    async with brokering(rows, there, grace_s=0.05) as broker:
        action = await broker.granted()
        await broker.offer(action)
        await eventually(lambda: there.in_flight == 1)
    await eventually(lambda: there.in_flight == 0)
    assert await broker.end(action) == ("running", None, None)

"""Test how the broker handles calls, without Postgres."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from arl_api.broker import EndpointBroker
from arl_api.calls import CallReport, EndpointCall
from arl_api.metrics import ApiMetrics
from arl_api.settings import EndpointSettings
from arl_core.domain.model import Fence
from arl_kit.metrics import Metrics
from arl_store.values import uuid7
from support.conditions import eventually
from support.endpoint import Asked, External, external


@pytest_asyncio.fixture
async def there() -> AsyncIterator[External]:
    async with external() as there:
        yield there


class Lease:
    counts = True


@asynccontextmanager
async def a_broker(
    there: External, reports: list[CallReport], lease: Lease | None = None, **settings: Any
) -> AsyncIterator[EndpointBroker]:
    lease = lease or Lease()
    endpoints = {"e": EndpointSettings(url=there.url, **settings)}
    broker = EndpointBroker(endpoints, ApiMetrics(Metrics()), report=reports.append, can_send=lambda: lease.counts)
    try:
        yield broker
    finally:
        await broker.stop(0.0)


def a_call(**fields: Any) -> EndpointCall:
    basic = {"fence": Fence(uuid7(), 1), "endpoint": "e", "method": "GET", "path": "", "query": {}, "raw_query": ""}
    return EndpointCall(**{**basic, "headers": {}, "body": b"", "idempotent": False, "timeout_s": 30.0, **fields})


async def test_throttled_endpoint_blocks_queued_calls_before_they_are_sent(there: External) -> None:
    there.answers(*[429] * 9, Retry_After="30")
    async with a_broker(there, [], concurrency=1) as broker:
        for _ in range(3):
            broker.add(a_call())
        lane = broker.queues["e"]
        await eventually(lambda: lane.blocked_for_s > 0 and lane.in_flight == 0)
        assert len(there.asked) == 1


async def test_calls_are_sent_only_while_the_node_lease_is_valid(there: External) -> None:
    reports, lease = list[CallReport](), Lease()
    async with a_broker(there, reports, lease) as broker:
        lease.counts = False
        broker.add(a_call())
        for _ in range(20):  # its turn comes at once
            await asyncio.sleep(0)
        assert (there.asked, broker.queues["e"].requests) == ([], 0)
        lease.counts = True
        await eventually(lambda: bool(reports))
    assert ([each.outcome for each in reports], reports[0].attempts, len(there.asked)) == (["ok"], 1, 1)
    assert broker.queues["e"].requests == 1


async def test_endpoint_that_never_answers_is_unhealthy(there: External) -> None:
    async def never(_: Asked) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    there.answer = never
    reports: list[CallReport] = []
    async with a_broker(there, reports) as broker:
        broker.add(a_call(timeout_s=0.1))
        await eventually(lambda: bool(reports))
        assert (reports[0].outcome, reports[0].reason) == ("infra_error", "endpoint_timeout")
        assert broker.queues["e"].health == "endpoint_timeout: no response within 0.1 s"


async def test_call_that_times_out_in_the_queue_reports_why(there: External) -> None:
    there.answers(429, Retry_After="30", x_should_retry="false")
    reports: list[CallReport] = []
    async with a_broker(there, reports) as broker:
        broker.add(a_call())
        await eventually(lambda: len(reports) == 1)
        broker.add(a_call(timeout_s=0.1))
        await eventually(lambda: len(reports) == 2)
    assert [(each.reason, each.attempts) for each in reports] == [("endpoint_throttled", 1), ("endpoint_throttled", 0)]
    assert "could not be sent within 0.1 s" in str(reports[1].message)


async def test_refused_call_is_retried_until_its_time_ends_whatever_max_attempts_says(there: External) -> None:
    there.answers(*[429] * 3)
    reports: list[CallReport] = []
    async with a_broker(there, reports, max_attempts=1) as broker:
        broker.add(a_call(method="POST", timeout_s=60.0))
        await eventually(lambda: bool(reports))
    assert (reports[0].outcome, reports[0].attempts) == ("ok", 4)


async def test_failed_call_that_may_have_run_is_retried_up_to_max_attempts(there: External) -> None:
    there.answers(*[500] * 9)
    reports: list[CallReport] = []
    async with a_broker(there, reports, max_attempts=2) as broker:
        broker.add(a_call())
        await eventually(lambda: bool(reports))
    assert (reports[0].outcome, reports[0].reason, reports[0].attempts) == ("infra_error", "endpoint_unavailable", 2)


@pytest.mark.parametrize("asked", ["30", "99999", "Wed, 25 Nov 2099 12:00:10 GMT"])
async def test_delay_beyond_the_time_of_a_call_gets_a_last_retry(there: External, asked: str) -> None:
    there.answers(429, Retry_After=asked)
    reports: list[CallReport] = []
    async with a_broker(there, reports) as broker:
        broker.add(a_call(timeout_s=2.0))
        await eventually(lambda: bool(reports))
    assert (reports[0].outcome, reports[0].attempts) == ("ok", 2)


async def test_implausible_delay_does_not_block_other_calls(there: External) -> None:
    there.answers(429, Retry_After="86400")
    reports: list[CallReport] = []
    async with a_broker(there, reports) as broker:
        broker.add(a_call())
        await eventually(lambda: len(there.asked) == 1 and broker.queues["e"].in_flight == 0)
        assert broker.queues["e"].blocked_for_s == 0
        broker.add(a_call())
        await eventually(lambda: len(reports) == 2)
    assert {each.outcome for each in reports} == {"ok"}


async def test_call_that_is_always_refused_ends_as_throttled(there: External) -> None:
    there.answers(*[429] * 99)
    reports: list[CallReport] = []
    async with a_broker(there, reports) as broker:
        broker.add(a_call(timeout_s=1.2))
        await eventually(lambda: bool(reports))
    assert (reports[0].outcome, reports[0].reason) == ("infra_error", "endpoint_throttled")


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        ({"error": {"code": "insufficient_quota"}}, {}, "endpoint_refused"),
        ({}, {"x-should-retry": "false"}, "endpoint_throttled"),
    ],
)
async def test_refusal_that_no_wait_ends_is_not_retried(
    there: External, body: dict[str, Any], headers: dict[str, str], reason: str
) -> None:
    async def answer(_: Asked) -> web.StreamResponse:
        return web.json_response(body, status=429, headers=headers)

    there.answer = answer
    reports: list[CallReport] = []
    async with a_broker(there, reports) as broker:
        broker.add(a_call())
        await eventually(lambda: bool(reports))
    assert (reports[0].reason, reports[0].attempts) == (reason, 1)

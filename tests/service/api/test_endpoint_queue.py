"""Test the endpoint queue: slots, retries, throttling and rate limits, in real time."""

import asyncio
from typing import Any

from arl_api.endpoint_queue import EndpointQueue
from arl_api.settings import EndpointSettings
from arl_api.verdicts import CallVerdict
from arl_core.control.rate_limits import RateLimit, TokenBucket
from support.conditions import eventually


def a_lane(**settings: Any) -> EndpointQueue:
    return EndpointQueue(EndpointSettings(url="http://e", **settings))


class Visits:
    """A set of named calls; each occupies a slot until the test ends it."""

    def __init__(self, lane: EndpointQueue) -> None:
        self.lane = lane
        self.inside: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, *names: str, again: bool = False) -> None:
        for name in names:
            self.leave[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._visit(name, again=again))
            await asyncio.sleep(0)

    async def _visit(self, name: str, *, again: bool) -> None:
        async with self.lane.acquire_slot(is_retry=again):
            self.inside.append(name)
            await self.leave[name].wait()

    async def end(self, name: str) -> None:
        self.leave[name].set()
        await self.tasks[name]

    async def cancel(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def test_retries_get_a_slot_before_first_attempts() -> None:
    visits = Visits(a_lane(concurrency=1))
    await visits.begin("a", "b")
    await visits.begin("c", again=True)
    for name in ("a", "c", "b"):
        await eventually(lambda name=name: visits.inside[-1] == name)
        await visits.end(name)
    assert visits.lane.in_flight == 0


async def test_call_cancelled_when_granted_a_slot_passes_it_on() -> None:
    lane = a_lane(concurrency=1)
    visits = Visits(lane)
    first = lane.acquire_slot(is_retry=False)
    await first.__aenter__()
    await visits.begin("b", "c")
    await first.__aexit__(None, None, None)  # without a step of the loop: it is b's turn, and b has not run yet
    visits.tasks["b"].cancel()
    await eventually(lambda: visits.inside == ["c"])
    await visits.end("c")
    assert lane.in_flight == 0


async def test_queued_call_continues_by_itself_after_retry_after() -> None:
    lane = a_lane(concurrency=4)
    visits, loop = Visits(lane), asyncio.get_running_loop()
    begun = loop.time()
    lane.record_result(CallVerdict.THROTTLED, "429", sent_at=begun, retry_after_s=0.2)
    await visits.begin("a")
    assert 0 < lane.blocked_for_s <= 0.2
    await eventually(lambda: visits.inside == ["a"])
    assert loop.time() - begun >= 0.2
    await visits.end("a")


async def test_throttling_halves_the_concurrency_window_and_success_restores_health() -> None:
    lane = a_lane(concurrency=4)
    visits = Visits(lane)
    lane.record_result(CallVerdict.THROTTLED, "429", sent_at=asyncio.get_running_loop().time(), retry_after_s=None)
    await visits.begin("a", "b", "c")
    await eventually(lambda: len(visits.inside) == 2)
    assert (lane.window.size, lane.in_flight, lane.throttled) == (2, 2, 1)
    assert lane.health == "endpoint_throttled: 429"
    lane.record_result(CallVerdict.ANSWERED, "200", sent_at=0.0, retry_after_s=None)
    assert lane.health == "ok"
    await visits.cancel()
    assert lane.in_flight == 0


async def test_rate_limit_applies_to_retries_too() -> None:
    lane = a_lane(concurrency=64, rate_per_s=100, burst=7)
    loop = asyncio.get_running_loop()
    moments: list[float] = []

    async def visit() -> None:
        for again in (False, True):
            async with lane.acquire_slot(is_retry=again):
                moments.append(loop.time())

    begun = loop.time()
    await asyncio.gather(*(visit() for _ in range(10)))
    moments.sort()
    for at, moment in enumerate(moments):
        assert at + 1 <= 2 + 100 * (moment - begun) + 1e-6
    assert len(moments) == 20


async def test_late_first_request_of_a_burst_keeps_the_rate() -> None:
    """The endpoint's own token bucket stays full until the first request arrives."""
    lane = a_lane(concurrency=64, rate_per_s=50, burst=6)
    there, loop = TokenBucket(RateLimit(50, 6), now=0.0), asyncio.get_running_loop()
    early: list[float] = []

    async def request(late_s: float) -> None:
        async with lane.acquire_slot(is_retry=False):
            await asyncio.sleep(late_s)
            arrived = loop.time()
            if there.available(arrived) < 1:
                early.append(arrived)
            there.take(1, now=arrived)

    await asyncio.gather(request(0.03), *(request(0.0) for _ in range(20)))
    assert early == []


async def test_throttling_at_the_rate_limit_halves_concurrency_only_if_repeated() -> None:
    lane = a_lane(concurrency=8, rate_per_s=1, burst=1)
    async with lane.acquire_slot(is_retry=False):
        sent = asyncio.get_running_loop().time()
        for _ in range(2):  # of requests that were under way together
            lane.record_result(CallVerdict.THROTTLED, "429", sent_at=sent, retry_after_s=None)
        assert (lane.window.size, lane.throttled) == (8, 2)
        lane.record_result(CallVerdict.THROTTLED, "429", sent_at=sent + 1, retry_after_s=None)
        assert (lane.window.size, lane.throttled) == (4, 3)

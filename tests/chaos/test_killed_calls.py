"""Test that killing brokers, schedulers, admission and gateways never executes a call twice."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import pytest_asyncio
from aiohttp import web

from arl_tangram import Action, ActionOutcome, AsyncTangram, SubmitActionRequest, call_action
from support.endpoint import Asked, External, external
from support.postgres import Databases
from support.system import API_KEY, System, running_system

CALLS, KILLS = 600, 24
KILLED = ("api", "scheduler", "admission", "gateway")
PATIENCE_S = 120.0


@pytest_asyncio.fixture
async def there() -> AsyncIterator[External]:
    """Provide an external API that is sometimes slow and sometimes throttles."""
    async with external() as there:
        whims = random.Random(0)

        async def answer(_: Asked) -> web.StreamResponse:
            whim = whims.random()
            if whim < 0.05:
                return web.Response(status=429, headers={"Retry-After": "0.1"})
            await asyncio.sleep(0.3 if whim > 0.9 else 0.02)
            return web.Response(text="done")

        there.answer = answer
        yield there


@pytest_asyncio.fixture
async def system(databases: Databases, there: External) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    endpoints = f'{{"e": {{"url": "{there.url}", "concurrency": 8, "rate_per_s": 60, "burst": 20}}}}'
    node = {"TANGRAM_ENDPOINTS": endpoints, "TANGRAM_NODE_TTL_S": "2", "TANGRAM_BEAT_S": "0.3"}
    leader = {"TANGRAM_NODE_TTL_S": "2", "TANGRAM_LEADER_TTL_S": "1"}
    async with running_system(owner_url, overrides={"api": node, "scheduler": leader}) as system:
        await system.start("api")
        yield system
    await databases.drop(owner_url)


async def kill_now_and_then(system: System, random_: random.Random) -> None:
    for number in range(KILLS):
        await asyncio.sleep(random_.uniform(0, 0.6))
        name = KILLED[number % len(KILLED)]
        system.kill(name)
        await system.start(name)


def a_call(number: int) -> SubmitActionRequest:
    """Return a call; every second one is a POST that must not be sent twice."""
    if number % 2:
        return call_action("e", f"post/{number}", body=str(number), task="chaos")
    return call_action("e", f"get/{number}", retries=10, task="chaos")


@pytest.mark.slow
async def test_calls_settle_once_and_posts_are_never_repeated_under_kills(system: System, there: External) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    async with AsyncTangram(system.url, API_KEY, retry_timeout_s=PATIENCE_S) as client:
        killing = asyncio.create_task(kill_now_and_then(system, random_))
        ids: list[UUID] = []
        for first in range(0, CALLS, 50):
            ids += await client.submit_many([a_call(number) for number in range(first, first + 50)])
        await killing
        settled = {action.id: action for action in await client.wait(ids, timeout_s=PATIENCE_S)}
        again = {action.id: action for action in await client.wait(ids, timeout_s=PATIENCE_S)}
    assert len(settled) == CALLS
    assert {id: each.outcome for id, each in settled.items()} == {id: each.outcome for id, each in again.items()}
    carried_out = Counter(asked.url for asked in there.asked if there.carried_out(asked))
    for number, id in enumerate(ids):
        expect_one_truth(number, settled[id], carried_out)
    print(Counter((each.outcome, each.reason) for each in settled.values()))


def expect_one_truth(number: int, action: Action, carried_out: Counter[str]) -> None:
    """Check that the recorded outcome matches the requests that the API received."""
    assert action.outcome in (ActionOutcome.OK, ActionOutcome.INFRA_ERROR), action
    times = carried_out[f"/{'post' if number % 2 else 'get'}/{number}"]
    if action.outcome is ActionOutcome.OK:
        assert times >= 1, action
        assert action.result is not None
        assert action.result.response is not None
        assert action.result.response.body.text == "done"
    if number % 2:
        assert times <= 1, f"call {number} was carried out {times} times: {action}"
    else:
        assert action.outcome is ActionOutcome.OK, action

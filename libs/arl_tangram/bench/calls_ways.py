"""Ways to stay within an API's quota: by one broker for all jobs, or each job by itself."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import aiohttp

from arl_core.rate import Rate, TokenBucket
from arl_core.states import Outcome
from arl_tangram.bench.calls_load import Sizes
from arl_tangram.client import AsyncTangram
from arl_tangram.endpoints import call_action
from arl_wire.actions import Action

__all__ = ["ENDPOINT", "Asked", "Called", "back_off", "by_broker", "split", "through"]

ENDPOINT = "quota"
PATH = "search"
FIRST_PAUSE_S, LONGEST_PAUSE_S, JITTER = 0.5, 8.0, 0.25
LONGEST_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Called:
    """One call, by the machine's monotonic clock."""

    key: str
    wanted: float
    ended: float
    answered: bool
    """Else it was given up then."""
    retries: int = 0

    @property
    def act_s(self) -> float:
        return self.ended - self.wanted


Asked = Callable[[int, Sequence[str]], Awaitable[list[Called]]]
"""All calls of a phase at once, by the number of the job."""


def by_broker(client: AsyncTangram) -> Asked:
    """Actions of a task for each job."""

    async def ask(job: int, keys: Sequence[str]) -> list[Called]:
        wanted = time.monotonic()
        actions = [call_action(ENDPOINT, PATH, query={"q": key}, task=f"job-{job}") for key in keys]
        ids = await client.submit_many(actions)
        key_of = dict(zip(ids, keys, strict=True))
        return [
            Called(key_of[action.id], wanted, time.monotonic(), _is_answer(action, key_of[action.id]))
            async for action in client.as_completed(ids)
        ]

    return ask


def through(session: aiohttp.ClientSession, gateway: str, api_key: str) -> Asked:
    """Plain requests to another address."""

    async def ask(job: int, keys: Sequence[str]) -> list[Called]:
        url = f"{gateway}/t/job-{job}/endpoints/{ENDPOINT}/{PATH}"
        send = partial(_send, session, url, {"Authorization": f"Bearer {api_key}"})
        return await _each(keys, partial(_once, send))

    return ask


def back_off(session: aiohttp.ClientSession, url: str, sizes: Sizes) -> Asked:
    """Each call by itself, again after a 429 as OpenAI's and Anthropic's clients do it."""
    send = partial(_send, session, f"{url}/{PATH}", {})

    async def ask(_: int, keys: Sequence[str]) -> list[Called]:
        return await _each(keys, partial(_persistent, send, sizes.retries))

    return ask


def split(session: aiohttp.ClientSession, url: str, sizes: Sizes) -> Asked:
    """Each job has its part of the quota and keeps to it; after a 429 all the same it backs off."""
    send = partial(_send, session, f"{url}/{PATH}", {})
    parts = [_Part(sizes) for _ in range(sizes.jobs)]

    async def ask(job: int, keys: Sequence[str]) -> list[Called]:
        return await _each(keys, partial(_persistent, partial(parts[job].send, send), sizes.retries))

    return ask


@dataclass(frozen=True, slots=True)
class _Reply:
    answered: bool
    after_s: float | None = None
    is_throttled: bool = False


_Send = Callable[[str], Awaitable[_Reply]]


class _Part:
    """Of the quota, one job's."""

    def __init__(self, sizes: Sizes) -> None:
        self._slots = asyncio.Semaphore(max(1, sizes.concurrency // sizes.jobs))
        rate = Rate(sizes.per_s / sizes.jobs, max(1, sizes.burst // sizes.jobs))
        self._bucket = TokenBucket(rate, now=time.monotonic())

    async def send(self, send: _Send, key: str) -> _Reply:
        async with self._slots:
            now = time.monotonic()
            opens = self._bucket.free_at(1, now=now)
            self._bucket.take(1, now=now)  # whoever comes next waits for the token after this one
            await asyncio.sleep(opens - now)
            return await send(key)


async def _each(keys: Sequence[str], call: Callable[[str, float], Awaitable[Called]]) -> list[Called]:
    wanted = time.monotonic()
    return await asyncio.gather(*(call(key, wanted) for key in keys))


async def _once(send: _Send, key: str, wanted: float) -> Called:
    reply = await send(key)
    return Called(key, wanted, time.monotonic(), reply.answered)


async def _persistent(send: _Send, retries: int, key: str, wanted: float) -> Called:
    for retry in range(retries + 1):
        reply = await send(key)
        if not reply.is_throttled or retry == retries:
            break
        await asyncio.sleep(_pause_s(retry, reply.after_s))
    return Called(key, wanted, time.monotonic(), reply.answered, retry)


def _pause_s(retries: int, after_s: float | None) -> float:
    """What the API asks for, to the letter; else twice as long each time, less up to a quarter."""
    if after_s is not None and 0 < after_s <= LONGEST_AFTER_S:
        return after_s
    return min(FIRST_PAUSE_S * 2.0**retries, LONGEST_PAUSE_S) * (1 - JITTER * random.random())


async def _send(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], key: str) -> _Reply:
    try:
        async with session.get(url, params={"q": key}, headers=headers) as response:
            content = await response.read()
            after = response.headers.get("Retry-After")
    except aiohttp.ClientError:
        return _Reply(answered=False)
    return _Reply(
        response.status == 200 and json.loads(content) == {"q": key},
        float(after) if after is not None else None,
        response.status == 429,
    )


def _is_answer(action: Action, key: str) -> bool:
    response = action.result.response if action.result is not None else None
    return action.outcome is Outcome.OK and response is not None and json.loads(response.body.text) == {"q": key}

"""Strategies to stay within an API's quota: one broker for all jobs, or each job separately."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import aiohttp

from arl_bench.endpoints.call_load import EndpointBenchConfig
from arl_core.control.rate_limits import RateLimit, TokenBucket
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_tangram.resources.endpoints import call_action
from arl_wire.actions.action import Action

__all__ = ["ENDPOINT", "CallBatch", "CallResult", "backoff_calls", "broker_calls", "proxy_calls", "split_quota_calls"]

ENDPOINT = "quota"
PATH = "search"
FIRST_RETRY_DELAY_S, MAX_RETRY_DELAY_S, RETRY_JITTER = 0.5, 8.0, 0.25
MAX_RETRY_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of one call. Times are the machine's monotonic clock."""

    key: str
    requested_at: float
    ended: float
    succeeded: bool
    """False if the call was abandoned at `ended`."""
    retries: int = 0

    @property
    def act_s(self) -> float:
        return self.ended - self.requested_at


CallBatch = Callable[[int, Sequence[str]], Awaitable[list[CallResult]]]
"""A function that makes all calls of a phase at once, for a job number and keys."""


def broker_calls(client: AsyncTangram) -> CallBatch:
    """Send calls as actions, with one task for each job."""

    async def ask(job: int, keys: Sequence[str]) -> list[CallResult]:
        wanted = time.monotonic()
        actions = [call_action(ENDPOINT, PATH, query={"q": key}, task=f"job-{job}") for key in keys]
        ids = await client.submit_many(actions)
        key_of = dict(zip(ids, keys, strict=True))
        return [
            CallResult(key_of[action.id], wanted, time.monotonic(), _is_expected_response(action, key_of[action.id]))
            async for action in client.as_completed(ids)
        ]

    return ask


def proxy_calls(session: aiohttp.ClientSession, gateway: str, api_key: str) -> CallBatch:
    """Send plain requests through the gateway's address."""

    async def ask(job: int, keys: Sequence[str]) -> list[CallResult]:
        url = f"{gateway}/t/job-{job}/endpoints/{ENDPOINT}/{PATH}"
        send = partial(_send, session, url, {"Authorization": f"Bearer {api_key}"})
        return await _send_all(keys, partial(_send_once, send))

    return ask


def backoff_calls(session: aiohttp.ClientSession, url: str, config: EndpointBenchConfig) -> CallBatch:
    """Send each call separately. Retry after a 429 like the clients of OpenAI and Anthropic."""
    send = partial(_send, session, f"{url}/{PATH}", {})

    async def ask(_: int, keys: Sequence[str]) -> list[CallResult]:
        return await _send_all(keys, partial(_send_with_retries, send, config.retries))

    return ask


def split_quota_calls(session: aiohttp.ClientSession, url: str, config: EndpointBenchConfig) -> CallBatch:
    """Give each job a fixed part of the quota. It also backs off after a 429."""
    send = partial(_send, session, f"{url}/{PATH}", {})
    parts = [_QuotaShare(config) for _ in range(config.jobs)]

    async def ask(job: int, keys: Sequence[str]) -> list[CallResult]:
        return await _send_all(keys, partial(_send_with_retries, partial(parts[job].send, send), config.retries))

    return ask


@dataclass(frozen=True, slots=True)
class _CallReply:
    succeeded: bool
    retry_after_s: float | None = None
    is_throttled: bool = False


_SendCall = Callable[[str], Awaitable[_CallReply]]


class _QuotaShare:
    """A job's part of the quota."""

    def __init__(self, config: EndpointBenchConfig) -> None:
        self._slots = asyncio.Semaphore(max(1, config.concurrency // config.jobs))
        rate = RateLimit(config.per_s / config.jobs, max(1, config.burst // config.jobs))
        self._bucket = TokenBucket(rate, now=time.monotonic())

    async def send(self, send: _SendCall, key: str) -> _CallReply:
        async with self._slots:
            now = time.monotonic()
            opens = self._bucket.available_at(1, now=now)
            self._bucket.take(1, now=now)  # the next call waits for the following token
            await asyncio.sleep(opens - now)
            return await send(key)


async def _send_all(keys: Sequence[str], call: Callable[[str, float], Awaitable[CallResult]]) -> list[CallResult]:
    wanted = time.monotonic()
    return await asyncio.gather(*(call(key, wanted) for key in keys))


async def _send_once(send: _SendCall, key: str, requested_at: float) -> CallResult:
    reply = await send(key)
    return CallResult(key, requested_at, time.monotonic(), reply.succeeded)


async def _send_with_retries(send: _SendCall, retries: int, key: str, requested_at: float) -> CallResult:
    for retry in range(retries + 1):
        reply = await send(key)
        if not reply.is_throttled or retry == retries:
            break
        await asyncio.sleep(_retry_delay_s(retry, reply.retry_after_s))
    return CallResult(key, requested_at, time.monotonic(), reply.succeeded, retry)


def _retry_delay_s(retries: int, retry_after_s: float | None) -> float:
    """Return the delay that the API asks for, else an exponential delay, reduced randomly by up to a quarter."""
    if retry_after_s is not None and 0 < retry_after_s <= MAX_RETRY_AFTER_S:
        return retry_after_s
    return min(FIRST_RETRY_DELAY_S * 2.0**retries, MAX_RETRY_DELAY_S) * (1 - RETRY_JITTER * random.random())


async def _send(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], key: str) -> _CallReply:
    try:
        async with session.get(url, params={"q": key}, headers=headers) as response:
            content = await response.read()
            after = response.headers.get("Retry-After")
    except aiohttp.ClientError:
        return _CallReply(succeeded=False)
    return _CallReply(
        response.status == 200 and json.loads(content) == {"q": key},
        float(after) if after is not None else None,
        response.status == 429,
    )


def _is_expected_response(action: Action, key: str) -> bool:
    response = action.result.response if action.result is not None else None
    return action.outcome is ActionOutcome.OK and response is not None and json.loads(response.body.text) == {"q": key}

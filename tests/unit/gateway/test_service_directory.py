"""The cached service directory, with a fake Postgres: lookups are shared, cached and refreshed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arl_gateway.reward_services.service_directory import CACHE_S, MAX_STALE_S, ServiceDirectory
from arl_store.tx import PostgresStore


class Postgres:
    """A fake Postgres with a clock that answers or fails when a test allows it."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.names = ["one"]
        self.looks, self.now = 0, 1000.0
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        self.offered = ServiceDirectory(cast(PostgresStore, self), clock=lambda: self.now)

    @asynccontextmanager
    async def read(self) -> AsyncIterator["Postgres"]:
        self.looks += 1
        self.is_asked.set()
        await self.may_answer.wait()
        if self.fault is not None:
            raise self.fault
        yield self

    async def fetch(self, *_: Any) -> list[SimpleNamespace]:
        services = [{"name": name, "kind": "classifier", "is_anywhere": True} for name in self.names]
        return [SimpleNamespace(services=json.dumps(services), has_cpu_node=True)]

    async def names_of(self, *, with_one: str | None = None) -> list[str]:
        return [each.name for each in await self.offered.list_services(required=with_one) if each.kind == "classifier"]


@pytest.fixture
async def postgres() -> Postgres:
    return Postgres()


async def test_concurrent_callers_share_one_lookup_and_its_error(postgres: Postgres) -> None:
    postgres.fault = TimeoutError()
    postgres.may_answer.clear()
    calls = [asyncio.create_task(postgres.names_of()) for _ in range(20)]
    await postgres.is_asked.wait()
    postgres.may_answer.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in found] == [TimeoutError] * 20
    assert postgres.looks == 1


async def test_lookup_continues_when_one_caller_disconnects(postgres: Postgres) -> None:
    postgres.may_answer.clear()
    first, second = (asyncio.create_task(postgres.names_of()) for _ in range(2))
    await postgres.is_asked.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    postgres.may_answer.set()
    assert await second == ["one"]
    assert postgres.looks == 1


async def test_cached_services_are_used_while_postgres_is_unavailable_until_stale(postgres: Postgres) -> None:
    await postgres.names_of()
    postgres.fault = ConnectionRefusedError()
    postgres.now += MAX_STALE_S
    assert await postgres.names_of(with_one="one") == ["one"]
    postgres.now += 0.1
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await postgres.names_of()


async def test_expired_cache_is_refreshed_once_per_cache_period(postgres: Postgres) -> None:
    await postgres.names_of()
    postgres.fault = TimeoutError()
    postgres.now += CACHE_S
    assert [await postgres.names_of() for _ in range(3)] == [["one"]] * 3
    assert postgres.looks == 2
    postgres.fault, postgres.names = None, ["one", "two"]
    postgres.now += CACHE_S
    assert await postgres.names_of() == ["one", "two"]


async def test_unknown_service_raises_error_while_postgres_is_unavailable(postgres: Postgres) -> None:
    await postgres.names_of()
    postgres.fault = TimeoutError()
    postgres.now += 1
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await postgres.names_of(with_one="two")


async def test_unexpected_error_is_not_hidden_by_cache(postgres: Postgres) -> None:
    await postgres.names_of()
    postgres.fault = LookupError()
    postgres.now += CACHE_S
    with pytest.raises(LookupError):
        await postgres.names_of()

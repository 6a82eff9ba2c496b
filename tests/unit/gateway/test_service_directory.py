"""The list of services that every request asks for, with a stand-in for Postgres: who looks, and who waits for it."""

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
    """Answers, or is away, as soon as it may; and has a clock."""

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


async def test_all_who_wait_share_one_look_and_its_error(postgres: Postgres) -> None:
    postgres.fault = TimeoutError()
    postgres.may_answer.clear()
    calls = [asyncio.create_task(postgres.names_of()) for _ in range(20)]
    await postgres.is_asked.wait()
    postgres.may_answer.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in found] == [TimeoutError] * 20
    assert postgres.looks == 1


async def test_a_look_goes_on_for_the_others_when_one_goes_away(postgres: Postgres) -> None:
    postgres.may_answer.clear()
    first, second = (asyncio.create_task(postgres.names_of()) for _ in range(2))
    await postgres.is_asked.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    postgres.may_answer.set()
    assert await second == ["one"]
    assert postgres.looks == 1


async def test_while_postgres_is_away_what_is_known_will_do_until_it_is_too_old(postgres: Postgres) -> None:
    await postgres.names_of()
    postgres.fault = ConnectionRefusedError()
    postgres.now += MAX_STALE_S
    assert await postgres.names_of(with_one="one") == ["one"]
    postgres.now += 0.1
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await postgres.names_of()


async def test_one_in_a_while_finds_out_whether_postgres_is_back(postgres: Postgres) -> None:
    await postgres.names_of()
    postgres.fault = TimeoutError()
    postgres.now += CACHE_S
    assert [await postgres.names_of() for _ in range(3)] == [["one"]] * 3
    assert postgres.looks == 2
    postgres.fault, postgres.names = None, ["one", "two"]
    postgres.now += CACHE_S
    assert await postgres.names_of() == ["one", "two"]


async def test_what_is_not_known_is_not_said_to_be_missing_while_postgres_is_away(postgres: Postgres) -> None:
    await postgres.names_of()
    postgres.fault = TimeoutError()
    postgres.now += 1
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await postgres.names_of(with_one="two")


async def test_a_mistake_of_ours_is_not_hidden_by_what_is_known(postgres: Postgres) -> None:
    await postgres.names_of()
    postgres.fault = LookupError()
    postgres.now += CACHE_S
    with pytest.raises(LookupError):
        await postgres.names_of()

"""Test back-pressure: full queues, rate-limited keys and exhausted connection pools."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from arl_admission.checks.queue_backlog import QueueBacklog
from arl_admission.service import AdmissionService
from arl_admission.settings import AdmissionSettings
from arl_gateway.app import build
from arl_gateway.deps import gateway_deps
from arl_gateway.http.rate_limit import RateLimiter
from arl_gateway.settings import GatewaySettings
from arl_store.logins import role_url
from arl_store.migrate import ensure_api_key
from arl_store.tx import PostgresStore
from arl_wire.errors import RateLimited
from arl_wire.internal.admission import AdmitItem, AdmitItemResult
from support.builders import a_submission
from support.peers import RecordingPeers
from support.postgres import PASSWORDS
from support.rows import Rows, rows_in, store_of

KEY = "tk_" + "l" * 32


@pytest_asyncio.fixture
async def rows(database: str) -> AsyncIterator[Rows]:
    async with rows_in(database) as rows:
        yield rows


@pytest_asyncio.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    async with store_of(database, "admission") as store:
        yield store


def an_admission(store: PostgresStore, *, default_max_queued: int) -> AdmissionService:
    settings = AdmissionSettings(
        port=1,
        database_url="postgresql://",
        service_token="t" * 16,
        scheduler_url="http://s",
        default_max_queued=default_max_queued,
    )
    return AdmissionService(store, RecordingPeers(), settings)  # type: ignore[arg-type]


async def admit(admission: AdmissionService, rows: Rows, *keys: str | None, **changed: Any) -> list[AdmitItemResult]:
    items = [
        AdmitItem(project_id=rows.project, action=a_submission(**changed), key=key, body_hash="00" if key else None)
        for key in keys
    ]
    return (await admission.admit(items)).items


def codes(answers: list[AdmitItemResult]) -> list[str | None]:
    return [answer.problem.code if answer.problem is not None else None for answer in answers]


class TestQueueLimit:
    async def test_batch_is_accepted_up_to_the_queue_limit(self, store: PostgresStore, rows: Rows) -> None:
        admission = an_admission(store, default_max_queued=3)
        answers = await admit(admission, rows, *[None] * 5)
        assert codes(answers) == [None, None, None, "queue_full", "queue_full"]
        problem = answers[3].problem
        assert problem is not None
        assert (problem.status, problem.retry_after_s, problem.errors[0].field) == (429, 1, "task")
        assert codes(await admit(admission, rows, None)) == ["queue_full"]
        assert codes(await admit(admission, rows, None, task="another")) == [None]

    async def test_queue_limit_overrides_the_default_limit(self, store: PostgresStore, rows: Rows) -> None:
        await rows.execute("update queues set max_queued = 1 where id = $1", rows.queue)
        assert codes(await admit(an_admission(store, default_max_queued=100), rows, None, None)) == [None, "queue_full"]

    async def test_actions_queued_before_admission_started_count_towards_the_limit(
        self, store: PostgresStore, rows: Rows
    ) -> None:
        await rows.action()
        await rows.action(state="settled", outcome="ok")
        assert codes(await admit(an_admission(store, default_max_queued=2), rows, None, None)) == [None, "queue_full"]

    async def test_repeated_key_returns_its_action_in_a_full_queue(self, store: PostgresStore, rows: Rows) -> None:
        admission = an_admission(store, default_max_queued=1)
        (first,) = await admit(admission, rows, "again")
        again, other = await admit(admission, rows, "again", "other")
        assert again.id == first.id
        assert codes([other]) == ["queue_full"]

    async def test_key_of_a_refused_action_is_not_stored(self, store: PostgresStore, rows: Rows) -> None:
        admission = an_admission(store, default_max_queued=1)
        assert codes(await admit(admission, rows, None, "later")) == [None, "queue_full"]
        assert await rows.value("select count(*) from submissions where key = 'later'") == 0


class TestBacklog:
    async def test_settled_actions_free_queue_space_after_the_next_count(
        self, store: PostgresStore, rows: Rows
    ) -> None:
        now = 0.0
        backlog = QueueBacklog(store, default_limit=2, clock=lambda: now)
        wanted = {rows.queue: 1}
        actions = [await rows.action() for _ in range(2)]
        await backlog.refresh(wanted)
        assert backlog.remaining(rows.queue) == 0
        await rows.execute("alter table actions disable trigger check_edge")
        await rows.execute("update actions set state = 'settled', outcome = 'ok' where id = $1", actions[0])
        now = 0.5
        await backlog.refresh(wanted)
        assert backlog.remaining(rows.queue) == 0
        now = 1.5
        await backlog.refresh(wanted)
        assert backlog.remaining(rows.queue) == 1

    async def test_thousand_batches_within_the_interval_need_one_count(self, rows: Rows, store: PostgresStore) -> None:
        backlog = QueueBacklog(store, default_limit=1_000_000, clock=lambda: 0.0)
        for _ in range(1000):
            await backlog.refresh({rows.queue: 100})
            backlog.record_inserted({rows.queue: 100})
        assert backlog.remaining(rows.queue) == 900_000


class TestRateLimiter:
    def test_quota_allows_a_burst_and_refills_over_time(self) -> None:
        now = 0.0
        limiter = RateLimiter(quota=10, window_s=5, clock=lambda: now)
        left = [limiter.acquire(1)["ratelimit"] for _ in range(10)]
        assert (left[0], left[-1]) == ('"default";r=9;t=1', '"default";r=0;t=5')
        with pytest.raises(RateLimited) as refused:
            limiter.acquire(1)
        assert refused.value.retry_after_s == 1
        assert refused.value.headers == {"ratelimit-policy": '"default";q=10;w=5', "ratelimit": '"default";r=0;t=5'}
        limiter.acquire(2)
        now = 1.0
        limiter.acquire(1)
        limiter.acquire(1)
        with pytest.raises(RateLimited):
            limiter.acquire(1)


def client_of(app: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://g", headers={"authorization": f"Bearer {KEY}"})


def settings_of(owner_url: str, **changed: Any) -> GatewaySettings:
    url = role_url(owner_url, "gateway", PASSWORDS["gateway"])
    return GatewaySettings(
        port=1,
        database_url=url,
        service_token="t" * 16,
        admission_url="http://127.0.0.1:9",
        scheduler_url="http://127.0.0.1:9",
        **changed,
    )


class TestGateway:
    async def test_key_above_its_rate_limit_gets_429_with_retry_after(self, database: str) -> None:
        await ensure_api_key(database, "p", KEY)
        app = build(settings_of(database, rate_limit=2, rate_limit_window_s=60))
        async with app.router.lifespan_context(app), client_of(app) as api:
            answers = [await api.get("/v1/actions") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"default";q=2;w=60'}
        assert [answer.headers["ratelimit"].split(";")[1] for answer in answers] == ["r=1", "r=0", "r=0"]
        assert answers[2].json()["code"] == "rate_limited"
        assert 1 <= int(answers[2].headers["retry-after"]) <= 30

    async def test_request_with_null_in_an_optional_field_counts_once(self, database: str) -> None:
        await ensure_api_key(database, "p", KEY)
        app = build(settings_of(database, rate_limit=2, rate_limit_window_s=60))
        async with app.router.lifespan_context(app), client_of(app) as api:
            body = {"ids": ["01920000-0000-7000-8000-000000000001"], "until": None, "timeout_s": None}
            answer = await api.post("/v1/actions:wait", json=body)
        assert (answer.status_code, answer.headers["ratelimit"].split(";")[1]) == (200, "r=1"), answer.text

    async def test_exhausted_connection_pool_returns_503_quickly(self, database: str) -> None:
        await ensure_api_key(database, "p", KEY)
        app = build(settings_of(database, pool_size=1, key_cache_s=3600))
        async with app.router.lifespan_context(app), client_of(app) as api:
            assert (await api.get("/v1/actions")).status_code == 200
            async with gateway_deps(app).store.read():
                began = time.monotonic()
                answers = await asyncio.gather(*(api.get("/v1/actions") for _ in range(20)))
                assert time.monotonic() - began < 4
        assert {answer.status_code for answer in answers} == {503}
        assert {answer.headers["retry-after"] for answer in answers} == {"1"}
        assert {answer.json()["code"] for answer in answers} == {"unavailable"}

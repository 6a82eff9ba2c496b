"""Test the public API in this process on a real Postgres. The test itself settles actions."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from arl_gateway.actions.service import ActionService
from arl_gateway.actions.waiters import ActionWaiters
from arl_gateway.app import build
from arl_gateway.http.auth import Caller
from arl_gateway.settings import GatewaySettings
from arl_store.logins import role_url
from arl_store.migrate import ensure_api_key
from arl_store.tx import PostgresStore, ReadTx
from support.peers import RecordingPeers
from support.postgres import PASSWORDS
from support.rows import Rows, store_of

KEY, STRANGER = "tk_" + "a" * 32, "tk_" + "b" * 32
MIB = 1 << 20
SETTLE = "update actions set state = 'settled', outcome = 'ok', settled_at = now() where id = any($1)"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(shared: str) -> str:
    await ensure_api_key(shared, "p", KEY)
    await ensure_api_key(shared, "strangers", STRANGER)
    return shared


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def app(shared: str) -> AsyncIterator[FastAPI]:
    """Build the gateway application. Its admission address refuses connections."""
    settings = GatewaySettings(
        port=1,
        database_url=role_url(shared, "gateway", PASSWORDS["gateway"]),
        service_token="t" * 16,
        admission_url="http://127.0.0.1:9",
        scheduler_url="http://127.0.0.1:9",
        max_body_mib=1,
    )
    app = build(settings)
    async with app.router.lifespan_context(app):
        yield app


@pytest_asyncio.fixture
async def api(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, KEY) as api:
        yield api


def client_of(app: FastAPI, key: str | None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers, timeout=30)


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check the properties common to all problem documents and return the document."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    body: dict[str, Any] = response.json()
    assert (body["status"], body["code"]) == (status, code)
    assert {"type", "title", "detail"} <= body.keys()
    assert body["trace_id"] == response.headers["traceparent"].split("-")[1]
    assert "Traceback" not in response.text
    return body


async def settle(rows: Rows, *ids: UUID) -> None:
    """Settle the actions and notify waiters, as a manager does."""
    async with rows.pool.acquire() as connection, connection.transaction():
        await connection.execute("set local session_replication_role = replica")
        await connection.execute(SETTLE, ids)
        await connection.execute("notify tangram_settled")


class TestProblems:
    async def test_unknown_path_is_not_found(self, api: httpx.AsyncClient) -> None:
        problem(await api.get("/v1/nothing"), 404, "not_found")

    async def test_wrong_method_is_refused_with_the_allow_header(self, api: httpx.AsyncClient) -> None:
        response = await api.put("/v1/actions")
        problem(response, 405, "method_not_allowed")
        assert response.headers["allow"]

    @pytest.mark.parametrize("content", [b'{"task": ', b"", b"[1]", b"null", b"\xff\xfe", b'{"task": NaN}'])
    async def test_malformed_body_is_refused(self, api: httpx.AsyncClient, content: bytes) -> None:
        response = await api.post("/v1/actions", content=content, headers={"content-type": "application/json"})
        assert response.status_code in (400, 422)
        problem(response, response.status_code, "validation_failed" if response.status_code == 422 else "bad_request")

    @pytest.mark.parametrize(
        ("changed", "field"),
        [
            ({"nice": 1}, "nice"),
            ({"demand": {"cpus": 1}}, "demand.cpus"),
            ({"demand": {"memory_mib": "much"}}, "demand.memory_mib"),
            ({"argv": None}, "body"),
            ({"argv": ["a\x00b"]}, "argv.0"),
            ({"kind": "paint"}, "kind"),
            ({"timeout_s": 0}, "timeout_s"),
            ({"files": {"../up": ""}}, "files.../up.[key]"),
        ],
    )
    async def test_invalid_field_is_named_in_the_problem(
        self, api: httpx.AsyncClient, changed: dict[str, Any], field: str
    ) -> None:
        response = await api.post("/v1/actions", json={"task": "t", "argv": ["true"]} | changed)
        body = problem(response, 422, "validation_failed")
        assert field in [error["field"] for error in body["errors"]]

    @pytest.mark.parametrize("key", [None, "tk_wrong", ""])
    async def test_missing_or_wrong_key_is_unauthenticated(self, app: FastAPI, key: str | None) -> None:
        async with client_of(app, key) as api:
            response = await api.get(f"/v1/actions/{uuid4()}")
        problem(response, 401, "unauthenticated")
        assert response.headers["www-authenticate"] == "Bearer"

    async def test_revoked_or_expired_key_is_unauthenticated(self, app: FastAPI, rows: Rows, shared: str) -> None:
        for number, column in enumerate(("revoked_at", "expires_at")):
            key = f"tk_{number}" + "c" * 32
            await ensure_api_key(shared, "p", key)
            await rows.execute(f"update api_keys set {column} = now() where prefix = $1", key[:8])
            async with client_of(app, key) as api:
                problem(await api.get("/v1/actions"), 401, "unauthenticated")

    async def test_key_without_the_scope_is_forbidden(self, app: FastAPI, rows: Rows, shared: str) -> None:
        key = "tk_d" + "d" * 32
        await ensure_api_key(shared, "p", key)
        await rows.execute("update api_keys set scopes = '{actions:write}' where prefix = $1", key[:8])
        async with client_of(app, key) as api:
            problem(await api.get("/v1/admin/nodes"), 403, "forbidden")

    async def test_action_of_another_project_is_not_found(self, app: FastAPI, rows: Rows) -> None:
        action = await rows.action(trajectory="mine")
        async with client_of(app, STRANGER) as api:
            problem(await api.get(f"/v1/actions/{action}"), 404, "not_found")
            problem(await api.get(f"/v1/actions/{action}", params={"wait": 5}), 404, "not_found")
            problem(await api.delete(f"/v1/actions/{action}"), 404, "not_found")
            assert (await api.get("/v1/actions", params={"trajectory": "mine"})).json()["items"] == []
            waited = await api.post("/v1/actions:wait", json={"ids": [str(action)]})
        assert waited.json() == {"settled": [], "pending": [], "unknown": [str(action)]}

    async def test_invalid_action_id_is_refused(self, api: httpx.AsyncClient) -> None:
        problem(await api.get("/v1/actions/seven"), 422, "validation_failed")

    async def test_invalid_cursor_is_refused(self, api: httpx.AsyncClient) -> None:
        body = problem(await api.get("/v1/actions", params={"cursor": "x"}), 400, "bad_request")
        assert body["errors"][0]["field"] == "query.cursor"

    async def test_too_long_idempotency_key_is_refused(self, api: httpx.AsyncClient) -> None:
        response = await api.post(
            "/v1/actions", json={"task": "t", "argv": ["true"]}, headers={"idempotency-key": "k" * 256}
        )
        assert problem(response, 400, "bad_request")["errors"][0]["field"] == "header.Idempotency-Key"

    async def test_body_with_too_large_content_length_is_refused(self, api: httpx.AsyncClient) -> None:
        problem(await api.post("/v1/actions", content=b" " * (MIB + 1)), 413, "too_large")

    async def test_streamed_body_above_the_limit_is_refused(self, api: httpx.AsyncClient) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(MIB // 1024 + 1):
                yield b" " * 1024

        response = await api.post("/v1/actions", content=chunks(), headers={"content-type": "application/json"})
        problem(response, 413, "too_large")

    async def test_unreachable_admission_returns_503_with_retry_after(self, api: httpx.AsyncClient) -> None:
        response = await api.post("/v1/actions", json={"task": "t", "argv": ["true"]})
        problem(response, 503, "unavailable")
        assert int(response.headers["retry-after"]) >= 1

    async def test_problem_continues_the_trace_of_the_client(self, api: httpx.AsyncClient) -> None:
        trace = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
        body = problem(await api.get("/v1/nothing", headers={"traceparent": trace}), 404, "not_found")
        assert body["trace_id"] == "ab" * 16


class TestGet:
    async def test_wait_ends_as_soon_as_the_action_settles(self, api: httpx.AsyncClient, rows: Rows) -> None:
        action = await rows.action()
        waiting = asyncio.create_task(api.get(f"/v1/actions/{action}", params={"wait": 30}))
        await settle(rows, action)
        response = await asyncio.wait_for(waiting, 5)
        assert (response.status_code, response.json()["outcome"]) == (200, "ok")

    async def test_wait_returns_the_current_state_after_its_timeout(self, api: httpx.AsyncClient, rows: Rows) -> None:
        action = await rows.action()
        response = await api.get(f"/v1/actions/{action}", params={"wait": 0.05})
        assert (response.status_code, response.json()["state"]) == (200, "queued")

    async def test_settled_action_has_a_result_and_consistent_times(self, api: httpx.AsyncClient, rows: Rows) -> None:
        now = await rows.value("select now()")
        action = await rows.action(state="settled", outcome="ok", granted_at=now, settled_at=now, run_us=0)
        await rows.execute("insert into action_results (id, grant_no, stdout, stdout_bytes) values ($1, 1, $2, 9)",
                           action, b"a\xff")  # fmt: skip
        body = (await api.get(f"/v1/actions/{action}")).json()
        assert body["result"]["stdout"] == {"text": "a\\xff", "base64": "Yf8=", "total_bytes": 9, "truncated": True}
        times = body["times"]
        assert times["act_s"] == pytest.approx(times["queue_s"] + times["run_s"] + times["overhead_s"], abs=1e-5)


class TestWait:
    async def wait(self, api: httpx.AsyncClient, *ids: UUID, **changed: Any) -> Any:
        body = {"ids": [str(id) for id in ids], "timeout_s": 20} | changed
        return (await api.post("/v1/actions:wait", json=body)).json()

    async def test_until_any_returns_after_the_first_action(self, api: httpx.AsyncClient, rows: Rows) -> None:
        first, second = await rows.action(), await rows.action()
        waiting = asyncio.create_task(self.wait(api, first, second, until="any"))
        await settle(rows, second)
        answer = await asyncio.wait_for(waiting, 5)
        assert ([each["id"] for each in answer["settled"]], answer["pending"]) == ([str(second)], [str(first)])

    async def test_until_all_returns_after_the_last_action(self, api: httpx.AsyncClient, rows: Rows) -> None:
        first, second = await rows.action(), await rows.action(state="settled", outcome="ok")
        waiting = asyncio.create_task(self.wait(api, first, second))
        await settle(rows, first)
        answer = await asyncio.wait_for(waiting, 5)
        assert ([each["id"] for each in answer["settled"]], answer["pending"]) == ([str(first), str(second)], [])

    async def test_timeout_of_zero_returns_the_current_states(self, api: httpx.AsyncClient, rows: Rows) -> None:
        action, unknown = await rows.action(), uuid4()
        answer = await self.wait(api, action, unknown, action, timeout_s=0)
        assert answer == {"settled": [], "pending": [str(action)], "unknown": [str(unknown)]}

    async def test_wait_returns_large_results_in_parts_and_small_ones_together(
        self, api: httpx.AsyncClient, rows: Rows
    ) -> None:
        ids = [await rows.action(state="settled", outcome="ok") for _ in range(60)]
        add = "insert into action_results (id, grant_no, stdout, stdout_bytes) values ($1, 1, $2, $3)"
        for number, id in enumerate(ids):
            size = 6 << 20 if number >= 50 else 10
            await rows.execute(add, id, b"x" * size, size)
        small, large = await self.wait(api, *ids[:50]), await self.wait(api, *ids[50:])
        assert (len(small["settled"]), small["pending"]) == (50, [])
        assert [each["id"] for each in large["settled"]] == [str(id) for id in ids[50:54]]
        assert large["pending"] == [str(id) for id in ids[54:]]

    async def test_two_hundred_waiters_need_fewer_than_twenty_reads(self, rows: Rows, shared: str) -> None:
        ids = [await rows.action() for _ in range(200)]
        caller = Caller(1, rows.project, "p", frozenset())
        async with store_of(shared, "gateway") as store:
            counting = CountingStore(store)
            waiters = ActionWaiters(counting, poll_s=1.0)  # type: ignore[arg-type]
            actions = ActionService(counting, RecordingPeers(), waiters, admission_url="http://a")  # type: ignore[arg-type]
            waiters.start()
            waiting = [asyncio.create_task(actions.get(id, caller, wait_s=30)) for id in ids]
            await rows.until(counting.has_looked)
            await settle(rows, *ids)
            waiters.wake()
            settled = await asyncio.wait_for(asyncio.gather(*waiting), 10)
            await waiters.stop()
        assert {action.outcome for action in settled} == {"ok"}
        assert counting.reads < 20


class CountingStore:
    """A store that counts its read transactions."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.reads = 0

    @asynccontextmanager
    async def read(self) -> AsyncIterator[ReadTx]:
        self.reads += 1
        async with self._store.read() as tx:
            yield tx

    async def has_looked(self) -> bool:
        return self.reads >= 2


class TestList:
    async def test_pages_list_every_action_once_newest_first(self, api: httpx.AsyncClient, rows: Rows) -> None:
        ids = [str(await rows.action(trajectory="paged")) for _ in range(7)]
        seen, cursor = [], None
        while True:
            query = {"trajectory": "paged", "limit": 3} | ({"cursor": cursor} if cursor else {})
            page = (await api.get("/v1/actions", params=query)).json()
            assert len(page["items"]) <= 3
            seen += [item["id"] for item in page["items"]]
            cursor = page.get("next_cursor")
            if cursor is None:
                break
        assert seen == ids[::-1]

    async def test_list_filters_by_task_and_state(self, api: httpx.AsyncClient, rows: Rows) -> None:
        queue = await rows.queue_of("listed")
        queued = await rows.action(queue_id=queue)
        await rows.action(queue_id=queue, state="settled", outcome="ok")
        page = (await api.get("/v1/actions", params={"task": "listed", "state": "queued"})).json()
        assert [item["id"] for item in page["items"]] == [str(queued)]


class TestCancel:
    async def test_cancel_of_a_settled_action_returns_it_unchanged(self, api: httpx.AsyncClient, rows: Rows) -> None:
        action = await rows.action(state="settled", outcome="user_error")
        response = await api.delete(f"/v1/actions/{action}")
        assert (response.status_code, response.json()["outcome"]) == (200, "user_error")


class TestVerifierList:
    """Last in this file: its nodes stay."""

    async def test_math_verifier_without_its_packages_is_unavailable_with_the_reason(
        self, api: httpx.AsyncClient, rows: Rows
    ) -> None:
        async def described(name: str) -> dict[str, Any]:
            found: dict[str, Any] = (await api.get(f"/v1/reward-services/{name}")).json()
            listed = (await api.get("/v1/reward-services")).json()["items"]
            assert found in listed
            return found

        await rows.execute("update nodes set cordoned_at = now()")
        nowhere = await described("math")
        assert (nowhere["available"], nowhere["problem"]) == (False, "no CPU node takes actions")
        lacking = await rows.node("lacks-math")
        absent = json.dumps([{"name": "math_verifier", "level": "absent", "mechanism": "none"}])
        await rows.execute("update nodes set enforced = $2 where id = $1", lacking, absent)
        math, exact = await described("math"), await described("exact")
        assert (math["available"], exact["available"], exact.get("problem")) == (False, True, None)
        assert math["problem"].startswith("1 of 1 CPU nodes cannot run it")
        await rows.node("has-math")
        math = await described("math")
        assert (math["available"], math["problem"][:6]) == (True, "1 of 2")

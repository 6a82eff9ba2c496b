"""Test API keys through the public API: creation, scopes, expiry, revocation and secrecy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from arl_gateway.app import build
from arl_gateway.http.auth import KeyAuthenticator
from arl_gateway.settings import GatewaySettings
from arl_store.logins import role_url
from arl_store.migrate import ensure_api_key
from arl_store.tx import PostgresStore
from support.postgres import PASSWORDS
from support.rows import Rows, store_of

ROOT, OTHER = "tk_" + "r" * 32, "tk_" + "o" * 32
KEYS = "/v1/admin/keys"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(shared: str) -> str:
    await ensure_api_key(shared, "default", ROOT)
    await ensure_api_key(shared, "other", OTHER)
    return shared


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def app(shared: str) -> AsyncIterator[FastAPI]:
    async with a_gateway(shared) as app:
        yield app


@pytest_asyncio.fixture
async def root(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, ROOT) as api:
        yield api


@asynccontextmanager
async def a_gateway(owner_url: str, **changed: Any) -> AsyncIterator[FastAPI]:
    settings = GatewaySettings(
        port=1,
        database_url=role_url(owner_url, "gateway", PASSWORDS["gateway"]),
        service_token="t" * 16,
        admission_url="http://127.0.0.1:9",
        scheduler_url="http://127.0.0.1:9",
        **changed,
    )
    app = build(settings)
    async with app.router.lifespan_context(app):
        yield app


def client_of(app: FastAPI, key: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://g", headers={"authorization": f"Bearer {key}"})


async def made(api: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await api.post(KEYS, json=body)
    assert response.status_code == 201, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(response: httpx.Response, status: int, code: str, field: str | None = None) -> None:
    body = response.json()
    assert (response.status_code, body["code"]) == (status, code), body
    if field is not None:
        assert field in [error["field"] for error in body["errors"]]


class TestCreate:
    async def test_new_key_is_shown_once_and_stored_as_a_hash(self, root: httpx.AsyncClient, rows: Rows) -> None:
        response = await root.post(KEYS, json={"scopes": ["actions:read"]})
        key = response.json()["key"]
        assert key.startswith("tk_")
        assert len(key) >= 35
        assert response.headers["cache-control"] == "no-store"
        row = await rows.pool.fetchrow("select * from api_keys where id = $1", response.json()["id"])
        assert row["hash"] == sha256(key.encode()).digest()
        assert key not in repr(dict(row))
        assert key not in (await root.get(KEYS)).text
        assert key not in repr(await rows.pool.fetch("select * from audit_log"))

    async def test_key_creation_and_revocation_are_in_the_audit_log(self, root: httpx.AsyncClient, rows: Rows) -> None:
        created = await made(root)
        for _ in range(2):
            await root.delete(f"{KEYS}/{created['id']}")
        log = await rows.pool.fetch("select * from audit_log where target = $1 order by id", f"key:{created['id']}")
        by = await rows.value("select id from api_keys where hash = $1", sha256(ROOT.encode()).digest())
        assert [(line["verb"], line["api_key_id"]) for line in log] == [("key.create", by), ("key.revoke", by)]

    @pytest.mark.parametrize("scope", ["admin:delete", "*", "actions", "ACTIONS:READ", ""])
    async def test_unknown_scope_is_refused_with_its_field(self, root: httpx.AsyncClient, scope: str) -> None:
        refused(await root.post(KEYS, json={"scopes": [scope]}), 422, "validation_failed", "scopes.0")

    @pytest.mark.parametrize("body", [{"scopes": []}, {"expires_in_s": 0}, {"expires_in_s": 1 << 62}, {"project": ""}])
    async def test_invalid_field_is_refused_with_its_name(self, root: httpx.AsyncClient, body: dict[str, Any]) -> None:
        refused(await root.post(KEYS, json=body), 422, "validation_failed", next(iter(body)))

    async def test_admin_of_the_default_project_creates_a_new_project(
        self, app: FastAPI, root: httpx.AsyncClient
    ) -> None:
        first = await made(root, project="fresh", scopes=["admin:*", "actions:*"])
        assert first["project"] == "fresh"
        async with client_of(app, first["key"]) as fresh:
            second = await made(fresh)
            listed = (await fresh.get(KEYS)).json()["items"]
        assert [key["id"] for key in listed] == [second["id"], first["id"]]
        refused(await root.post(KEYS, json={"project": "fresh"}), 409, "conflict", "project")

    async def test_project_without_an_admin_key_is_refused(self, root: httpx.AsyncClient) -> None:
        without = {"project": "orphan", "scopes": ["actions:*"]}
        refused(await root.post(KEYS, json=without), 422, "validation_failed", "scopes")
        assert (await made(root, project="orphan"))["scopes"] == ["actions:*", "admin:*"]
        assert (await made(root, project="default"))["scopes"] == ["actions:write"]

    async def test_key_without_root_admin_scope_cannot_create_foreign_keys(
        self, app: FastAPI, root: httpx.AsyncClient
    ) -> None:
        lesser = (await made(root, scopes=["admin:write"]))["key"]
        for key in (OTHER, lesser):
            async with client_of(app, key) as api:
                for project in ("another", "fresh", "p"):
                    refused(await api.post(KEYS, json={"project": project}), 403, "forbidden", "project")

    async def test_key_cannot_grant_an_admin_scope_that_it_lacks(self, app: FastAPI, root: httpx.AsyncClient) -> None:
        async with client_of(app, (await made(root, scopes=["admin:write"]))["key"]) as api:
            await made(api, scopes=["admin:read", "actions:*"])
            refused(await api.post(KEYS, json={"scopes": ["admin:*"]}), 403, "forbidden", "scopes")


class TestScopes:
    @pytest.mark.parametrize(
        ("scope", "reads", "writes", "reads_admin", "writes_admin"),
        [
            ("actions:read", True, False, False, False),
            ("actions:write", True, True, False, False),
            ("actions:*", True, True, False, False),
            ("admin:read", False, False, True, False),
            ("admin:write", False, False, True, True),
            ("admin:*", False, False, True, True),
        ],
    )
    async def test_scope_allows_exactly_its_operations(
        self,
        app: FastAPI,
        root: httpx.AsyncClient,
        scope: str,
        reads: bool,
        writes: bool,
        reads_admin: bool,
        writes_admin: bool,
    ) -> None:
        async with client_of(app, (await made(root, scopes=[scope]))["key"]) as api:
            action = {"task": "t", "argv": ["true"]}
            answers = {
                "get": (await api.get("/v1/actions"), reads),
                "wait": (await api.post("/v1/actions:wait", json={"ids": [str(uuid4())], "timeout_s": 0}), reads),
                "submit": (await api.post("/v1/actions", json=action), writes),
                "batch": (await api.post("/v1/actions:batch", json={"actions": [action]}), writes),
                "cancel": (await api.delete(f"/v1/actions/{uuid4()}"), writes),
                "end": (await api.delete("/v1/trajectories/x", params={"task": "t"}), writes),
                "nodes": (await api.get("/v1/admin/nodes"), reads_admin),
                "keys": (await api.get(KEYS), reads_admin),
                "create": (await api.post(KEYS, json={}), writes_admin),
                "revoke": (await api.delete(f"{KEYS}/2000000000"), writes_admin),
            }
        allowed = {name: answer.status_code != 403 for name, (answer, _) in answers.items()}
        assert allowed == {name: expected for name, (_, expected) in answers.items()}


class TestRevoke:
    async def test_revoked_key_is_refused_immediately(self, app: FastAPI, root: httpx.AsyncClient) -> None:
        created = await made(root)
        async with client_of(app, created["key"]) as api:
            assert (await api.get("/v1/actions")).status_code == 200
            revoked = await root.delete(f"{KEYS}/{created['id']}")
            refused(await api.get("/v1/actions"), 401, "unauthenticated")
        assert revoked.json()["revoked_at"] == (await root.delete(f"{KEYS}/{created['id']}")).json()["revoked_at"]

    async def test_another_gateway_refuses_a_revoked_key_after_its_cache_expires(
        self, root: httpx.AsyncClient, shared: str
    ) -> None:
        created = await made(root)
        async with a_gateway(shared, key_cache_s=0) as elsewhere, client_of(elsewhere, created["key"]) as api:
            assert (await api.get("/v1/actions")).status_code == 200
            await root.delete(f"{KEYS}/{created['id']}")
            assert (await api.get("/v1/actions")).status_code == 401

    async def test_key_of_another_project_is_not_found(self, app: FastAPI, root: httpx.AsyncClient) -> None:
        created = await made(root)
        async with client_of(app, OTHER) as other:
            refused(await other.delete(f"{KEYS}/{created['id']}"), 404, "not_found")
            assert created["id"] not in [key["id"] for key in (await other.get(KEYS)).json()["items"]]
        async with client_of(app, created["key"]) as api:
            assert (await api.get("/v1/actions")).status_code == 200

    @pytest.mark.parametrize("id", ["0", "-1", "99999999999999999999", "seven"])
    async def test_invalid_key_id_is_refused(self, root: httpx.AsyncClient, id: str) -> None:
        refused(await root.delete(f"{KEYS}/{id}"), 422, "validation_failed", "path.id")


class TestExpiry:
    async def test_expired_key_is_refused(self, app: FastAPI, root: httpx.AsyncClient, rows: Rows) -> None:
        created = await made(root, expires_in_s=60)
        await rows.execute("update api_keys set expires_at = now() where id = $1", created["id"])
        async with client_of(app, created["key"]) as api:
            refused(await api.get("/v1/actions"), 401, "unauthenticated")

    async def test_key_cache_ends_when_the_key_expires(self, shared: str, rows: Rows) -> None:
        key = "tk_" + "e" * 32
        await ensure_api_key(shared, "other", key)
        digest = sha256(key.encode()).digest()
        await rows.execute("update api_keys set expires_at = now() + interval '0.5 s' where hash = $1", digest)
        async with store_of(shared, "gateway") as store:
            keys = KeyAuthenticator(store, cache_s=3600)

            async def is_refused() -> bool:
                try:
                    await keys.authenticate(f"Bearer {key}")
                except Exception as error:  # noqa: BLE001
                    return type(error).__name__ == "Unauthenticated"
                return False

            assert not await is_refused()
            await rows.until(is_refused)


class Counted:
    """A store that counts its reads."""

    def __init__(self, store: PostgresStore) -> None:
        self._store, self.reads = store, 0

    def read(self) -> Any:
        self.reads += 1
        return self._store.read()


async def test_concurrent_lookups_share_one_read_until_a_revocation(shared: str) -> None:
    key = "tk_" + "o" * 32
    await ensure_api_key(shared, "other", key)
    async with store_of(shared, "gateway") as store:
        counted = Counted(store)
        keys = KeyAuthenticator(counted, cache_s=3600)  # type: ignore[arg-type]
        coming = [asyncio.create_task(keys.authenticate(f"Bearer {key}")) for _ in range(8)]
        await asyncio.sleep(0)
        coming[0].cancel()
        keys.invalidate(0)
        late = [asyncio.create_task(keys.authenticate(f"Bearer {key}")) for _ in range(8)]
        found = await asyncio.gather(*coming[1:], *late)
    assert {each.project for each in found} == {"other"}
    assert counted.reads == 2


async def test_pages_list_every_key_once_newest_first(app: FastAPI, root: httpx.AsyncClient) -> None:
    first = await made(root, project="paged", scopes=["admin:*"])
    async with client_of(app, first["key"]) as api:
        ids = [first["id"], *[(await made(api))["id"] for _ in range(4)]]
        seen: list[int] = []
        cursor = None
        while True:
            query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
            page = (await api.get(KEYS, params=query)).json()
            seen += [key["id"] for key in page["items"]]
            cursor = page.get("next_cursor")
            if cursor is None:
                break
    assert seen == ids[::-1]


async def test_same_key_is_created_once_by_concurrent_requests(root: httpx.AsyncClient, rows: Rows) -> None:
    for number, project in enumerate(("default", "concurrent")):
        wanted = {"project": project, "scopes": ["admin:*"], "key": "tk_" + str(number) * 43}
        answers = await asyncio.gather(*(root.post(KEYS, json=wanted) for _ in range(8)))
        assert [answer.status_code for answer in answers] == [201] * 8
        assert len({answer.json()["id"] for answer in answers}) == 1
        target = f"key:{answers[0].json()['id']}"
        assert await rows.value("select count(*) from audit_log where target = $1", target) == 1


async def test_existing_key_with_another_or_past_expiry_is_refused(root: httpx.AsyncClient, rows: Rows) -> None:
    wanted = {"key": "tk_" + "e" * 43, "expires_in_s": 60}
    created = await made(root, **wanted)
    assert (await made(root, **wanted))["id"] == created["id"]
    for other in (61, None):
        refused(await root.post(KEYS, json={**wanted, "expires_in_s": other}), 409, "conflict", "key")
    past = "created_at = created_at - interval '1 hour', expires_at = expires_at - interval '1 hour'"
    await rows.pool.execute(f"update api_keys set {past} where id = $1", created["id"])
    late = await root.post(KEYS, json=wanted)
    assert (late.status_code, "has expired" in late.json()["detail"]) == (409, True)


async def test_chosen_key_needs_all_admin_rights_and_is_created_once(root: httpx.AsyncClient, app: FastAPI) -> None:
    chosen = "tk_" + "c" * 43
    wanted = {"scopes": ["admin:write"], "key": chosen}
    first, again = [await root.post(KEYS, json=wanted) for _ in range(2)]
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert first.json()["fingerprint"] == sha256(chosen.encode()).hexdigest()[:16]
    other = await root.post(KEYS, json={"scopes": ["actions:read"], "key": chosen})
    assert (other.status_code, other.json()["errors"][0]["field"]) == (409, "key")
    malformed = await root.post(KEYS, json={"key": "tk_short"})
    assert (malformed.status_code, "tk_short" in malformed.text) == (422, False)
    async with client_of(app, chosen) as api:
        refused = await api.post(KEYS, json={"key": "tk_" + "d" * 43})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (403, "key")

"""Test that ports of environments are closed to others, and that hostile servers harm only themselves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from arl_store.migrate import ensure_api_key
from support.ports import HOSTILE, OTHER_KEY, PORT, created, served_environment, upgraded, wait_until_idle
from support.postgres import Databases
from support.system import API_KEY, System, running_system


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    await ensure_api_key(owner_url, "other", OTHER_KEY)
    gateway = {"TANGRAM_PORTS_DOMAIN": "ports.example"}
    async with running_system(owner_url, driver="namespaces", cores=2, overrides={"gateway": gateway}) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def served(api: httpx.AsyncClient) -> AsyncIterator[str]:
    async with served_environment(api) as id:
        yield id


async def test_port_needs_a_key_of_the_project(api: httpx.AsyncClient, system: System, served: str) -> None:
    url = f"/v1/environments/{served}/ports/{PORT}/"
    async with httpx.AsyncClient(base_url=system.url) as client:
        assert (await client.get(url)).status_code == 401
        assert (await client.get(url, params={"key": API_KEY}, headers={"cookie": f"key={API_KEY}"})).status_code == 401
        assert (await client.post(url, content=b"x" * 1000)).status_code == 401
        other = {"authorization": f"Bearer {OTHER_KEY}"}
        assert (await client.get(url, headers=other)).status_code == 404
        assert (await client.post(f"{url[:-1]}:sign", json={}, headers=other)).status_code == 404
        assert (await client.get(url, headers={"x-api-key": API_KEY, "host": f"{PORT}-{served}"})).status_code == 200
    assert (await api.get(url)).status_code == 200


async def test_signed_url_reaches_only_its_port_until_it_expires(
    api: httpx.AsyncClient, system: System, served: str
) -> None:
    signed = (await api.post(f"/v1/environments/{served}/ports/{PORT}:sign", json={"lifetime_s": 60})).json()
    async with httpx.AsyncClient(base_url=system.url) as client:
        answer = await client.post(signed["path"] + "a?b", content=b"body", headers={"authorization": "Basic c2VsZg=="})
        assert (answer.status_code, answer.json()["path"], answer.json()["size"]) == (200, "/a?b", 4)
        assert answer.json()["headers"]["authorization"] == "Basic c2VsZg=="
        ours = await client.get(signed["path"], headers={"authorization": f"Bearer {API_KEY}"})
        assert API_KEY not in ours.text
        token = signed["path"].split("/")[3]
        for wrong in (token.replace(f"-{PORT}-", "-8124-"), token[:-1] + ("0" if token[-1] != "0" else "1"), "x"):
            assert (await client.get(f"/v1/ports/{wrong}/")).status_code == 401
        brief = (await api.post(f"/v1/environments/{served}/ports/{PORT}:sign", json={"lifetime_s": 1})).json()
        for _ in range(100):
            if (expired := await client.get(brief["path"])).status_code != 200:
                break
            await asyncio.sleep(0.05)
        assert (expired.status_code, expired.json()["code"]) == (401, "unauthenticated")


async def test_url_ends_when_its_key_is_revoked(api: httpx.AsyncClient, system: System, served: str) -> None:
    made = (await api.post("/v1/admin/keys", json={"project": "default", "scopes": ["actions:*"]})).json()
    headers = {"authorization": f"Bearer {made['key']}"}
    async with httpx.AsyncClient(base_url=system.url) as client:
        signing = client.post(f"/v1/environments/{served}/ports/{PORT}:sign", json={}, headers=headers)
        path = (await signing).json()["path"]
        assert (await client.get(path)).status_code == 200
        await api.delete(f"/v1/admin/keys/{made['id']}")
        assert (await client.get(path)).status_code == 401


async def test_host_name_of_a_port_needs_the_key_and_keeps_the_host(system: System, served: str) -> None:
    host = f"{PORT}-{served.replace('-', '')}.ports.example"
    async with httpx.AsyncClient(base_url=system.url, headers={"host": host}) as client:
        assert (await client.get("/a?b")).status_code == 502
        answer = await client.get("/a?b", headers={"authorization": f"Bearer {API_KEY}", "cookie": "own=1"})
        assert answer.status_code == 200, answer.text
        headers = {name.lower(): value for name, value in answer.json()["headers"].items()}
        assert (answer.json()["path"], headers["host"], headers["cookie"]) == ("/a?b", host, "own=1")
        assert "authorization" not in headers
        assert "content-security-policy" not in answer.headers
        assert (await client.get("/redirect", headers={"authorization": f"Bearer {API_KEY}"})).headers[
            "set-cookie"
        ] == "session=evil; Path=/"
        other = await client.get("/", headers={"authorization": f"Bearer {OTHER_KEY}"})
        assert other.status_code == 404


@pytest_asyncio.fixture
async def hostile(api: httpx.AsyncClient) -> AsyncIterator[str]:
    async with served_environment(api, HOSTILE) as id:
        yield id


async def test_hostile_server_harms_only_its_own_responses(api: httpx.AsyncClient, hostile: str) -> None:
    url = f"/v1/environments/{hostile}/ports/{PORT}"
    for kind in ("headers", "interim", "garbage", "split", "switch", "status", "control"):
        answer = await api.get(f"{url}/{kind}")
        assert (answer.status_code, answer.json()["code"]) == (502, "server_failed"), (kind, answer.text[:200])
    assert (await api.get(f"{url}/smuggle")).text == "ok"
    assert (await api.get(f"{url}/lengths")).text == "ok"
    with pytest.raises(httpx.RemoteProtocolError):
        await api.get(f"{url}/short")
    with pytest.raises(httpx.ReadTimeout):
        await api.get(f"{url}/silent", timeout=1.0)
    async with api.stream("GET", f"{url}/endless") as endless:
        seen = 0
        async for chunk in endless.aiter_raw():
            seen += len(chunk)
            if seen > 4 << 20:
                break
    assert (await api.get("/v1/environments")).status_code == 200
    await wait_until_idle(api)


async def test_services_of_the_host_are_not_reached_through_a_port(
    api: httpx.AsyncClient, system: System, served: str
) -> None:
    for port in {*system.ports.values(), urlsplit(system.owner_url).port or 5432}:
        answer = await api.get(f"/v1/environments/{served}/ports/{port}/healthz")
        assert answer.json()["code"] == "nothing_listens"
    async with httpx.AsyncClient(base_url=system.url_of("cpu")) as client:
        answer = await client.get(
            f"/internal/ports/1/{served}/{PORT}", headers={"connection": "upgrade", "upgrade": "tcp"}
        )
        assert answer.status_code == 401


@pytest.mark.slow
async def test_connections_of_an_environment_are_limited(api: httpx.AsyncClient, system: System, served: str) -> None:
    async with AsyncExitStack() as stack:
        refused = None
        for _ in range(129):
            head, *_ = await stack.enter_async_context(
                upgraded(system, f"/v1/environments/{served}/ports/{PORT}", "tcp")
            )
            if not head.startswith(b"HTTP/1.1 101"):
                refused = head
        assert refused is not None
        assert refused.startswith(b"HTTP/1.1 503")
    async with asyncio.timeout(20):  # a connection counts until the server inside has ended it too
        while (await api.get(f"/v1/environments/{served}/ports/{PORT}/")).status_code != 200:
            pass


@pytest.mark.slow
async def test_environment_without_an_own_network_refuses(databases: Databases) -> None:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="unsafe-local", cores=1) as system, system.client() as api:
        id = await created(api)
        answer = await api.get(f"/v1/environments/{id}/ports/{system.ports['gateway']}/v1/actions")
        assert (answer.status_code, answer.json()["code"]) == (422, "requirement_not_enforced")
    await databases.drop(owner_url)

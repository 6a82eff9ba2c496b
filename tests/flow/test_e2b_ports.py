"""Test ports of E2B's sandboxes: by headers and by host name, public or with the token."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support.conditions import eventually
from support.e2b import Sandbox, create
from support.postgres import Databases
from support.system import API_KEY, System, running_system

DOMAIN = "ports.example"
PORT = 3000
SERVE = (
    f"cd /tmp && echo served > index.html && {{ nohup python3 -m http.server {PORT} >/dev/null 2>&1 & }}"
    f" && until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {PORT}))' 2>/dev/null; do :; done"
)

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    gateway = {"TANGRAM_PORTS_DOMAIN": DOMAIN}
    async with running_system(owner_url, driver="namespaces", cores=1, overrides={"gateway": gateway}) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=system.url, headers={"x-api-key": API_KEY}, timeout=60) as api:
        yield api


@pytest_asyncio.fixture
async def client(system: System) -> AsyncIterator[httpx.AsyncClient]:
    """Provide a client without a key."""
    async with httpx.AsyncClient(base_url=system.url, timeout=60) as client:
        yield client


async def serving(api: httpx.AsyncClient, **options: Any) -> Sandbox:
    """Return a sandbox with a server that a command left behind."""
    sandbox = await create(api, **options)
    await sandbox.run(SERVE)
    await eventually(sandbox.is_at_rest)
    return sandbox


def by_headers(sandbox: Sandbox, **more: str) -> dict[str, str]:
    return {"e2b-sandbox-id": sandbox.id, "e2b-sandbox-port": str(PORT), **more}


async def test_port_is_public_by_headers_and_by_host_name(api: httpx.AsyncClient, client: httpx.AsyncClient) -> None:
    sandbox = await serving(api)
    host = {"host": f"{PORT}-{sandbox.id}.{DOMAIN}"}
    for headers in (by_headers(sandbox), host, {**host, "x-api-key": "own key of the server"}):
        answer = await client.get("/index.html", headers=headers)
        assert (answer.status_code, answer.text) == (200, "served\n")
    assert (await client.post("/index.html", content=b"x" * 1000, headers=host)).status_code == 501
    refused = await client.get("/", headers=by_headers(sandbox) | {"e2b-sandbox-port": "3001"})
    assert (refused.status_code, refused.json()["code"]) == (502, "nothing_listens")
    for port in ("0", "65536", "x"):
        assert (await client.get("/", headers=by_headers(sandbox) | {"e2b-sandbox-port": port})).status_code == 422
    await eventually(sandbox.is_at_rest)
    await sandbox.kill()


async def test_port_without_public_traffic_needs_the_token(api: httpx.AsyncClient, client: httpx.AsyncClient) -> None:
    sandbox = await serving(api, network={"allowPublicTraffic": False})
    for token in ({}, {"e2b-traffic-access-token": "no"}):
        assert (await client.get("/", headers=by_headers(sandbox, **token))).status_code == 401
    answer = await client.get("/index.html", headers=by_headers(sandbox, **{"e2b-traffic-access-token": sandbox.token}))
    assert answer.text == "served\n"
    await sandbox.kill()


async def test_paused_sandbox_serves_no_port_until_it_is_resumed(
    api: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    sandbox = await serving(api)
    assert (await client.get("/index.html", headers=by_headers(sandbox))).status_code == 200
    assert (await api.post(f"/sandboxes/{sandbox.id}/pause")).status_code == 204
    assert await sandbox.is_at_rest(), "the action of the connection has ended"
    assert (await client.get("/index.html", headers=by_headers(sandbox))).status_code == 502
    assert (await api.post(f"/v2/sandboxes/{sandbox.id}/connect", json={"timeout": 60})).status_code == 201
    assert (await client.get("/index.html", headers=by_headers(sandbox))).text == "served\n"
    await sandbox.kill()
    answer = await client.get("/index.html", headers=by_headers(sandbox))
    assert (answer.status_code, answer.json()["message"]) == (502, "The sandbox was not found")


async def test_answers_contain_the_domain_of_the_host_names(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v2/sandboxes", json={"templateID": "base"})
    assert answer.json()["domain"] == DOMAIN
    await api.delete(f"/sandboxes/{answer.json()['sandboxID']}")

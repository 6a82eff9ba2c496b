"""Test requests, WebSockets and plain connections to servers inside environments."""

import asyncio
import base64
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from uuid import UUID

import httpx
import pytest
import pytest_asyncio

from arl_tangram import AsyncTangram
from support.ports import PORT, SERVER, created, run, served_environment, upgraded, wait_until_idle
from support.postgres import Databases
from support.system import API_KEY, System, running_system


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="namespaces", cores=2) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def served(api: httpx.AsyncClient) -> AsyncIterator[str]:
    async with served_environment(api) as id:
        yield id


async def test_request_reaches_a_server_that_was_left_behind(api: httpx.AsyncClient, served: str) -> None:
    url = f"/v1/environments/{served}/ports/{PORT}/a%2Fb/c?d=%20e"
    sent = {"cookie": "console=secret", "x-own": "1", "x-forwarded-for": "1.2.3.4", "connection": "x-hop", "x-hop": "1"}
    answer = await api.get(url, headers=sent)
    assert answer.status_code == 200, answer.text
    seen = answer.json()
    headers = {name.lower(): value for name, value in seen["headers"].items()}
    assert (seen["method"], seen["path"]) == ("GET", "/a%2Fb/c?d=%20e")
    assert headers["host"] == f"localhost:{PORT}"
    assert headers["x-own"] == "1"
    assert headers["x-forwarded-prefix"] == f"/v1/environments/{served}/ports/{PORT}"
    assert not headers.keys() & {"authorization", "cookie", "x-hop", "x-forwarded-for"}
    assert API_KEY not in answer.text
    assert answer.headers["content-security-policy"].startswith("sandbox ")


async def test_all_methods_and_large_bodies_are_forwarded(api: httpx.AsyncClient, served: str) -> None:
    url = f"/v1/environments/{served}/ports/{PORT}/"
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = await api.request(method, url, content=b"x" * 1000, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["method"], answer.json()["size"]) == (200, method, 1000)

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(160):
            yield b"y" * 65536

    assert (await api.post(url, content=parts())).json()["size"] == 160 * 65536
    answer = await api.get(f"/v1/environments/{served}/ports/{PORT}/stream/160")
    assert len(answer.content) == 160 * 65536


async def test_response_sets_nothing_for_the_host_of_the_api(api: httpx.AsyncClient, served: str) -> None:
    answer = await api.get(f"/v1/environments/{served}/ports/{PORT}/redirect")
    assert answer.status_code == 302
    assert answer.headers["location"] == f"/v1/environments/{served}/ports/{PORT}/there?x"
    assert not {"set-cookie", "strict-transport-security"} & set(answer.headers)


async def test_unused_port_says_that_nothing_listens(api: httpx.AsyncClient, served: str) -> None:
    answer = await api.get(f"/v1/environments/{served}/ports/8999/")
    assert answer.status_code == 502
    assert answer.json()["code"] == "nothing_listens"
    assert answer.json()["detail"] == f"Nothing listens on port 8999 in environment {served}"


@pytest.mark.parametrize("port", ["0", "65536", "abc", "-1", "8123x", "%20"])
async def test_invalid_port_names_the_field(api: httpx.AsyncClient, port: str) -> None:
    for method, path in (("GET", "/"), ("POST", ":sign")):
        answer = await api.request(
            method, f"/v1/environments/00000000-0000-7000-8000-000000000000/ports/{port}{path}", json={}
        )
        assert (answer.status_code, [each["field"] for each in answer.json()["errors"]]) == (422, ["path.port"])


async def test_websocket_is_relayed_without_parsing(system: System, served: str) -> None:
    async with upgraded(system, f"/v1/environments/{served}/ports/{PORT}/ws", "websocket") as (head, reader, writer):
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"x-key: k\r\n" in head
        writer.write(b"frames")
        assert await asyncio.wait_for(reader.readexactly(12), 10) == b"hello FRAMES"
        writer.write(os.urandom(1 << 20))
        assert len(await asyncio.wait_for(reader.readexactly(1 << 20), 20)) == 1 << 20
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_plain_connection_is_relayed_and_half_closed(system: System, served: str) -> None:
    async with upgraded(system, f"/v1/environments/{served}/ports/{PORT}", "tcp") as (head, reader, writer):
        assert head.startswith(b"HTTP/1.1 101 ")
        writer.write(b"GET /plain HTTP/1.0\r\n\r\n")
        writer.write_eof()
        assert b'"path": "/plain"' in await asyncio.wait_for(reader.read(), 10)


async def test_upgrade_of_a_request_that_fails_gets_the_problem(system: System, served: str) -> None:
    for key, port, status in ((None, PORT, b"401"), (API_KEY, 8999, b"502")):
        async with upgraded(system, f"/v1/environments/{served}/ports/{port}", "websocket", key) as (head, *_):
            assert head.startswith(b"HTTP/1.1 " + status)


async def test_other_actions_run_while_a_connection_is_open(
    api: httpx.AsyncClient, system: System, served: str
) -> None:
    async with upgraded(system, f"/v1/environments/{served}/ports/{PORT}/ws", "websocket") as (_, reader, writer):
        await reader.readexactly(6)
        for _ in range(2):
            assert (await run(api, served, "echo ran"))["result"]["stdout"]["text"] == "ran\n"
            writer.write(b"x")
            assert await asyncio.wait_for(reader.readexactly(1), 10) == b"X"
        running = (await api.get("/v1/actions", params={"task": "t", "state": "running"})).json()["items"]
        assert len(running) == 1, "the action that only waits"
    await wait_until_idle(api)


async def test_connection_uses_the_action_that_runs_the_server(api: httpx.AsyncClient) -> None:
    id = await created(api)
    body = {"task": "t", "argv": ["python3", "server.py", str(PORT)], "environment": {"id": id}}
    files = {"server.py": base64.b64encode(SERVER.encode()).decode()}
    action = (await api.post("/v1/actions", json={**body, "files": files})).json()["id"]
    for _ in range(200):
        answer = await api.get(f"/v1/environments/{id}/ports/{PORT}/")
        if answer.status_code == 200:
            break
        assert answer.json()["code"] == "nothing_listens" or answer.status_code == 409, answer.text
        await asyncio.sleep(0.05)
    assert answer.status_code == 200
    listed = (await api.get("/v1/actions", params={"task": "t", "state": "running"})).json()["items"]
    assert [each["id"] for each in listed] == [action]
    assert (await api.delete(f"/v1/actions/{action}")).status_code < 300
    await api.delete(f"/v1/environments/{id}")


async def test_deleted_environment_ends_its_connections(api: httpx.AsyncClient, system: System, served: str) -> None:
    async with upgraded(system, f"/v1/environments/{served}/ports/{PORT}/ws", "websocket") as (_, reader, _):
        await reader.readexactly(6)
        await api.delete(f"/v1/environments/{served}")
        assert await asyncio.wait_for(reader.read(), 15) == b""
        answer = await api.get(f"/v1/environments/{served}/ports/{PORT}/")
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


async def test_sdk_returns_a_url_that_needs_no_key(system: System, served: str) -> None:
    async with AsyncTangram(system.url, API_KEY) as tangram, httpx.AsyncClient() as client:
        url = await (await tangram.get_environment(UUID(served))).port_url(PORT)
        assert (await client.get(url + "a")).json()["path"] == "/a"


async def test_command_line_forwards_a_local_port(system: System, served: str) -> None:
    forwarding = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "arl_tangram.cli", "ports", "forward", served, str(PORT), "--local", "0"),
        env={**os.environ, "TANGRAM_URL": system.url, "TANGRAM_API_KEY": API_KEY},
        stdout=subprocess.PIPE,
    )
    assert forwarding.stdout is not None
    try:
        address = (await asyncio.wait_for(forwarding.stdout.readline(), 20)).decode().strip()
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            for _ in range(3):
                answer = await client.get("/a")
                assert (answer.json()["path"], answer.json()["headers"]["Host"]) == ("/a", address)
    finally:
        forwarding.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(forwarding.wait(), 10) == 0

"""Test the network of environments through the API: set-up phases, live changes, limits, forks, and E2B's rules."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest_asyncio

from arl_tangram import AsyncTangram
from support.conditions import eventually
from support.e2b import create, output
from support.network import PUBLIC, SmallInternet, a_small_internet
from support.postgres import Databases
from support.system import API_KEY, System, free_ports, running_system

SMALL = {"task": "t", "memory_mib": 256, "disk_mib": 32}
FETCH = "import urllib.request; print(urllib.request.urlopen('http://index.example:{port}/', timeout=20).read())"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def port() -> int:
    return free_ports(1)[0]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def internet(port: int) -> AsyncIterator[SmallInternet]:
    async with a_small_internet(port) as internet:
        internet.names["index.example"] = [PUBLIC]
        yield internet


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases, internet: SmallInternet, port: int) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    named = json.dumps({"index": {"allow": [f"index.example:{port}"]}})
    settings = {"launcher": internet.variables, "gateway": {"TANGRAM_NETWORK_POLICIES": named}}
    async with running_system(owner_url, driver="namespaces", cores=1, overrides=settings) as system:
        yield system
    await databases.drop(owner_url)


async def made(api: httpx.AsyncClient, **wanted: Any) -> dict[str, Any]:
    answer = await api.post("/v1/environments", json=SMALL | wanted)
    assert answer.status_code == 201, answer.text
    environment: dict[str, Any] = answer.json()
    return environment


async def run(api: httpx.AsyncClient, environment: str | None, source: str | None, **action: Any) -> dict[str, Any]:
    where = {"id": environment} if environment is not None else {"scope": "ephemeral"}
    body = {"task": "t", "source": source, "environment": where, "demand": {"cpu": 0.5}}
    answer = await api.post("/v1/actions", params={"wait": 50}, json=body | action)
    assert answer.status_code == 200, answer.text
    settled: dict[str, Any] = answer.json()
    return settled


async def test_package_is_installed_in_the_setup_and_the_index_is_out_of_reach_afterwards(
    api: httpx.AsyncClient, internet: SmallInternet, port: int
) -> None:
    wheel = internet.publish("smallpackage", "ANSWER = 42\n")
    environment = (await made(api))["id"]
    pip = ["python3", "-m", "pip", "install", "--no-cache-dir", "--target", "packages", "-i"]
    install = [*pip, f"http://index.example:{port}/simple/", "--trusted-host", "index.example", "smallpackage"]
    setup = await run(api, environment, None, argv=install, timeout_s=120, network="index")
    assert setup["outcome"] == "ok", setup
    usage = setup["result"]["network"]
    assert usage["received_bytes"] > len(wheel)
    use = "import sys; sys.path.insert(0, 'packages'); import smallpackage; print(smallpackage.ANSWER)"
    assert (await run(api, environment, use))["result"]["stdout"]["text"] == "42\n"
    again = [*install[:-1], "--no-deps", "--upgrade", "--retries", "0", "smallpackage"]
    offline = await run(api, environment, None, argv=again, timeout_s=120)
    assert offline["outcome"] == "user_error"
    assert "network" not in offline["result"] or offline["result"]["network"] is None


async def test_ephemeral_action_with_network_reports_refusals(api: httpx.AsyncClient, port: int) -> None:
    source = FETCH.format(port=port).replace("index.example", "evil.example")
    settled = await run(api, None, source, network={"allow": [f"index.example:{port}"]})
    assert settled["outcome"] == "user_error"
    refusal = {"host": "evil.example", "port": port, "reason": "not_allowed", "count": 1}
    assert settled["result"]["network"]["refusals"] == [refusal]


async def test_change_of_a_live_environment_applies_to_a_running_program(api: httpx.AsyncClient, port: int) -> None:
    environment = (await made(api, network="index"))["id"]
    held = f"""
import socket
with socket.create_connection(("127.0.0.1", 3128)) as end:
    end.sendall(b"GET http://index.example:{port}/hold HTTP/1.1\\r\\nHost: index.example:{port}\\r\\n\\r\\n")
    data = b""
    while b"held" not in data:
        data += end.recv(100)
    print("open", flush=True)
    try:
        end.recv(100)
    except ConnectionError:
        pass
print("closed")
"""
    body = {"task": "t", "source": held, "environment": {"id": environment}, "demand": {"cpu": 0.5}}
    action = (await api.post("/v1/actions", json=body)).json()["id"]

    async with api.stream("GET", f"/v1/actions/{action}/logs") as logs:
        async for line in logs.aiter_lines():
            if "open" in line:
                break
    changed = await api.patch(f"/v1/environments/{environment}", json={"network": "none"})
    assert (changed.status_code, changed.json()["network"]) == (200, "none"), changed.text
    settled = (await api.get(f"/v1/actions/{action}", params={"wait": 30})).json()
    assert settled["result"]["stdout"]["text"] == "open\nclosed\n"
    assert (await run(api, environment, FETCH.format(port=port)))["outcome"] == "user_error"


async def test_forks_and_snapshots_keep_the_network(system: System, port: int) -> None:
    allowed = {"allow": [f"index.example:{port}"]}
    async with AsyncTangram(system.url, API_KEY) as tangram:
        async with tangram.environment(**SMALL, network="index") as source:
            assert source.info.network != "none"
            snapshot = await source.snapshot()
            [fork] = await source.fork(1)
            assert fork.info.network == source.info.network
            done = await fork.run(source=FETCH.format(port=port))
            assert done.outcome == "ok", done
            await fork.set_network("none")
            assert (await tangram.get_environment(fork.id)).info.network == "none"
            await fork.end()
        async with tangram.environment(task="t", snapshot=snapshot.id) as restored:
            assert restored.info.model_dump()["network"] == allowed
            assert (await restored.run(source=FETCH.format(port=port))).outcome == "ok"


async def test_networks_that_are_not_allowed_are_refused_with_the_field(api: httpx.AsyncClient) -> None:
    environment = (await made(api))["id"]
    attempts = {
        "open": "TANGRAM_NETWORK_MAX",
        "nothing-like-this": "Available: none, open, index, package-mirrors",
    }
    for network, message in attempts.items():
        for answer in (
            await api.post("/v1/environments", json=SMALL | {"network": network}),
            await api.patch(f"/v1/environments/{environment}", json={"network": network}),
            await api.post("/v1/actions", json={"task": "t", "argv": ["true"], "network": network}),
        ):
            assert answer.status_code == 422, answer.text
            assert answer.json()["errors"][0]["field"] == "network"
            assert message in answer.text
    wrong = await api.patch(f"/v1/environments/{environment}", json={"network": {"allow": ["*.com"]}})
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "network.hosts.allow.0"), wrong.text


async def test_rules_of_e2b_apply_to_its_commands(api: httpx.AsyncClient, port: int) -> None:
    fetch = f"curl -sS -m 20 http://index.example:{port}/"
    rules = {"allowOut": [f"index.example:{port}"], "denyOut": ["0.0.0.0/0"]}
    sandbox = await create(api, network=rules)
    assert output(await sandbox.run(fetch)) == "hello\n"
    await api.post(f"/sandboxes/{sandbox.id}/pause", json={})
    assert (await api.post(f"/sandboxes/{sandbox.id}/connect", json={"timeout": 300})).status_code == 201
    assert output(await sandbox.run(fetch)) == "hello\n"
    closed = await api.put(f"/sandboxes/{sandbox.id}/network", json={"denyOut": ["0.0.0.0/0"]})
    assert closed.status_code == 204, closed.text

    async def is_offline() -> bool:
        return output(await sandbox.run(fetch)) == ""

    await eventually(is_offline)
    await sandbox.kill()
    plain = await create(api, allow_internet_access=True)
    assert output(await plain.run(fetch)) == ""
    await plain.kill()

"""Test forks: new environments with the files of one that continues."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest_asyncio

from arl_store.migrate import ensure_api_key
from arl_tangram import AsyncTangram
from support.conditions import eventually
from support.postgres import Databases
from support.system import API_KEY, System, running_system

SMALL = {"task": "t", "memory_mib": 64, "disk_mib": 16}
OTHER_KEY = "tk_eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    await ensure_api_key(owner_url, "other", OTHER_KEY)
    cpu = {"TANGRAM_MEMORY_MIB": "4096"}
    async with running_system(owner_url, driver="namespaces", cores=1, overrides={"cpu": cpu}) as system:
        yield system
    await databases.drop(owner_url)


async def made(api: httpx.AsyncClient, **wanted: Any) -> str:
    answer = await api.post("/v1/environments", json=SMALL | wanted)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def run(api: httpx.AsyncClient, environment: str, script: str, **action: Any) -> str:
    body = {"task": "t", "argv": ["sh", "-c", script], "environment": {"id": environment}, "demand": {"cpu": 0.5}}
    answer = await api.post("/v1/actions", params={"wait": 30}, json=body | action)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["result"]["stdout"]["text"])


async def forked(api: httpx.AsyncClient, environment: str, count: int, **body: Any) -> list[str]:
    answer = await api.post(f"/v1/environments/{environment}:fork", json={"count": count, **body})
    assert answer.status_code == 201, answer.text
    assert answer.json()["processes_copied"] is False
    return [each["id"] for each in answer.json()["items"]]


async def live(api: httpx.AsyncClient, task: str) -> set[str]:
    page = await api.get("/v1/environments", params={"task": task, "state": "live"})
    return {each["id"] for each in page.json()["items"]}


@pytest_asyncio.fixture(autouse=True)
async def _no_environment_remains(api: httpx.AsyncClient) -> AsyncIterator[None]:
    """End all environments after each test, so that the next one has all the memory of the node."""
    yield
    page = await api.get("/v1/environments", params={"state": "live", "limit": 1000})
    for each in page.json()["items"]:
        await api.delete(f"/v1/environments/{each['id']}")


def refusal(answer: httpx.Response) -> tuple[int, list[str]]:
    return answer.status_code, [each["field"] for each in answer.json().get("errors", [])]


async def test_forks_have_equal_files_and_independent_writes(api: httpx.AsyncClient) -> None:
    source = await made(api, env={"COLOUR": "blue"})
    await run(api, source, "mkdir d; echo 1 > d/f; ln -s d/f l; chmod 700 d; echo t > /tmp/t")
    forks = await forked(api, source, 3)
    assert len(set(forks)) == 3
    look = "cat l /tmp/t; stat -c %a d; echo $COLOUR"
    assert [await run(api, each, look) for each in forks] == ["1\nt\n700\nblue\n"] * 3
    await run(api, forks[0], "echo mine > d/f")
    await run(api, source, "echo later > d/f")
    assert [await run(api, each, "cat l") for each in (source, *forks)] == ["later\n", "mine\n", "1\n", "1\n"]
    assert (await api.get("/v1/snapshots")).json()["items"] == []
    nested = await forked(api, forks[0], 1)
    assert await run(api, nested[0], "cat l") == "mine\n"


async def test_fork_keeps_the_processes_of_the_source_and_counts_them(api: httpx.AsyncClient) -> None:
    source = await made(api)
    await run(api, source, "setsid sleep 600 >/dev/null 2>&1 & echo $! > pid")
    await run(api, source, "true")
    answer = await api.post(f"/v1/environments/{source}:fork", json={"count": 1})
    assert (answer.status_code, answer.json()["leftover_processes"]) == (201, 1)
    alive = "kill -0 $(cat pid) && echo alive || echo gone"
    fork = answer.json()["items"][0]["id"]
    assert [await run(api, each, alive) for each in (source, fork)] == ["alive\n", "gone\n"]


async def test_fork_waits_for_earlier_actions_of_the_source(api: httpx.AsyncClient) -> None:
    source = await made(api)
    await run(api, source, "mkfifo gate")
    opener = {"task": "t", "argv": ["sh", "-c", "read line && echo $line > f"], "stdin_open": True}
    answer = await api.post("/v1/actions", json=opener | {"environment": {"id": source}, "demand": {"cpu": 0.5}})
    action = answer.json()["id"]
    forking = asyncio.create_task(forked(api, source, 1))

    async def is_running() -> bool:
        return str((await api.get(f"/v1/actions/{action}")).json()["state"]) == "running"

    await eventually(is_running)
    assert (await api.post(f"/v1/actions/{action}/input", json={"text": "written\n"})).status_code == 200
    assert await run(api, (await forking)[0], "cat f") == "written\n"


async def test_repeated_key_returns_the_same_forks_after_the_source_ended(api: httpx.AsyncClient) -> None:
    source, headers = await made(api, task="again"), {"idempotency-key": uuid4().hex}
    url, body = f"/v1/environments/{source}:fork", {"count": 2, "labels": {"a": "b"}}
    first, second = await asyncio.gather(*(api.post(url, json=body, headers=headers) for _ in range(2)))
    assert (first.status_code, second.status_code) == (201, 201), (first.text, second.text)
    ids = [each["id"] for each in first.json()["items"]]
    assert [each["id"] for each in second.json()["items"]] == ids
    assert await live(api, "again") == {source, *ids}
    await api.delete(f"/v1/environments/{source}")
    third = await api.post(url, json=body, headers=headers)
    assert [each["id"] for each in third.json()["items"]] == ids
    other = await api.post(url, json={"count": 3}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


async def test_names_and_idle_time_of_forks_are_chosen(api: httpx.AsyncClient) -> None:
    source, names = await made(api, idle_ttl_s=900), [f"n-{uuid4().hex}" for _ in range(2)]
    answer = await api.post(f"/v1/environments/{source}:fork", json={"count": 2, "trajectories": names})
    assert [(each["trajectory"], each["idle_ttl_s"]) for each in answer.json()["items"]] == [(n, 900) for n in names]
    shorter = await forked(api, source, 1, idle_ttl_s=60)
    assert (await api.get(f"/v1/environments/{shorter[0]}")).json()["idle_ttl_s"] == 60


async def test_name_in_use_leaves_no_fork_and_keeps_its_owner(api: httpx.AsyncClient) -> None:
    task, taken = f"t-{uuid4().hex}", f"n-{uuid4().hex}"
    source, owner = await made(api, task=task), await made(api, task=task, trajectory=taken)
    body = {"count": 2, "trajectories": [f"n-{uuid4().hex}", taken]}
    answer = await api.post(f"/v1/environments/{source}:fork", json=body)
    assert refusal(answer) == (409, ["trajectories.1"])

    async def only_the_first_two() -> bool:
        return await live(api, task) == {source, owner}

    await eventually(only_the_first_two)
    assert (await api.get("/v1/snapshots")).json()["items"] == []


async def test_forks_without_room_are_refused_and_none_remains(api: httpx.AsyncClient) -> None:
    task = f"t-{uuid4().hex}"
    source = await made(api, task=task, memory_mib=1024)
    url, headers = f"/v1/environments/{source}:fork", {"idempotency-key": uuid4().hex}
    answer = await api.post(url, params={"wait": 2}, json={"count": 4}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "fewer forks" in answer.json()["detail"]

    async def only_the_source() -> bool:
        return await live(api, task) == {source}

    await eventually(only_the_source)
    # A repetition makes another attempt.
    again = await api.post(url, params={"wait": 2}, json={"count": 4}, headers=headers)
    assert (again.status_code, "did not exist within 2 s" in again.json()["detail"]) == (503, True)
    await eventually(only_the_source)


async def test_repetition_completes_forks_of_a_gateway_that_died(system: System, api: httpx.AsyncClient) -> None:
    task, headers = f"t-{uuid4().hex}", {"idempotency-key": uuid4().hex}
    source, filler = await made(api, task=task, memory_mib=1024), await made(api, task=task, memory_mib=1536)
    url = f"/v1/environments/{source}:fork"
    forking = asyncio.create_task(api.post(url, json={"count": 2}, headers=headers))

    async def one_fork_has_room() -> bool:
        return len(await live(api, task)) == 3

    await eventually(one_fork_has_room)
    system.kill("gateway")
    assert isinstance((await asyncio.gather(forking, return_exceptions=True))[0], httpx.TransportError)
    await system.start("gateway")
    await api.delete(f"/v1/environments/{filler}")
    again = await api.post(url, json={"count": 2}, headers=headers)
    assert again.status_code == 201, again.text
    forks = {each["id"] for each in again.json()["items"]}
    assert (len(forks), await live(api, task)) == (2, {source, *forks})
    assert (await api.get("/v1/snapshots")).json()["items"] == []


async def test_invalid_forks_are_refused_with_the_field(api: httpx.AsyncClient) -> None:
    source = await made(api)
    bodies: list[tuple[dict[str, Any], str]] = [
        ({"count": 0}, "count"),
        ({"count": 65}, "count"),
        ({}, "count"),
        ({"count": 1, "idle_ttl_s": 0}, "idle_ttl_s"),
        ({"count": 1, "size": 2}, "size"),
    ]
    for body, field in bodies:
        status, fields = refusal(await api.post(f"/v1/environments/{source}:fork", json=body))
        assert (status, field in fields[0]) == (422, True), (body, fields)
    for names in (["a"], ["a", "a"]):
        answer = await api.post(f"/v1/environments/{source}:fork", json={"count": 2, "trajectories": names})
        assert (answer.status_code, "trajectories" in answer.text) == (422, True)


async def test_unknown_foreign_and_ended_sources_are_refused(api: httpx.AsyncClient) -> None:
    source = await made(api)
    foreign = {"authorization": f"Bearer {OTHER_KEY}"}
    unknown = await api.post(f"/v1/environments/{uuid4()}:fork", json={"count": 1})
    others = await api.post(f"/v1/environments/{source}:fork", json={"count": 1}, headers=foreign)
    assert (unknown.status_code, others.status_code) == (404, 404)
    await api.delete(f"/v1/environments/{source}")
    answer = await api.post(f"/v1/environments/{source}:fork", json={"count": 1}, headers={"idempotency-key": "k"})
    assert refusal(answer) == (409, ["environment.id"])


async def test_sdk_forks_environments_as_objects(system: System, api: httpx.AsyncClient) -> None:
    source = await made(api)
    async with AsyncTangram(system.url, API_KEY) as tangram:
        environment = await tangram.get_environment(UUID(source))
        await environment.files.write("f", "1")
        forks = await environment.fork(2, labels={"a": "b"})
        await forks[0].files.write("f", "2")
        assert [await each.files.read("f") for each in (environment, *forks)] == [b"1", b"2", b"1"]

"""Test snapshots: the files of one environment become the start of others."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import pytest_asyncio

from arl_cpu.launcher.linux.id_ranges import can_map_ranges
from arl_store.migrate import ensure_api_key
from arl_tangram import AsyncTangram
from support.conditions import eventually
from support.postgres import Databases
from support.system import API_KEY, System, running_system

SMALL = {"task": "t", "memory_mib": 128, "disk_mib": 16}
OTHER_KEY = "tk_ffffffffffffffffffffffffffffffff"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    await ensure_api_key(owner_url, "other", OTHER_KEY)
    cpu = {"TANGRAM_SNAPSHOTS_MIB": "64"}
    async with running_system(owner_url, driver="namespaces", cores=1, overrides={"cpu": cpu}) as system:
        yield system
    await databases.drop(owner_url)


async def made(api: httpx.AsyncClient, **wanted: Any) -> str:
    body = {"task": "t", **wanted} if "snapshot" in wanted else SMALL | wanted
    answer = await api.post("/v1/environments", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def run(api: httpx.AsyncClient, environment: str, script: str, **action: Any) -> str:
    body = {"task": "t", "argv": ["sh", "-c", script], "environment": {"id": environment}, "demand": {"cpu": 0.5}}
    answer = await api.post("/v1/actions", params={"wait": 30}, json=body | action)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["result"]["stdout"]["text"])


async def taken(api: httpx.AsyncClient, environment: str) -> dict[str, Any]:
    answer = await api.post(f"/v1/environments/{environment}/snapshots")
    assert answer.status_code == 201, answer.text
    snapshot: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/snapshots/{snapshot['id']}"
    return snapshot


def kept(system: System) -> set[str]:
    return {path.name for path in (system.directory / "snapshots").glob("*/*")}


async def test_two_environments_from_one_snapshot_are_independent(api: httpx.AsyncClient) -> None:
    first = await made(api)
    await run(api, first, "mkdir d; echo 1 > d/f; ln -s d/f l; chmod 700 d; echo t > /tmp/t")
    snapshot = await taken(api, first)
    assert (snapshot["environment"], snapshot["disk_mib"], snapshot["members"]) == (first, 16, 6)
    await run(api, first, "echo later > d/f")
    forks = [await made(api, snapshot=snapshot["id"]) for _ in range(2)]
    assert (await api.get(f"/v1/environments/{forks[0]}")).json()["memory_mib"] == 128
    await run(api, forks[0], "echo mine > d/f")
    seen = [await run(api, each, "cat l /tmp/t; stat -c %a d") for each in (first, *forks)]
    assert seen == ["later\nt\n700\n", "mine\nt\n700\n", "1\nt\n700\n"]
    again = await taken(api, forks[1])
    assert await run(api, await made(api, snapshot=again["id"]), "cat l") == "1\n"


async def test_snapshot_restores_symlinks_safely_and_drops_pipes(api: httpx.AsyncClient) -> None:
    first = await made(api)
    script = "ln -s /etc/passwd p; ln -s / root; mkfifo pipe; touch $(printf 'n\\377') a; ln a b"
    await run(api, first, f"{script}; chmod 4755 a")
    second = await made(api, snapshot=(await taken(api, first))["id"])
    mode = 4755 if can_map_ranges() else 755
    assert await run(api, second, "readlink p root; stat -c '%a %h' a; ls | wc -l") == f"/etc/passwd\n/\n{mode} 2\n5\n"


async def test_snapshot_survives_its_environment_manager_and_launcher(system: System, api: httpx.AsyncClient) -> None:
    first = await made(api)
    await run(api, first, "echo kept > f")
    snapshot = await taken(api, first)
    await api.delete(f"/v1/environments/{first}")
    system.kill("cpu")
    system.kill("launcher")
    (system.directory / "l.sock").unlink(missing_ok=True)
    await system.start("launcher")
    await system.start("cpu")
    assert await run(api, await made(api, snapshot=snapshot["id"]), "cat f") == "kept\n"


async def test_manager_killed_during_a_snapshot_leaves_no_partial_file(system: System, api: httpx.AsyncClient) -> None:
    first = await made(api, disk_mib=40, memory_mib=256)
    await run(api, first, "head -c 30000000 /dev/urandom > f", timeout_s=60)
    before = kept(system)
    taking = asyncio.create_task(api.post(f"/v1/environments/{first}/snapshots"))
    await eventually(lambda: any(name.startswith(".partial") for name in kept(system)) or taking.done())
    system.kill("cpu")
    assert (await taking).status_code in (201, 503)
    await system.start("cpu")
    listed = {f"{each['id']}.tar" for each in (await api.get("/v1/snapshots")).json()["items"]}
    assert kept(system) == listed
    assert listed >= before
    assert await run(api, first, "wc -c < f") == "30000000\n"
    for each in (await api.get("/v1/snapshots")).json()["items"]:
        await api.delete(f"/v1/snapshots/{each['id']}")


async def test_deleted_snapshot_is_not_found_and_its_file_removed(system: System, api: httpx.AsyncClient) -> None:
    first = await made(api)
    snapshot = await taken(api, first)
    path = f"/v1/snapshots/{snapshot['id']}"
    assert snapshot["id"] in {each["id"] for each in (await api.get("/v1/snapshots")).json()["items"]}
    assert (await api.get(path)).json() == snapshot
    assert (await api.delete(path)).status_code == 204
    assert [(await api.get(path)).status_code, (await api.delete(path)).status_code] == [404, 404]
    answer = await api.post("/v1/environments", json={"task": "t", "snapshot": snapshot["id"]})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (404, "snapshot")
    await run(api, first, "true")
    await eventually(lambda: f"{snapshot['id']}.tar" not in kept(system), timeout_s=20)


async def test_snapshot_above_the_node_budget_is_refused(system: System, api: httpx.AsyncClient) -> None:
    first = await made(api, disk_mib=60, memory_mib=256)
    await run(api, first, "head -c 50000000 /dev/zero > f", timeout_s=60)
    snapshot = await taken(api, first)
    answer = await api.post(f"/v1/environments/{first}/snapshots")
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    await api.delete(f"/v1/snapshots/{snapshot['id']}")
    await run(api, first, "true")
    await eventually(lambda: f"{snapshot['id']}.tar" not in kept(system), timeout_s=20)


async def test_sparse_files_count_with_their_full_size(system: System, api: httpx.AsyncClient) -> None:
    first = await made(api)
    await run(api, first, "for i in 1 2 3; do truncate -s 9M f$i; done")
    before = kept(system)
    answer = await api.post(f"/v1/environments/{first}/snapshots")
    assert (answer.status_code, answer.json()["code"], kept(system)) == (413, "too_large", before)
    await run(api, first, "rm f2 f3; ln f1 f2; ln f1 f3")
    snapshot = await taken(api, first)
    assert (snapshot["members"], snapshot["bytes"]) == (5, 9 << 20)


@pytest.mark.slow
async def test_snapshot_preserves_long_paths_and_link_targets(api: httpx.AsyncClient) -> None:
    first = await made(api)
    deep = "d=$(printf '%0200d' 0); for i in 1 2 3 4 5 6 7 8; do mkdir $d; cd $d; done"
    await run(api, first, f"{deep}; for i in $(seq 200); do ln -s $(printf '%04000d' $i) $i; done")
    second = await made(api, snapshot=(await taken(api, first))["id"])
    assert await run(api, second, "find . | wc -l") == "209\n"


async def test_snapshot_larger_than_the_disk_creates_no_environment(api: httpx.AsyncClient) -> None:
    first = await made(api)
    await run(api, first, "head -c 9000000 /dev/zero > f")
    snapshot = await taken(api, first)
    name = f"small-{uuid4().hex}"
    small = {"task": "t", "snapshot": snapshot["id"], "disk_mib": 4, "trajectory": name}
    answer = await api.post("/v1/environments", json=small)
    assert answer.status_code == 422, answer.text
    await made(api, snapshot=snapshot["id"], trajectory=name)
    wrong = {"files": {"a": b64encode(b"1").decode()}, "template": "other"}
    for field, value in wrong.items():
        answer = await api.post("/v1/environments", json={"task": "t", "snapshot": snapshot["id"], field: value})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


async def test_sdk_takes_lists_uses_and_deletes_snapshots(system: System, api: httpx.AsyncClient) -> None:
    first = await made(api, task="client")
    await run(api, first, "echo 1 > f", task="client")
    async with AsyncTangram(system.url, API_KEY) as tangram:
        snapshot = await tangram.snapshot(UUID(first))
        second = (await tangram.environment(task="client", snapshot=snapshot.id)).info
        assert (second.disk_mib, await tangram.snapshots(task="client")) == (16, [snapshot])
        await tangram.delete_snapshot(snapshot.id)
        assert await tangram.snapshots(task="client") == []
    assert await run(api, str(second.id), "cat f", task="client") == "1\n"


async def test_snapshots_of_another_project_are_not_found(api: httpx.AsyncClient) -> None:
    first = await made(api)
    snapshot = await taken(api, first)
    other = {"authorization": f"Bearer {OTHER_KEY}"}
    answers = [
        await api.get(f"/v1/snapshots/{snapshot['id']}", headers=other),
        await api.delete(f"/v1/snapshots/{snapshot['id']}", headers=other),
        await api.post(f"/v1/environments/{first}/snapshots", headers=other),
        await api.post("/v1/environments", headers=other, json={"task": "t", "snapshot": snapshot["id"]}),
    ]
    assert [answer.status_code for answer in answers] == [404] * 4
    assert (await api.get("/v1/snapshots", headers=other)).json()["items"] == []

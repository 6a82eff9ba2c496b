"""Test environments by id: creation, files, actions, lists and deletion."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from support.postgres import Databases
from support.system import System, running_system

SMALL = {"task": "t", "memory_mib": 64, "disk_mib": 8}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="namespaces", cores=1) as system:
        yield system
    await databases.drop(owner_url)


async def made(api: httpx.AsyncClient, **wanted: Any) -> dict[str, Any]:
    answer = await api.post("/v1/environments", json=SMALL | wanted)
    assert answer.status_code == 201, answer.text
    environment: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/environments/{environment['id']}"
    return environment


async def run(api: httpx.AsyncClient, **action: Any) -> dict[str, Any]:
    body = {"task": "t", "demand": {"cpu": 0.1, "memory_mib": 64, "disk_mib": 8}} | action
    answer = await api.post("/v1/actions", params={"wait": 30}, json=body)
    assert answer.status_code == 200, answer.text
    settled: dict[str, Any] = answer.json()
    return settled


async def until_it_is(api: httpx.AsyncClient, path: str, state: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while (found := (await api.get(path)).json())["state"] != state:
            await asyncio.sleep(0.02)
    return dict(found)


async def test_new_environment_has_its_files_and_variables_before_any_action(api: httpx.AsyncClient) -> None:
    files = {"src/a.txt": b64encode(b"hello").decode()}
    environment = await made(api, env={"GREETING": "hi", "LANG": "C"}, files=files)
    assert (environment["state"], environment["memory_mib"], environment["disk_mib"]) == ("live", 64, 8)
    script = "cat src/a.txt; echo $GREETING $LANG"
    settled = await run(api, argv=["sh", "-c", script], environment={"id": environment["id"]}, env={"LANG": "POSIX"})
    assert settled["result"]["stdout"]["text"] == "hellohi POSIX\n"
    assert settled["trajectory"] == environment["trajectory"]


async def test_environment_is_created_while_all_cores_are_allocated(api: httpx.AsyncClient) -> None:
    """The node's only core is allocated to another action."""
    busy = (await api.post("/v1/actions", json={"task": "t", "argv": ["sleep", "300"], "demand": {"cpu": 1}})).json()
    await until_it_is(api, f"/v1/actions/{busy['id']}", "running")
    environment = await made(api)
    path = f"/v1/environments/{environment['id']}/files/x"
    assert (await api.put(path, content=b"1")).status_code == 204
    assert (await api.get(f"/v1/actions/{busy['id']}")).json()["state"] == "running"
    await api.delete(f"/v1/actions/{busy['id']}")


async def test_binary_file_is_uploaded_and_downloaded_unchanged(api: httpx.AsyncClient) -> None:
    environment = await made(api)
    path = f"/v1/environments/{environment['id']}/files/a/b c/ü.bin"
    content = bytes(range(256)) * 5000
    assert (await api.put(path, content=content)).status_code == 204
    answer = await api.get(path)
    assert (answer.status_code, answer.content == content) == (200, True)
    assert answer.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *(("missing", 404), ("..%2F..%2Fetc%2Fpasswd", 422), ("%2Fetc%2Fpasswd", 422), ("a%00b", 422)),
        *(("%ff", 422), ("q/", 422)),
    ],
)
async def test_unreadable_file_path_is_refused(api: httpx.AsyncClient, path: str, status: int) -> None:
    environment = await made(api)
    answer = await api.get(f"/v1/environments/{environment['id']}/files/{path}")
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


async def test_file_too_large_for_the_disk_is_refused_without_changes(api: httpx.AsyncClient) -> None:
    environment = await made(api, disk_mib=1)
    path = f"/v1/environments/{environment['id']}/files/big"
    assert (await api.put(path, content=b"old")).status_code == 204
    answer = await api.put(path, content=b"x" * (2 << 20))
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "disk" in answer.json()["detail"]
    assert (await api.get(path)).content == b"old", "all of it or nothing"
    answer = await api.put(path, content=b"x" * (9 << 20))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert (await api.put(path, content=b"small")).status_code == 204


async def test_create_with_a_used_name_is_refused_without_changes(api: httpx.AsyncClient) -> None:
    environment = await made(api, trajectory="mine", env={"WHOSE": "mine"}, files={"a": b64encode(b"1").decode()})
    await run(api, argv=["true"], environment={"id": environment["id"]})
    other = SMALL | {"trajectory": "mine", "env": {"WHOSE": "yours"}, "files": {"a": b64encode(b"2").decode()}}
    for headers in ({}, {"Idempotency-Key": uuid4().hex}):
        answer = await api.post("/v1/environments", json=other, headers=headers)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (409, "trajectory")
    settled = await run(api, argv=["sh", "-c", "cat a; echo $WHOSE"], environment={"id": environment["id"]})
    assert settled["result"]["stdout"]["text"] == "1mine\n"


@pytest.mark.parametrize("files", [{"a": "eA==", "a/b": "eA=="}, {"big": b64encode(b"x" * (9 << 20)).decode()}])
async def test_environment_with_invalid_files_is_not_created(api: httpx.AsyncClient, files: dict[str, str]) -> None:
    name = f"unmade-{uuid4().hex}"
    answer = await api.post("/v1/environments", json=SMALL | {"trajectory": name, "files": files})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "files")
    await made(api, trajectory=name)


async def test_repeated_failed_create_does_not_delete_a_later_environment(api: httpx.AsyncClient) -> None:
    key, name = {"Idempotency-Key": uuid4().hex}, f"failed-{uuid4().hex}"
    bad = SMALL | {"trajectory": name, "files": {"a": "eA==", "a/b": "eA=="}}
    assert (await api.post("/v1/environments", json=bad, headers=key)).status_code == 422
    environment = await made(api, trajectory=name)
    assert (await api.post("/v1/environments", json=bad, headers=key)).status_code == 422
    assert (await api.get(f"/v1/environments/{environment['id']}")).json()["state"] == "live"


async def test_file_upload_ignores_a_pipe_with_the_temporary_name(api: httpx.AsyncClient) -> None:
    environment = await made(api)
    await run(api, argv=["mkfifo", ".tangram-unfinished"], environment={"id": environment["id"]})
    path = f"/v1/environments/{environment['id']}/files/a"
    assert (await api.put(path, content=b"1")).status_code == 204
    assert (await api.get(path)).content == b"1"


async def test_impossible_environment_is_refused_with_the_request_field(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v1/environments", json={"task": "t", "memory_mib": 1 << 24})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "memory_mib")
    answer = await api.post("/v1/environments", json={"task": "t", "template": "none-such"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "template")


async def test_action_with_an_environment_id_needs_no_demand(api: httpx.AsyncClient) -> None:
    environment = await made(api)
    settled = await run(api, argv=["true"], environment={"id": environment["id"]}, demand={})
    assert (settled["outcome"], settled["environment"]) == ("ok", environment["id"])


async def test_repeated_submission_returns_its_action_after_environment_deletion(api: httpx.AsyncClient) -> None:
    environment = await made(api)
    key = {"Idempotency-Key": uuid4().hex}
    body = {"task": "t", "argv": ["true"], "environment": {"id": environment["id"]}}
    first = await api.post("/v1/actions", params={"wait": 30}, json=body, headers=key)
    assert (await api.delete(f"/v1/environments/{environment['id']}")).status_code == 204
    again = await api.post("/v1/actions", params={"wait": 30}, json=body, headers=key)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])


async def test_submission_to_an_ended_environment_does_not_affect_its_successor(
    api: httpx.AsyncClient,
) -> None:
    environment = await made(api, trajectory="reused")
    path = f"/v1/environments/{environment['id']}"
    await api.delete(path)
    await until_it_is(api, path, "ended")
    again = await made(api, trajectory="reused")
    body = {"task": "t", "argv": ["true"], "environment": {"id": environment["id"]}}
    for key in (None, uuid4().hex):
        late = await api.post("/v1/actions", json=body, headers={"Idempotency-Key": key} if key else {})
        assert (late.status_code, late.json()["errors"][0]["field"]) == (409, "environment.id")
    inside = {"task": "t", "argv": ["true"], "environment": {"id": again["id"]}}
    settled = (await api.post("/v1/actions", params={"wait": 30}, json=inside)).json()
    assert settled["outcome"] == "ok"


async def test_repeated_create_with_one_key_creates_one_environment(api: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    first, second = [await api.post("/v1/environments", json=SMALL, headers=key) for _ in range(2)]
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] == second.json()["id"]


async def test_environment_list_supports_pages_and_filters(api: httpx.AsyncClient) -> None:
    ids = [(await made(api, task="listed"))["id"] for _ in range(3)]
    await api.delete(f"/v1/environments/{ids[1]}")
    seen: list[str] = []
    query: dict[str, Any] = {"task": "listed", "limit": 2}
    while True:
        page = (await api.get("/v1/environments", params=query)).json()
        seen += [each["id"] for each in page["items"]]
        if "next_cursor" not in page:
            break
        query["cursor"] = page["next_cursor"]
    assert seen == ids[::-1]
    live = (await api.get("/v1/environments", params={"task": "listed", "state": "live"})).json()["items"]
    assert [each["id"] for each in live] == [ids[2], ids[0]]
    assert (await api.get("/v1/environments", params={"cursor": "x"})).status_code == 400


async def test_ended_environment_reports_its_state_and_end_reason(api: httpx.AsyncClient) -> None:
    environment = await made(api, trajectory="over")
    path = f"/v1/environments/{environment['id']}"
    assert (await api.delete(path)).status_code == 204
    assert (await api.get(path)).json()["state"] in ("ending", "ended")
    ended = await until_it_is(api, path, "ended")
    assert ended["end_reason"] == "deleted"
    assert (await api.delete(path)).status_code == 204
    again = await made(api, trajectory="over")
    assert again["id"] != environment["id"]
    assert (await api.delete(path)).status_code == 204, "it ends the one it names, and that is over"
    assert (await api.get(f"/v1/environments/{again['id']}")).json()["state"] == "live"


async def test_only_batch_items_with_a_wrong_environment_are_refused(api: httpx.AsyncClient) -> None:
    environment = await made(api)
    good = {"task": "t", "argv": ["true"], "environment": {"id": environment["id"]}}
    good["demand"] = {"memory_mib": 64, "disk_mib": 8}
    bad = good | {"environment": {"id": str(uuid4())}}
    other = good | {"task": "other"}
    items = (await api.post("/v1/actions:batch", json={"actions": [good, bad, other]})).json()["items"]
    codes = [item.get("problem", {}).get("code") for item in items]
    assert codes == [None, "not_found", "conflict"]


async def test_id_of_a_deleted_environment_creates_no_new_one(api: httpx.AsyncClient) -> None:
    environment = await made(api)
    path = f"/v1/environments/{environment['id']}"
    await api.delete(path)
    body = {"task": "t", "argv": ["true"], "environment": {"id": environment["id"]}}
    answer = await api.post("/v1/actions", json=body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (409, "environment.id")
    assert (await api.put(f"{path}/files/x", content=b"1")).status_code == 409

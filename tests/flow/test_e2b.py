"""E2B's protocol over HTTP on real sandboxes. A contract test covers its clients."""

import asyncio
import json
import signal
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from arl_store.migrate import ensure_api_key
from support.conditions import eventually
from support.e2b import ENVD_PORT, Sandbox, create, frame, messages, output
from support.postgres import Databases
from support.system import API_KEY, System, running_system

OTHERS_KEY = "tk_" + "e" * 32
BYTES = {"content-type": "application/octet-stream"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    await ensure_api_key(owner_url, "labs/other", OTHERS_KEY)
    async with running_system(owner_url, driver="namespaces", cores=1) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    """Provide a client with the key in the form that old clients of E2B demand."""
    key = "e2b_" + API_KEY.removeprefix("tk_")
    async with httpx.AsyncClient(base_url=system.url, headers={"x-api-key": key}, timeout=60) as api:
        yield api


@pytest_asyncio.fixture
async def sandbox(api: httpx.AsyncClient) -> AsyncIterator["Sandbox"]:
    sandbox = await create(api)
    yield sandbox
    await sandbox.kill()


async def first_pids(sandbox: Sandbox) -> list[int]:
    """Return the ids of the processes that run, once there are any."""
    found: list[int] = []

    async def is_any() -> bool:
        found[:] = await sandbox.pids()
        return bool(found)

    await eventually(is_any)
    return found


async def test_command_streams_output_and_exit_code_and_is_one_action(sandbox: Sandbox) -> None:
    found = await sandbox.run("echo $A; echo why >&2; exit 3", envs={"A": "x"}, cwd="/tmp")
    assert "start" in found[0]["event"]
    assert (output(found), output(found, "stderr")) == ("x\n", "why\n")
    assert found[-2]["event"]["end"]["exitCode"] == 3
    assert found[-1] == {}
    await eventually(sandbox.is_at_rest)
    [action] = await sandbox.actions()
    assert action["outcome"] == "ok"


async def test_command_and_files_belong_to_the_user_of_the_request(sandbox: Sandbox) -> None:
    assert output(await sandbox.run("id -u; echo $HOME $USER")) == "1000\n/workspace sandbox\n"
    assert output(await sandbox.run("id -u; echo $HOME $USER; touch mine", user="root")) == "0\n/workspace root\n"
    written = await sandbox.envd.post("/files?path=/workspace/theirs&username=root", content=b"x", headers=BYTES)
    assert written.status_code == 200, written.text
    assert output(await sandbox.run("stat -c %u theirs; stat -c %u .; rm theirs; echo $?")) == "0\n1000\n0\n"
    unknown = await sandbox.run("id", user="nobody-else")
    assert unknown[-1]["error"]["code"] == "unauthenticated", unknown


async def test_commands_that_overlap_run_concurrently_in_one_action(sandbox: Sandbox) -> None:
    both = await asyncio.gather(
        sandbox.run("mkfifo /tmp/pipe; cat /tmp/pipe"),
        sandbox.run("until [ -p /tmp/pipe ]; do sleep 0.05; done; echo met > /tmp/pipe"),
    )
    assert output(both[0]) == "met\n"
    assert len(await sandbox.actions()) <= 2


async def test_output_above_the_limit_of_an_action_arrives_whole(sandbox: Sandbox) -> None:
    found = await sandbox.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert output(found) == "x" * 3_000_000
    assert len(await sandbox.actions()) > 1


async def test_process_outlives_its_client_and_ends_at_its_timeout(sandbox: Sandbox) -> None:
    headers = {"content-type": "application/connect+json", "connect-timeout-ms": "1500"}
    body = {"process": {"cmd": "/bin/sleep", "args": ["60"]}}
    async with sandbox.envd.stream("POST", "/process.Process/Start", content=frame(body), headers=headers) as stream:
        first = await anext(stream.aiter_raw())
    pid = messages(first)[0]["event"]["start"]["pid"]

    async def is_absent() -> bool:
        return pid not in await sandbox.pids()

    assert not await is_absent()
    await eventually(is_absent)


async def test_signal_ends_a_process_with_its_name(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.run("sleep 60"))

    [pid] = await first_pids(sandbox)
    killed = await sandbox.rpc("process.Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})
    assert killed.status_code == 200
    end = (await running)[-2]["event"]["end"]
    assert (end["exitCode"], end["error"]) == (-1, "signal: killed")
    again = await sandbox.rpc("process.Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})
    assert (again.status_code, again.json()["code"]) == (404, "not_found")


async def test_files_are_written_listed_read_and_removed(sandbox: Sandbox) -> None:
    content = bytes(range(256)) * 4096
    wrote = await sandbox.envd.post("/files", params={"path": "/tmp/d/f"}, content=content)
    assert wrote.json() == [{"name": "f", "path": "/tmp/d/f", "type": "file"}]
    assert (await sandbox.envd.get("/files", params={"path": "/tmp/d/f"})).content == content
    listed = (await sandbox.rpc("filesystem.Filesystem/ListDir", {"path": "/tmp/d"})).json()["entries"]
    assert [(each["name"], each["size"]) for each in listed] == [("f", str(len(content)))]
    moved = await sandbox.rpc("filesystem.Filesystem/Move", {"source": "/tmp/d/f", "destination": "/tmp/e/g"})
    assert moved.json()["entry"]["path"] == "/tmp/e/g"
    assert (await sandbox.rpc("filesystem.Filesystem/Remove", {"path": "/tmp/e"})).json() == {}
    missing = await sandbox.rpc("filesystem.Filesystem/Stat", {"path": "/tmp/e/g"})
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert (await sandbox.envd.get("/files", params={"path": "/tmp"})).json()["code"] == 400


async def test_watch_streams_changes_and_occupies_no_cores(sandbox: Sandbox) -> None:
    headers = {"content-type": "application/connect+json"}
    body = {"path": "/tmp", "recursive": True}
    async with sandbox.envd.stream(
        "POST", "/filesystem.Filesystem/WatchDir", content=frame(body), headers=headers
    ) as s:
        parts = s.aiter_raw()
        assert messages(await anext(parts)) == [{"start": {}}]
        await sandbox.run("echo > /tmp/new")
        changes = messages(await anext(parts))
        await eventually(sandbox.is_at_rest)
    assert changes[0]["filesystem"] == {"name": "new", "type": "EVENT_TYPE_CREATE"}


async def test_watcher_returns_changes_once_until_it_is_removed(sandbox: Sandbox) -> None:
    async def ask(method: str, **body: str) -> httpx.Response:
        return await sandbox.rpc(f"filesystem.Filesystem/{method}", body)

    watcher = (await ask("CreateWatcher", path="/tmp")).json()
    await sandbox.run("echo > /tmp/new; chmod 600 /tmp/new; rm /tmp/new")
    kinds = [each["type"] for each in (await ask("GetWatcherEvents", **watcher)).json()["events"]]
    assert {"EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_REMOVE"} <= set(kinds)
    assert (await ask("GetWatcherEvents", **watcher)).json()["events"] == []
    assert (await ask("RemoveWatcher", **watcher)).json() == {}
    assert (await ask("GetWatcherEvents", **watcher)).json()["code"] == "not_found"
    assert (await ask("CreateWatcher", path="/tmp/nothing")).json()["code"] == "not_found"


async def test_code_has_results_and_its_context_occupies_no_cores(sandbox: Sandbox) -> None:
    interpreter = {"e2b-sandbox-port": "49999"}

    async def execute(code: str, **options: str) -> list[dict[str, Any]]:
        answer = await sandbox.envd.post("/execute", json={"code": code, **options}, headers=interpreter)
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]

    found = await execute("import os\nprint('out')\nos.system('echo program')\nx = 20\nx + 1")
    assert found[0]["type"] == "number_of_executions"
    texts = [each["text"] for each in found if each["type"] == "stdout"]
    assert "".join(texts).splitlines() == ["out", "program"]
    assert [each["text"] for each in found if each["type"] == "result"] == ["21"]
    context = (await sandbox.envd.post("/contexts", json={"cwd": "/tmp"}, headers=interpreter)).json()
    [error] = [each for each in await execute("x", context_id=context["id"]) if each["type"] == "error"]
    assert error["name"] == "NameError"
    [died] = [each for each in await execute("import os; os._exit(1)") if each["type"] == "error"]
    assert died["name"] == "KernelDied"
    assert [each["text"] for each in await execute("6 * 7") if each["type"] == "result"] == ["42"]
    await eventually(sandbox.is_at_rest)


async def test_code_of_a_client_that_disconnects_is_interrupted(sandbox: Sandbox) -> None:
    headers = {"e2b-sandbox-port": "49999"}
    async with sandbox.envd.stream("POST", "/execute", json={"code": "while True: pass"}, headers=headers) as stream:
        await anext(stream.aiter_raw())
    await eventually(sandbox.is_at_rest)
    unknown = await sandbox.envd.post("/execute", json={"code": "1", "context_id": "no"}, headers=headers)
    assert (unknown.status_code, unknown.json()["code"]) == (404, 404)


async def test_input_reaches_a_running_process(sandbox: Sandbox) -> None:
    body = {"process": {"cmd": "/bin/cat"}, "stdin": True}
    headers = {"content-type": "application/connect+json"}
    received = b""
    async with sandbox.envd.stream("POST", "/process.Process/Start", content=frame(body), headers=headers) as stream:
        parts = stream.aiter_raw()
        received += await anext(parts)
        process = {"pid": messages(received)[0]["event"]["start"]["pid"]}
        data = b64encode(b"said").decode()
        await sandbox.rpc("process.Process/SendInput", {"process": process, "input": {"stdin": data}})
        await sandbox.rpc("process.Process/CloseStdin", {"process": process})
        async for part in parts:
            received += part
    assert output(messages(received)) == "said"


async def test_fork_has_the_files_and_not_later_changes(api: httpx.AsyncClient, sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.run("echo before > /tmp/state; sleep 1; echo after > /tmp/state"))
    await first_pids(sandbox)
    forked = await api.post(f"/sandboxes/{sandbox.id}/fork", json={"count": 2, "timeout": 60})
    assert forked.status_code == 201, forked.text
    forks = [Sandbox(api, each["sandbox"]) for each in forked.json()]
    assert (await running)[-2]["event"]["end"]["status"] == "exit status 0"
    await forks[0].run("echo changed > /tmp/state")
    read = [output(await each.run("cat /tmp/state")) for each in (*forks, sandbox)]
    assert read == ["changed\n", "before\n", "after\n"]
    assert (await api.get("/snapshots", params={"sandboxID": sandbox.id})).json() == []
    for each in forks:
        await each.kill()


@pytest.mark.slow
async def test_snapshot_is_a_template_until_it_is_deleted(api: httpx.AsyncClient, sandbox: Sandbox) -> None:
    await sandbox.run("echo stored > /tmp/state")
    made = (await api.post(f"/sandboxes/{sandbox.id}/snapshots", json={})).json()["snapshotID"]
    assert [each["snapshotID"] for each in (await api.get("/snapshots")).json()] == [made]
    copy = await create(api, templateID=made)
    assert output(await copy.run("cat /tmp/state")) == "stored\n"
    await copy.kill()
    deleted = [(await api.delete(f"/templates/{made}")).status_code for _ in range(2)]
    assert deleted == [204, 404]


@pytest.mark.slow
async def test_paused_sandbox_is_absent_and_continues_after_connect(api: httpx.AsyncClient, sandbox: Sandbox) -> None:
    await sandbox.run("sleep 60 >/dev/null 2>&1 & echo $! > /tmp/pid")
    assert (await api.post(f"/sandboxes/{sandbox.id}/pause", json={})).status_code == 204
    assert (await api.post(f"/sandboxes/{sandbox.id}/pause", json={})).json()["code"] == 409
    assert (await api.get(f"/sandboxes/{sandbox.id}")).json()["state"] == "paused"
    assert (await sandbox.envd.get("/health")).json()["message"] == "The sandbox was not found"
    resumed = await api.post(f"/v2/sandboxes/{sandbox.id}/connect", json={"timeout": 60})
    assert resumed.status_code == 201
    assert (await sandbox.envd.get("/health")).status_code == 204
    assert output(await sandbox.run("kill -0 $(cat /tmp/pid) && echo alive")) == "alive\n"


async def test_sandbox_ends_at_its_timeout_and_its_environment_with_it(api: httpx.AsyncClient) -> None:
    sandbox = await create(api, timeout=1)

    async def is_gone() -> bool:
        state = (await api.get(f"/v1/environments/{sandbox.id}")).json()["state"]
        return (await api.get(f"/sandboxes/{sandbox.id}")).status_code == 404 and state in ("ending", "ended")

    await eventually(is_gone)
    assert (await sandbox.envd.get("/health")).status_code == 502
    await sandbox.envd.aclose()


async def test_process_outlives_the_gateway_and_streams_end_with_it(system: System, sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.run("sleep 60"))
    [pid] = await first_pids(sandbox)
    system.kill("gateway", signal.SIGTERM)
    assert (await running)[-1]["error"]["code"] == "unavailable"
    await system.start("gateway")
    killed = await sandbox.rpc("process.Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})
    assert killed.status_code == 200


async def test_sandbox_with_a_damaged_daemon_reports_it_and_recovers(sandbox: Sandbox) -> None:
    found = await sandbox.run("pkill -f daemon.py; sleep 60", user="root")
    assert found[-1]["error"]["code"] == "internal"
    assert output(await sandbox.run("echo again")) == "again\n"


async def test_sandbox_of_another_gateway_ends_after_a_restart(system: System, api: httpx.AsyncClient) -> None:
    sandbox = await create(api, timeout=3)
    system.kill("gateway")
    await system.start("gateway")

    async def is_ended() -> bool:
        return (await api.get(f"/v1/environments/{sandbox.id}")).json()["state"] in ("ending", "ended")

    await eventually(is_ended, timeout_s=30)
    await sandbox.envd.aclose()


async def test_sandbox_is_hidden_from_other_projects_and_needs_its_token(
    api: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    others = {"x-api-key": OTHERS_KEY}
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/timeout"), ("POST", "/pause"), ("POST", "/connect")):
        refused = await api.request(method, f"/sandboxes/{sandbox.id}{path}", json={"timeout": 9}, headers=others)
        assert (refused.status_code, refused.json()["code"]) == (404, 404)
    assert (await api.get("/v2/sandboxes", headers=others)).json() == []
    assert (await api.get("/v2/sandboxes", headers={"x-api-key": "tk_no"})).json()["code"] == 401
    for token in ({"x-access-token": "no"}, {"x-access-token": API_KEY}):
        refused = await sandbox.envd.post("/process.Process/List", json={}, headers=token)
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize(
    ("port", "path"),
    [
        (ENVD_PORT, "/process.Process/List?signature=v1_x"),
        (ENVD_PORT, "/files?path=/etc/passwd&signature=v1_x"),
        ("49999", "/execute?signature=v1_x"),
        ("49999", "/contexts"),
        ("49999", "/contexts/../execute"),
        ("49999", "/health/../execute"),
    ],
)
@pytest.mark.parametrize("token", [None, "no"])
async def test_sandbox_id_without_its_token_opens_nothing(
    sandbox: Sandbox, port: str, path: str, token: str | None
) -> None:
    headers = {"e2b-sandbox-id": sandbox.id, "e2b-sandbox-port": port}
    headers |= {"x-access-token": token} if token is not None else {}
    method = "GET" if path.startswith("/files") else "POST"
    async with httpx.AsyncClient(base_url=sandbox.api.base_url) as stranger:
        refused = await stranger.request(method, path, json={}, headers=headers)
    assert (refused.status_code, refused.json()["code"]) in ((401, "unauthenticated"), (401, 401))


async def test_contexts_accept_the_token_of_traffic(sandbox: Sandbox) -> None:
    headers = {"e2b-sandbox-id": sandbox.id, "e2b-sandbox-port": "49999", "e2b-traffic-access-token": sandbox.token}
    async with httpx.AsyncClient(base_url=sandbox.api.base_url, timeout=60) as client:
        assert (await client.get("/contexts", headers=headers)).status_code == 200


async def test_features_that_do_not_exist_are_refused_with_their_name(api: httpx.AsyncClient, sandbox: Sandbox) -> None:
    refused = [
        await api.post("/v3/templates", json={"name": "x"}),
        await sandbox.rpc("process.Process/Nothing", {}),
    ]
    for answer in refused:
        assert answer.status_code == 501
        assert answer.json()["message"].startswith("not supported by this server: ")

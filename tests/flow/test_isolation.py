"""Test project isolation: call every route of the OpenAPI document with another project's key.

A new route with a path parameter fails here until `RESOURCES` says whose resource it names.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
import pytest_asyncio

from arl_core.durations.estimates import MIN_STRAGGLER_RUNS
from arl_gateway.app import build
from arl_gateway.settings import GatewaySettings
from arl_store.migrate import ensure_api_key
from support.conditions import eventually
from support.postgres import Databases
from support.system import System, running_system

STRANGER = "tk_" + "s" * 32
LONG = {"task": "t", "argv": ["sleep", "300"], "demand": {"cpu": 0.1}}
METHODS = ("get", "post", "put", "patch", "delete")
OF_THE_INSTALLATION = {
    *("/v1/admin/nodes", "/v1/admin/nodes/{name}", "/v1/reward-services", "/v1/reward-services/{name}"),
    *(
        "/v1/reward-services/{name}/{verb}",
        "/v1/endpoints",
        "/v1/endpoints/{name}",
        "/endpoints/{endpoint}/{path}",
        "/endpoints/{endpoint}",
    ),
    *("/v1/admin/projects", "/v1/admin/projects/{name}", "/v1/admin/audit-log"),
    *("/v1/admin/pools", "/v1/admin/pools/{name}", "/v1/admin/backlog"),
    *("/v1/admin/images", "/v1/admin/images:pull", "/v1/admin/images:remove"),
}
"""Paths that belong to no project. Administrators of the first project may change these resources.

Visibility of projects: `test_projects.py`; of the audit log: `test_audit_log.py`.
"""


def the_document() -> dict[str, Any]:
    settings = GatewaySettings(
        port=1,
        database_url="postgresql://nobody",
        service_token="t" * 16,
        admission_url="http://nobody",
        scheduler_url="http://nobody",
    )
    return build(settings).openapi()


DOCUMENT = the_document()
OPERATIONS = [
    (method, path, item[method]) for path, item in DOCUMENT["paths"].items() for method in METHODS if method in item
]


@dataclass(frozen=True)
class Resource:
    """A resource of the owner, as the path, query and body of a request."""

    path: dict[str, str]
    query: dict[str, str]
    body: dict[str, Any] | None = None


Make = Callable[[httpx.AsyncClient, System], Awaitable[Resource]]


async def an_action(owner: httpx.AsyncClient, _system: System) -> Resource:
    return Resource({"id": (await owner.post("/v1/actions", json=LONG)).json()["id"]}, {})


async def a_reading_action(owner: httpx.AsyncClient, _system: System) -> Resource:
    id = (await owner.post("/v1/actions", json=LONG | {"stdin_open": True})).json()["id"]
    async with asyncio.timeout(10):
        while (await owner.get(f"/v1/actions/{id}")).json()["state"] != "running":
            await asyncio.sleep(0.02)
    return Resource({"id": id}, {}, {"text": "x"})


async def a_trajectory(owner: httpx.AsyncClient, _system: System) -> Resource:
    name = "theirs"
    body = LONG | {"trajectory": name, "environment": {"scope": "trajectory"}}
    assert (await owner.post("/v1/actions", json=body)).status_code == 202
    return Resource({"trajectory": name}, {"task": "t"})


async def an_environment(owner: httpx.AsyncClient, _system: System) -> Resource:
    made = await owner.post("/v1/environments", json={"task": "t"})
    assert made.status_code == 201, made.text
    return Resource({"id": made.json()["id"], "path": "file"}, {})


async def a_port(owner: httpx.AsyncClient, system: System) -> Resource:
    made = await an_environment(owner, system)
    return replace(made, path={**made.path, "port": "8000"}, body={})


async def a_fork_source(owner: httpx.AsyncClient, system: System) -> Resource:
    return replace(await an_environment(owner, system), body={"count": 1})


async def a_snapshot(owner: httpx.AsyncClient, system: System) -> Resource:
    """Insert a snapshot row directly, because a simulated node stores no snapshots."""
    made = await an_environment(owner, system)
    taken = """
        insert into snapshots (id, project_id, queue_id, trajectory, environment_id, node_id, template,
                               memory_mib, disk_mib, pids, members, bytes)
        select $1, project_id, queue_id, trajectory, id, node_id, 'host', 64, 8, 16, 1, 1
          from environments where id = $2
    """
    id = str(uuid4())
    connection = await asyncpg.connect(system.owner_url)
    try:
        await connection.execute(taken, id, made.path["id"])
    finally:
        await connection.close()
    return Resource({"id": id}, {})


async def a_key(owner: httpx.AsyncClient, _system: System) -> Resource:
    return Resource({"id": str((await owner.post("/v1/admin/keys", json={})).json()["id"])}, {})


async def a_queue(owner: httpx.AsyncClient, _system: System) -> Resource:
    task = f"q-{uuid4().hex}"
    assert (await owner.post("/v1/actions", json=LONG | {"task": task})).status_code == 202
    return Resource({"task": task}, {}, {"max_queued": 5})


async def a_step(owner: httpx.AsyncClient, _system: System) -> Resource:
    task = f"s-{uuid4().hex}"
    body = LONG | {"task": task, "trajectory": "a", "step": 3}
    assert (await owner.post("/v1/actions", json=body)).status_code == 202
    assert (await owner.post(f"/v1/tasks/{task}/steps/3:end")).status_code == 204
    return Resource({"task": task, "step": "3"}, {})


RESOURCES: dict[str, Make] = {
    "/v1/actions/{id}": an_action,
    "/v1/actions/{id}/input": a_reading_action,
    "/v1/trajectories/{trajectory}": a_trajectory,
    "/v1/environments/{id}": an_environment,
    "/v1/environments/{id}:fork": a_fork_source,
    "/v1/environments/{id}/ports": a_port,
    "/v1/snapshots/{id}": a_snapshot,
    "/v1/tasks/{task}/steps/{step}": a_step,
    "/v1/admin/keys/{id}": a_key,
    "/v1/admin/queues/{task}": a_queue,
}
"""Functions that create a resource, by the path or path prefix that names it."""
BODIES = {("patch", "/v1/environments/{id}"): {"network": "none"}}
"""Bodies of operations that differ from those of other operations on the resource."""


def maker_of(path: str) -> Make:
    """Return the function for the longest name that is a prefix of the path."""
    names = [name for name in RESOURCES if path == name or path.startswith((f"{name}/", f"{name}:"))]
    assert names, f"add to RESOURCES what {path} names"
    return RESOURCES[max(names, key=len)]


def named(operations: list[tuple[str, str, dict[str, Any]]]) -> list[Any]:
    return [pytest.param(method, path, id=operation["operationId"]) for method, path, operation in operations]


def lists(operation: dict[str, Any]) -> bool:
    """Return True if the operation returns a page of items."""
    reference = operation["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
    schema = DOCUMENT["components"]["schemas"].get(reference.get("$ref", "").rpartition("/")[2], {})
    return "items" in schema.get("properties", {})


WITH_PARAMETERS = named([each for each in OPERATIONS if "{" in each[1] and each[1] not in OF_THE_INSTALLATION])
LISTS = named(
    [
        each
        for each in OPERATIONS
        if each[0] == "get" and lists(each[2]) and "{" not in each[1] and each[1] not in OF_THE_INSTALLATION
    ]
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    await ensure_api_key(owner_url, "strangers", STRANGER)
    async with running_system(owner_url, cores=64) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def owner(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with system.client() as api:
        yield api


@pytest_asyncio.fixture
async def stranger(system: System) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {STRANGER}"}
    async with httpx.AsyncClient(base_url=system.url, headers=headers, timeout=30) as api:
        yield api


def test_openapi_document_has_parameter_and_list_routes() -> None:
    assert len(WITH_PARAMETERS) >= 4
    assert len(LISTS) >= 2


@pytest.mark.parametrize(("method", "path"), WITH_PARAMETERS)
async def test_resource_of_another_project_is_not_found(
    system: System, owner: httpx.AsyncClient, stranger: httpx.AsyncClient, method: str, path: str
) -> None:
    """The owner sends the last request, which proves that the resource exists."""
    resource = await maker_of(path)(owner, system)
    url, body = path.format(**resource.path), BODIES.get((method, path), resource.body)
    refused = await stranger.request(method, url, params=resource.query, json=body)
    if "/swerex/" in path:  # its clients raise what they are told, and there is nothing there for anybody but the owner
        assert refused.status_code == 511
        assert refused.json()["swerexception"]["extra_info"]["code"] == "not_found"
        return
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
    # Some answers last as long as what they tell of.
    async with owner.stream(method, url, params=resource.query, json=body) as found:
        if found.status_code >= 300:
            await found.aread()
            # A simulated environment has no files, and says that and not that it is unknown.
            assert path.startswith(("/v1/environments/{id}/", "/v1/environments/{id}:fork")), found.text
            assert any(said in found.text for said in ("does not exist in environment", "has no files")), found.text


@pytest.mark.parametrize(("method", "path"), LISTS)
async def test_list_contains_only_resources_of_its_own_project(
    system: System, owner: httpx.AsyncClient, stranger: httpx.AsyncClient, method: str, path: str
) -> None:
    for make in RESOURCES.values():
        await make(owner, system)
        if make is not a_trajectory:
            await make(stranger, system)
    if path == "/v1/admin/stragglers":
        await asyncio.gather(a_straggler(owner), a_straggler(stranger))
    theirs, ours = [{item["id"] for item in (await api.get(path)).json()["items"]} for api in (owner, stranger)]
    assert theirs
    assert ours
    assert not theirs & ours


async def a_straggler(api: httpx.AsyncClient) -> None:
    """Run enough short actions of a class and then a long one; wait until it is a straggler."""
    alike = LONG | {"profile": "suite"}
    quick = [alike | {"argv": ["sleep", "0.01"]}] * MIN_STRAGGLER_RUNS
    items = (await api.post("/v1/actions:batch", json={"actions": quick})).json()["items"]
    ids = [item["id"] for item in items]
    assert not (await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 20})).json()["pending"]
    await api.post("/v1/actions", json=alike)

    async def is_listed() -> bool:
        return bool((await api.get("/v1/admin/stragglers")).json()["items"])

    await eventually(is_listed)


async def test_wait_does_not_find_actions_of_another_project(
    system: System, owner: httpx.AsyncClient, stranger: httpx.AsyncClient
) -> None:
    id = (await an_action(owner, system)).path["id"]
    answer = (await stranger.post("/v1/actions:wait", json={"ids": [id], "timeout_s": 0})).json()
    assert answer == {"settled": [], "pending": [], "unknown": [id]}


async def test_same_idempotency_key_in_two_projects_creates_two_actions(
    owner: httpx.AsyncClient, stranger: httpx.AsyncClient
) -> None:
    first, second = [
        (await api.post("/v1/actions", json=LONG, headers={"idempotency-key": "shared"})).json()["id"]
        for api in (owner, stranger)
    ]
    assert first != second


JUDGE = {"name": "judge", "kind": "judge", "source": "qwen"}
PROMPT = "{response}: our own question"
OWN = """[{"name": "own", "kind": "python", "registered": false, "model": "ours.rewards:score", "max_tokens": 5,
           "device": "cpu", "slots": 4, "state": "host", "batches": 0, "scores": 0,
           "health": "engine_gone: nothing answers at 10.1.2.3"}]"""


async def test_reward_service_internals_are_visible_only_to_administrators(
    system: System, owner: httpx.AsyncClient, stranger: httpx.AsyncClient
) -> None:
    options = {"judge": {"prompt": PROMPT, "pattern": "(yes|no)", "words": {"yes": 1, "no": 0}}}
    assert (await owner.post("/v1/reward-services", json=JUDGE | {"options": options})).status_code == 201
    connection = await asyncpg.connect(system.owner_url)
    try:
        await connection.execute("update nodes set services = cast($1::text as jsonb)", OWN)
    finally:
        await connection.close()
    plain = (await owner.post("/v1/admin/keys", json={"scopes": ["actions:read"]})).json()["key"]
    async with httpx.AsyncClient(base_url=system.url, headers={"authorization": f"Bearer {plain}"}) as without_scope:
        for api in (stranger, without_scope):
            for path in ("/v1/reward-services", "/v1/reward-services/judge", "/v1/reward-services/own"):
                text = (await api.get(path)).text
                assert not [each for each in (PROMPT, "qwen", "ours.rewards", "10.1.2.3") if each in text]
            own = (await api.get("/v1/reward-services/own")).json()
            assert (own["kind"], own["max_tokens"], own["nodes"][0]["health"]) == ("python", 5, "engine_gone")
    known = (await owner.get("/v1/reward-services")).text
    assert all(each in known for each in (PROMPT, "qwen", "ours.rewards", "10.1.2.3"))


@pytest.mark.parametrize(("method", "path"), named(OPERATIONS))
async def test_every_route_refuses_requests_without_a_key(system: System, method: str, path: str) -> None:
    url = path.format(
        id="00000000-0000-0000-0000-000000000001",
        **dict.fromkeys(("trajectory", "task", "name", "path", "endpoint"), "x"),
        verb="load",
        step=1,
        port=8000,
    )
    async with httpx.AsyncClient(base_url=system.url) as nobody:
        response = await nobody.request(method, url)
    assert (response.status_code, response.json()["code"]) == (401, "unauthenticated")

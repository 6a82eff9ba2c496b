"""Test cordon, drain and node removal, and paused queues, on two simulated nodes under load."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio

from arl_store.migrate import ensure_api_key
from support.conditions import eventually
from support.postgres import Databases
from support.system import System, running_system

TASK = "drained"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    named = {"cpu": {"TANGRAM_NODE_NAME": "first"}, "cpu-2": {"TANGRAM_NODE_NAME": "second"}}
    async with running_system(owner_url, cores=4, overrides=named) as system:
        await system.start("cpu-2")
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def both(api: httpx.AsyncClient) -> AsyncIterator[None]:
    """Uncordon both nodes after the test."""
    yield
    for name in ("first", "second"):
        await change(api, name, cordoned=False)


@asynccontextmanager
async def owner_of(system: System) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(system.owner_url)
    try:
        yield connection
    finally:
        await connection.close()


async def change(api: httpx.AsyncClient, name: str, **body: Any) -> dict[str, Any]:
    answer = await api.patch(f"/v1/admin/nodes/{name}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def submit(api: httpx.AsyncClient, *argv: str, wait: float = 0, **fields: Any) -> dict[str, Any]:
    scope = "trajectory" if "trajectory" in fields else "ephemeral"
    body = {"task": TASK, "argv": list(argv), "demand": {"cpu": 1}, "environment": {"scope": scope}} | fields
    return (await api.post("/v1/actions", json=body, params={"wait": wait})).json()


async def until(api: httpx.AsyncClient, id: str, state: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while (action := (await api.get(f"/v1/actions/{id}")).json())["state"] != state:
            pass
    return action


@pytest.mark.usefixtures("both")
class TestCordon:
    async def test_cordoned_node_gets_only_actions_of_its_environments(self, api: httpx.AsyncClient) -> None:
        at_home = await submit(api, "true", trajectory="lives", wait=10)
        await change(api, at_home["node"], cordoned=True)
        others = {(await submit(api, "true", trajectory=f"t{number}", wait=10))["node"] for number in range(4)}
        assert others == {"first", "second"} - {at_home["node"]}
        again = await submit(api, "true", trajectory="lives", wait=10)
        assert (again["outcome"], again["node"]) == ("ok", at_home["node"])

    async def test_queued_action_starts_when_its_node_is_uncordoned(self, api: httpx.AsyncClient) -> None:
        for name in ("first", "second"):
            await change(api, name, cordoned=True)
        waiting = (await submit(api, "true"))["id"]
        await change(api, "first", cordoned=False)
        done = (await api.get(f"/v1/actions/{waiting}", params={"wait": 20})).json()
        assert (done["outcome"], done["node"]) == ("ok", "first")


@pytest.mark.usefixtures("both")
class TestDrain:
    async def test_drain_with_a_long_deadline_loses_no_work(self, api: httpx.AsyncClient) -> None:
        await change(api, "second", cordoned=True)
        await submit(api, "true", trajectory="slow", wait=10)
        running = await submit(api, "sleep", "0.4")
        in_it = await submit(api, "sleep", "0.4", trajectory="slow")
        await until(api, in_it["id"], "running")
        await change(api, "second", cordoned=False)
        draining = await change(api, "first", cordoned=True, drain_deadline_s=600)
        assert (draining["drained"], draining["environments"] > 0) == (False, True)
        then = await submit(api, "true", trajectory="slow", wait=20)
        elsewhere = await submit(api, "true", wait=20)
        assert (then["node"], elsewhere["node"]) == ("first", "second")
        for id in (running["id"], in_it["id"]):
            assert (await api.get(f"/v1/actions/{id}", params={"wait": 20})).json()["outcome"] == "ok"
        for trajectory in ("slow", "lives", *(f"t{number}" for number in range(4))):
            await api.delete(f"/v1/trajectories/{trajectory}", params={"task": TASK})
        async with asyncio.timeout(30):
            while not any(node["drained"] for node in (await api.get("/v1/admin/nodes")).json()["items"]):
                pass

    async def test_drain_past_its_deadline_reclaims_actions_and_loses_environments(
        self, api: httpx.AsyncClient
    ) -> None:
        await change(api, "second", cordoned=True)
        loose = await submit(api, "sleep", "1", retries=1)
        final = await submit(api, "sleep", "60")
        await submit(api, "true", trajectory="ends", wait=10)
        in_it = await submit(api, "sleep", "60", trajectory="ends")
        queued = await submit(api, "true", trajectory="ends")
        for action in (loose, final, in_it):
            await until(api, action["id"], "running")
        await change(api, "second", cordoned=False)
        await change(api, "first", cordoned=True, drain_deadline_s=0)
        again = await until(api, loose["id"], "settled")
        assert (again["outcome"], again["node"], again["failures"]) == ("ok", "second", 1)
        reasons = [(await until(api, each["id"], "settled")).get("reason") for each in (final, in_it, queued)]
        assert reasons == ["node_drained", "environment_lost", "environment_lost"]
        async with asyncio.timeout(30):
            while not (await change(api, "first", cordoned=True))["drained"]:
                pass
        assert (await api.get("/v1/admin/consistency")).json()["findings"] == []


class TestRemoveNode:
    async def test_removed_node_that_returns_is_not_cordoned(self, api: httpx.AsyncClient, system: System) -> None:
        system.overrides["cpu-4"] = {"TANGRAM_NODE_NAME": "borrowed"}
        await system.start("cpu-4")
        await change(api, "borrowed", cordoned=True)
        alive = await api.delete("/v1/admin/nodes/borrowed")
        assert (alive.status_code, alive.json()["code"]) == (409, "conflict")
        system.kill("cpu-4")
        async with owner_of(system) as owner:
            of_it = "where node_id = (select id from nodes where name = 'borrowed')"
            await owner.execute(f"update node_beats set last_beat = now() - interval '1 hour' {of_it}")
        assert (await api.delete("/v1/admin/nodes/borrowed")).status_code == 204
        assert "borrowed" not in await names(api)
        assert (await api.delete("/v1/admin/nodes/borrowed")).status_code == 404
        await system.start("cpu-4")
        back = next(node for node in (await api.get("/v1/admin/nodes")).json()["items"] if node["name"] == "borrowed")
        assert (back["alive"], back["cordoned"]) == (True, False)
        await change(api, "borrowed", cordoned=True)  # it is none of the tests' that follow


async def names(api: httpx.AsyncClient) -> set[str]:
    return {node["name"] for node in (await api.get("/v1/admin/nodes")).json()["items"]}


class TestAccess:
    async def test_key_of_another_project_cannot_operate_nodes(self, system: System) -> None:
        stranger = "tk_" + "n" * 32
        await ensure_api_key(system.owner_url, "strangers", stranger)
        async with httpx.AsyncClient(base_url=system.url, headers={"authorization": f"Bearer {stranger}"}) as other:
            assert (await other.patch("/v1/admin/nodes/first", json={"cordoned": True})).status_code == 403
            assert (await other.delete("/v1/admin/nodes/first")).status_code == 403
            for path in ("/v1/admin/nodes", "/v1/admin/consistency", "/v1/admin/capacity", "/metrics"):
                answer = await other.get(path)
                assert (answer.status_code, "default" in answer.json()["detail"]) == (403, True), path

    async def test_change_of_an_unknown_node_is_not_found(self, api: httpx.AsyncClient) -> None:
        assert (await api.patch("/v1/admin/nodes/third", json={"cordoned": True})).status_code == 404

    @pytest.mark.parametrize(
        "body", [{}, {"cordoned": False, "drain_deadline_s": 1}, {"cordoned": True, "drain_deadline_s": -1}]
    )
    async def test_invalid_node_change_is_refused(self, api: httpx.AsyncClient, body: dict[str, Any]) -> None:
        assert (await api.patch("/v1/admin/nodes/first", json=body)).status_code == 422


class TestNodeNames:
    async def test_second_node_with_the_same_name_fails_with_the_reason(self, system: System) -> None:
        system.overrides["cpu-3"] = {"TANGRAM_NODE_NAME": "second"}
        with pytest.raises(RuntimeError, match=f"another live node at {system.url_of('cpu-2')} has the name second"):
            await system.start("cpu-3")
        async with httpx.AsyncClient() as prober:
            assert (await prober.get(f"{system.url_of('cpu-2')}/readyz")).status_code == 200

    async def test_node_without_its_lease_is_not_ready(self, system: System) -> None:
        async with owner_of(system) as owner, httpx.AsyncClient() as prober:

            async def answers(status: int, text: str) -> bool:
                answer = await prober.get(f"{system.url_of('cpu-2')}/readyz")
                return answer.status_code == status and text in answer.text

            of_second = "where node_id = (select id from nodes where name = 'second')"
            epoch = await owner.fetchval(f"select epoch from node_beats {of_second}")
            await owner.execute(f"update node_beats set epoch = gen_random_uuid() {of_second}")
            await eventually(partial(answers, 503, "TANGRAM_NODE_NAME"))
            await owner.execute(f"update node_beats set epoch = $1 {of_second}", epoch)
            await eventually(partial(answers, 200, "ok"))


async def test_paused_queue_starts_nothing_until_it_is_resumed(api: httpx.AsyncClient) -> None:
    await submit(api, "true", task="paused", wait=10)
    queue = "/v1/admin/queues/paused"
    assert (await api.patch(queue, json={"paused": True})).json()["paused"] is True
    waiting = [await submit(api, "true", task="paused"), await submit(api, "true", task="paused", trajectory="x")]
    # What is submitted elsewhere afterwards starts and ends: rounds go by.
    assert (await submit(api, "true", wait=10))["outcome"] == "ok"
    states = [(await api.get(f"/v1/actions/{action['id']}")).json()["state"] for action in waiting]
    assert states == ["queued", "queued"]
    assert (await api.patch(queue, json={"paused": True})).json()["queued"] == 2
    # By the time of the answer they may have started.
    assert (await api.patch(queue, json={"paused": False})).json()["paused"] is False
    for action in waiting:
        done = (await api.get(f"/v1/actions/{action['id']}", params={"wait": 10})).json()
        assert done["outcome"] == "ok"


async def test_action_of_a_paused_queue_can_be_cancelled(api: httpx.AsyncClient) -> None:
    await submit(api, "true", task="halted", wait=10)
    await api.patch("/v1/admin/queues/halted", json={"paused": True})
    waiting = (await submit(api, "true", task="halted"))["id"]
    await api.delete(f"/v1/actions/{waiting}")
    assert (await until(api, waiting, "settled"))["outcome"] == "cancelled"


async def test_task_quota_limits_running_actions_until_it_is_removed(api: httpx.AsyncClient) -> None:
    queue, ids = "/v1/admin/queues/capped", list[str]()
    await submit(api, "true", task="capped", wait=10)
    assert (await api.patch(queue, json={"quota": {"running": 1}})).json()["quota"] == {
        "running": 1,
        "reward_services": {},
        "endpoints": {},
    }
    try:
        for _ in range(3):
            ids.append((await submit(api, "sleep", "300", task="capped", demand={"cpu": 0.1}))["id"])
        await until(api, ids[0], "running")
        # Of another task, with more cores than these ask for.
        assert (await submit(api, "true", wait=10))["outcome"] == "ok"
        assert (await api.get(f"/v1/actions/{ids[1]}/explain")).json()["wait"]["reason"] == "task_at_quota"
        counts = (await api.patch(queue, json={"weight": 2})).json()
        assert (counts["queued"], counts["running"], counts["quota"]) == (
            2,
            1,
            {"running": 1, "reward_services": {}, "endpoints": {}},
        )
        assert "quota" not in (await api.patch(queue, json={"quota": None})).json()
        for id in ids:
            await until(api, id, "running")
    finally:
        for id in ids:
            await api.delete(f"/v1/actions/{id}")

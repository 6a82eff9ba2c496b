"""Test actions through all services. The simulated driver ends commands other than `sleep` immediately."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from arl_tangram import Action, AsyncTangram, WaitTimeout
from support.conditions import eventually
from support.postgres import Databases
from support.rows import Rows, rows_in
from support.system import API_KEY, System, running_system

TRUE = {"task": "t", "argv": ["true"], "demand": {"cpu": 0.1}}
LONG = {"task": "t", "argv": ["sleep", "300"], "demand": {"cpu": 0.1}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, cores=64) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with system.client() as api:
        yield api


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rows(system: System) -> AsyncIterator[Rows]:
    async with rows_in(system.owner_url) as rows:
        yield rows


async def submit(api: httpx.AsyncClient, body: dict[str, Any], *, wait: float = 20, **changed: Any) -> dict[str, Any]:
    response = await api.post("/v1/actions", json=body | changed, params={"wait": wait})
    assert response.status_code in (200, 202), response.text
    answer: dict[str, Any] = response.json()
    return answer


async def until_running(rows: Rows, action: dict[str, Any]) -> None:
    await rows.until_value("running", "select state from actions where id = $1", action["id"])


class TestSubmit:
    async def test_submit_with_wait_returns_the_settled_action(self, api: httpx.AsyncClient) -> None:
        response = await api.post("/v1/actions", json=TRUE, params={"wait": 20})
        body = response.json()
        assert (response.status_code, body["state"], body["outcome"]) == (200, "settled", "ok")
        assert (body["grant_no"], body["result"]["exit_code"]) == (1, 0)
        again = await api.get(response.headers["location"])
        assert again.json() == body

    async def test_submit_without_wait_returns_202(self, api: httpx.AsyncClient) -> None:
        response = await api.post("/v1/actions", json=LONG)
        assert response.status_code == 202
        await api.delete(response.headers["location"])

    async def test_wait_ends_with_the_action_instead_of_a_poll(self, api: httpx.AsyncClient) -> None:
        """The test takes the median, because the machine may be busy."""
        taken = []
        for _ in range(9):
            started = time.monotonic()
            await submit(api, TRUE)
            taken.append(time.monotonic() - started)
        assert sorted(taken)[4] < 0.5

    async def test_action_past_its_timeout_is_a_user_timeout(self, api: httpx.AsyncClient) -> None:
        assert (await submit(api, LONG, timeout_s=0.05))["outcome"] == "user_timeout"

    async def test_concurrent_requests_with_one_key_create_one_action(self, api: httpx.AsyncClient) -> None:
        key = {"idempotency-key": str(uuid4())}
        answers = await asyncio.gather(
            *(api.post("/v1/actions", json=TRUE, params={"wait": 20}, headers=key) for _ in range(5))
        )
        assert len({answer.json()["id"] for answer in answers}) == 1
        other = await api.post("/v1/actions", json=LONG, headers=key)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")

    async def test_impossible_demand_is_refused_with_its_field(self, api: httpx.AsyncClient) -> None:
        await submit(api, TRUE)
        response = await api.post("/v1/actions", json=TRUE | {"demand": {"cpu": 65}})
        assert (response.status_code, response.json()["code"]) == (422, "demand_impossible")
        assert response.json()["errors"][0]["field"] == "demand.cpu"


class TestBatch:
    async def test_batch_items_settle_and_only_the_impossible_one_is_refused(self, api: httpx.AsyncClient) -> None:
        actions = [TRUE] * 99 + [TRUE | {"demand": {"cpu": 65}}]
        response = await api.post("/v1/actions:batch", json={"actions": actions})
        items = response.json()["items"]
        assert [index for index, item in enumerate(items) if "problem" in item] == [99]
        ids = [item["id"] for item in items[:99]]
        waited = (await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 30})).json()
        assert [action["id"] for action in waited["settled"]] == ids
        assert {action["outcome"] for action in waited["settled"]} == {"ok"}

    async def test_repeated_batch_with_one_key_returns_the_same_actions(self, api: httpx.AsyncClient) -> None:
        key, body = {"idempotency-key": str(uuid4())}, {"actions": [TRUE] * 5}
        first, second = [
            (await api.post("/v1/actions:batch", json=body, headers=key)).json()["items"] for _ in range(2)
        ]
        assert first == second

    async def test_hundred_concurrent_submissions_all_settle(self, api: httpx.AsyncClient) -> None:
        answers = await asyncio.gather(*(submit(api, TRUE, wait=30) for _ in range(100)))
        assert {answer["outcome"] for answer in answers} == {"ok"}


class TestCancel:
    async def test_cancelled_running_action_settles_as_cancelled(self, api: httpx.AsyncClient, rows: Rows) -> None:
        action = await submit(api, LONG, wait=0)
        await until_running(rows, action)
        await api.delete(f"/v1/actions/{action['id']}")
        settled = (await api.get(f"/v1/actions/{action['id']}", params={"wait": 20})).json()
        assert (settled["outcome"], settled["cancel_requested"]) == ("cancelled", True)

    async def test_cancelled_queued_action_never_starts(self, api: httpx.AsyncClient) -> None:
        whole = {"demand": {"cpu": 64}}
        blocking = await submit(api, LONG | whole, wait=0)
        action = await submit(api, TRUE | whole, wait=0)
        await api.delete(f"/v1/actions/{action['id']}")
        settled = (await api.get(f"/v1/actions/{action['id']}", params={"wait": 20})).json()
        assert (settled["outcome"], settled["grant_no"]) == ("cancelled", 0)
        await api.delete(f"/v1/actions/{blocking['id']}")
        await api.get(f"/v1/actions/{blocking['id']}", params={"wait": 20})


class TestTrajectories:
    def body(self, trajectory: str, **changed: Any) -> dict[str, Any]:
        return TRUE | {"trajectory": trajectory, "environment": {"scope": "trajectory"}} | changed

    async def test_rapid_actions_of_a_trajectory_share_one_environment(
        self, api: httpx.AsyncClient, rows: Rows
    ) -> None:
        actions = [await submit(api, self.body("quick")) for _ in range(10)]
        assert [action["outcome"] for action in actions] == ["ok"] * 10
        sql = "select count(distinct environment_id) from actions where trajectory = 'quick'"
        assert await rows.value(sql) == 1

    async def test_batch_of_a_trajectory_runs_sequentially_in_order(self, api: httpx.AsyncClient, rows: Rows) -> None:
        actions = [self.body("line", argv=["sleep", "0.02"]) for _ in range(5)]
        items = (await api.post("/v1/actions:batch", json={"actions": actions})).json()["items"]
        ids = [item["id"] for item in items]
        waited = (await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 30})).json()
        assert [action["outcome"] for action in waited["settled"]] == ["ok"] * 5
        sql = """select bool_and(a.settled_at <= b.started_at) from actions as a join actions as b on a.id < b.id
                  where a.trajectory = 'line' and b.trajectory = 'line'"""
        assert await rows.value(sql)

    async def test_name_of_an_ended_trajectory_can_be_used_again(self, api: httpx.AsyncClient, rows: Rows) -> None:
        await submit(api, self.body("again"))
        ended = await api.delete("/v1/trajectories/again", params={"task": "t"})
        assert ended.status_code == 204
        assert (await submit(api, self.body("again")))["outcome"] == "ok"
        sql = "select count(distinct environment_id) from actions where trajectory = 'again'"
        assert await rows.value(sql) == 2

    async def test_ending_a_trajectory_cancels_its_unsettled_actions(self, api: httpx.AsyncClient, rows: Rows) -> None:
        running = await submit(api, self.body("left", argv=["sleep", "300"]), wait=0)
        queued = await submit(api, self.body("left"), wait=0)
        await until_running(rows, running)
        await api.delete("/v1/trajectories/left", params={"task": "t"})
        ids = [running["id"], queued["id"]]
        waited = (await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 30})).json()
        assert [action["outcome"] for action in waited["settled"]] == ["cancelled"] * 2

    async def test_ending_an_unknown_trajectory_is_not_found(self, api: httpx.AsyncClient) -> None:
        response = await api.delete("/v1/trajectories/never", params={"task": "t"})
        assert (response.status_code, response.json()["code"]) == (404, "not_found")


class TestInternalRoutes:
    async def test_internal_routes_refuse_missing_and_foreign_tokens(self, system: System) -> None:
        async with httpx.AsyncClient() as client:
            paths = (("admission", "admit"), ("scheduler", "freed"), ("cpu", "grants"), ("cpu", "resizes"))
            for url, path in paths:
                stranger = "gateway" if url != "admission" else "cpu"
                elsewhere = system.token("gateway", "cpu" if url == "admission" else "admission")
                for token in (None, "wrong", system.secret("gateway"), system.token(stranger, url), elsewhere):
                    headers = {"authorization": f"Bearer {token}"} if token else {}
                    response = await client.post(f"{system.url_of(url)}/internal/{path}", json={}, headers=headers)
                    assert response.status_code == 401, (url, token)


class TestNodes:
    async def test_simulated_node_is_alive_and_enforces_nothing(self, api: httpx.AsyncClient) -> None:
        (node,) = (await api.get("/v1/admin/nodes")).json()["items"]
        assert (node["alive"], node["driver"], node["capacity"]["cpu_milli"]) == (True, "simulated", 64000)
        assert {entry["level"] for entry in node["enforced"]} == {"absent"}


async def test_cancelled_client_task_cancels_its_action(system: System) -> None:
    async with AsyncTangram(system.url, API_KEY) as tangram:
        running = asyncio.create_task(tangram.run(task="taken-back", argv=["sleep", "300"], cpu=0.1))

        async def is_running() -> bool:
            return [each.state async for each in tangram.list(task="taken-back")] == ["running"]

        await eventually(is_running)
        [action] = [each async for each in tangram.list(task="taken-back")]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await tangram.get(action.id, wait_s=20)).outcome == "cancelled"


async def test_more_runs_than_dedicated_waits_all_settle(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arl_tangram.async_client.MAX_DEDICATED_WAITS", 2)
    async with AsyncTangram(system.url, API_KEY) as tangram:

        async def run(seconds: str, **options: Any) -> Action:
            return await tangram.run(task="many", argv=["sleep", seconds], cpu=0.1, **options)

        endless = [asyncio.create_task(run("300")) for _ in range(4)]
        found = await asyncio.gather(*(run("0.2") for _ in range(300)))
        assert {action.outcome for action in found} == {"ok"}
        assert len({action.id for action in found}) == 300
        with pytest.raises(WaitTimeout) as caught:
            await run("300", wait_timeout_s=0.5)
        assert (await tangram.get(caught.value.pending[0])).task == "many"
        for each in endless:
            each.cancel()
        await asyncio.gather(*endless, return_exceptions=True)
        await tangram.cancel(caught.value.pending[0])

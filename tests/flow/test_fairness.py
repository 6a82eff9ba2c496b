"""Test fair shares, priorities and deadlines under load, through all services."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from arl_store.migrate import ensure_api_key
from support.rows import rows_in
from support.system import System, running_system

OTHER_KEY = "tk_fedcba9876543210fedcba9876543210"
AT_ONCE = 1000


def sleeps(seconds: float, *, task: str = "t", **changed: Any) -> dict[str, Any]:
    return {"task": task, "argv": ["sleep", str(seconds)], "demand": {"cpu": 1, "memory_mib": 8}} | changed


@asynccontextmanager
async def another_project(system: System) -> AsyncIterator[httpx.AsyncClient]:
    await ensure_api_key(system.owner_url, "other", OTHER_KEY)
    async with httpx.AsyncClient(
        base_url=system.url, headers={"authorization": f"Bearer {OTHER_KEY}"}, timeout=60
    ) as client:
        yield client


async def submit(client: httpx.AsyncClient, action: dict[str, Any], count: int) -> list[str]:
    ids: list[str] = []
    for start in range(0, count, AT_ONCE):
        body = {"actions": [action] * min(AT_ONCE, count - start)}
        ids += [item["id"] for item in (await client.post("/v1/actions:batch", json=body)).json()["items"]]
    return ids


@pytest.mark.slow
async def test_grants_of_two_projects_follow_their_weights(database: str) -> None:
    async with running_system(database, cores=4) as system, system.client() as ours, another_project(system) as other:
        answer = await ours.patch("/v1/admin/projects/default", json={"weight": 3})
        assert answer.status_code == 200, answer.text
        for client in (ours, other):
            assert (await client.post("/v1/actions", params={"wait": 20}, json=sleeps(0.01))).status_code == 200
        mine = set(await submit(ours, sleeps(0.05), 900))
        await submit(other, sleeps(0.05), 500)
        async with rows_in(database) as rows:
            await rows.until_value(True, "select count(*) > 600 from actions where state = 'settled'", timeout_s=40)
            started = await rows.value("select array_agg(id::text order by granted_at) from actions where grant_no > 0")
        counted = Counter("ours" if id in mine else "other" for id in started[200:600])
        assert 2.7 <= counted["ours"] / counted["other"] <= 3.3


@pytest.mark.slow
async def test_high_priority_action_overtakes_ten_thousand_queued_actions(database: str) -> None:
    async with running_system(database, cores=2) as system, system.client() as api:
        await submit(api, sleeps(0.3), 10_000)
        urgent = await api.post("/v1/actions", params={"wait": 20}, json=sleeps(0.01, priority=1))
        assert urgent.json()["outcome"] == "ok"
        async with rows_in(database) as rows:
            before = await rows.value(
                "select count(*) from actions as a, actions as u where u.id = $1"
                " and a.granted_at > u.created_at and a.granted_at < u.granted_at",
                urgent.json()["id"],
            )
        assert before <= 2, "at most what a round under way had chosen"


@pytest.mark.slow
async def test_unreachable_deadline_settles_the_action_early(database: str) -> None:
    async with running_system(database, cores=8) as system, system.client() as api:
        known = sleeps(1.5, profile="long")
        first = await asyncio.gather(*(api.post("/v1/actions", params={"wait": 20}, json=known) for _ in range(8)))
        assert {answer.json()["outcome"] for answer in first} == {"ok"}
        late = (await api.post("/v1/actions", params={"wait": 20}, json=known | {"deadline_s": 1.0})).json()
        assert (late["outcome"], late["reason"]) == ("deadline_in_queue", "deadline_unreachable")
        assert late["times"]["act_s"] < 0.9
        unknown = sleeps(0.1, profile="new") | {"deadline_s": 1.0}
        assert (await api.post("/v1/actions", params={"wait": 20}, json=unknown)).json()["outcome"] == "ok"


@pytest.mark.slow
async def test_flood_of_one_task_does_not_double_anothers_latency(database: str) -> None:
    async with running_system(database, cores=4) as system, system.client() as api:

        async def p99() -> float:
            acts = []
            for _ in range(100):
                action = (await api.post("/v1/actions", params={"wait": 20}, json=sleeps(0.1, task="calm"))).json()
                acts.append(action["times"]["act_s"])
            return sorted(acts)[-2]

        alone = await p99()
        await submit(api, sleeps(0.05, task="flood"), 5000)
        beside = await p99()
        print("ALONE", alone, "BESIDE", beside)
        waiting = (await api.get("/v1/admin/queues")).json()["items"]
        assert next(queue["queued"] for queue in waiting if queue["task"] == "flood") > 0, "the flood was over too soon"
        assert beside <= 2 * alone

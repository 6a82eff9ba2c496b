"""Test explanations and capacity plans through the whole system: one simulated node with one core."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import pytest
import pytest_asyncio

from arl_core.durations.estimates import MIN_STRAGGLER_RUNS
from arl_tangram import AsyncTangram, BatchRefused, exec_action
from arl_tangram.cli.actions.explain import sentences
from arl_tangram.cli.admin.capacity import capacity_table
from arl_tangram.cli.admin.top import stragglers_table
from arl_wire.actions.explanations import StragglerInfo
from support.conditions import eventually
from support.postgres import Databases
from support.system import API_KEY, System, running_system

LONG = {"task": "t", "argv": ["sleep", "300"], "demand": {"cpu": 1}}
AT_HOME = {"trajectory": "x", "environment": {"scope": "trajectory"}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, cores=1, overrides={"cpu": {"TANGRAM_RESOURCES": '{"npu": 2}'}}) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture
async def busy(api: httpx.AsyncClient) -> AsyncIterator[str]:
    """Run an action that occupies the core in its own environment; cancel all actions afterwards."""
    id = await submit(api, **AT_HOME)
    await eventually(lambda: is_running(api, id))
    yield id
    for action in (await api.get("/v1/actions")).json()["items"]:
        await api.delete(f"/v1/actions/{action['id']}")
    assert (await api.get(f"/v1/actions/{id}", params={"wait": 20})).json()["state"] == "settled"


async def submit(api: httpx.AsyncClient, **changed: Any) -> str:
    return str((await api.post("/v1/actions", json=LONG | changed)).json()["id"])


async def is_running(api: httpx.AsyncClient, id: str) -> bool:
    return bool((await api.get(f"/v1/actions/{id}")).json()["state"] == "running")


async def explained(api: httpx.AsyncClient, id: str, rule: str | None = None) -> dict[str, Any]:
    """Repeat the request until the scheduler gives this reason and return the explanation."""
    found: dict[str, Any] = {}

    async def holds() -> bool:
        nonlocal found
        answer = await api.get(f"/v1/actions/{id}/explain")
        if answer.status_code == 503:
            return False
        assert answer.status_code == 200, answer.text
        found = answer.json()
        return rule is None or found.get("wait", {}).get("reason") == rule

    await eventually(holds)
    return found


async def test_queued_action_is_explained_with_shortfall_and_actions_ahead(api: httpx.AsyncClient, busy: str) -> None:
    first, second = await submit(api), await submit(api)
    wait = (await explained(api, first, "waits_for_capacity"))["wait"]
    (lack,) = wait["shortfalls"]
    assert lack == {"resource": "cpu_milli", "needed": 1000, "free": 0, "capacity": 1000}
    assert wait["node"] == (await api.get(f"/v1/actions/{busy}")).json()["node"]
    assert wait["ahead"] == {"priority": 0, "in_task": 0, "other_tasks": 0, "truncated": False}
    assert (wait["basis"], wait["observed_runs"], wait["fair_share"]) == ("declared", 0, 1.0)
    behind = (await explained(api, second, "waits_in_order"))["wait"]
    assert behind["ahead"]["in_task"] == 1
    urgent = await submit(api, priority=1)
    await explained(api, urgent, "waits_for_capacity")
    assert (await explained(api, first, "waits_behind_priority"))["wait"]["ahead"]["priority"] == 1


async def test_action_of_a_busy_environment_reports_the_actions_ahead(api: httpx.AsyncClient, busy: str) -> None:
    await submit(api, **AT_HOME)
    last = await submit(api, **AT_HOME)
    wait = (await explained(api, last, "environment_busy"))["wait"]
    assert wait["ahead_in_environment"] == 2
    assert "ahead" not in wait


async def test_action_of_a_paused_queue_reports_it_until_resumed(api: httpx.AsyncClient, busy: str) -> None:
    id = await submit(api, task="halted")
    await api.patch("/v1/admin/queues/halted", json={"paused": True})
    await explained(api, id, "queue_paused")
    await api.patch("/v1/admin/queues/halted", json={"paused": False})
    await explained(api, id, "waits_for_capacity")


async def test_explain_route_refuses_other_service_tokens(system: System, api: httpx.AsyncClient, busy: str) -> None:
    headers = {"authorization": f"Bearer {system.token('cpu', 'scheduler')}"}
    async with httpx.AsyncClient(base_url=system.url_of("scheduler"), headers=headers) as cpu:
        assert (await cpu.post("/internal/explain", json={"id": busy})).status_code == 401


async def test_sdk_and_cli_print_the_explanation(system: System, api: httpx.AsyncClient, busy: str) -> None:
    id = await submit(api)
    await explained(api, id, "waits_for_capacity")
    async with AsyncTangram(system.url, API_KEY) as tangram:
        waiting, holding = await tangram.explain(UUID(id)), await tangram.explain(UUID(busy))
    said = list(sentences(waiting))
    assert said[0] == "Queued: waits_for_capacity. No action is ahead of it, but too little is free."
    assert said[1].endswith("it needs 1000 cpu_milli; 0 of 1000 are free.")
    said = list(sentences(holding))
    assert said[0] == "Running."
    assert "1000 cpu_milli" in said[1]


async def test_custom_node_resource_is_granted_and_explained(api: httpx.AsyncClient) -> None:
    with_npus = {"demand": {"cpu": 0.25, "resources": {"npu": 2}}}
    holds = await submit(api, **with_npus)
    await eventually(lambda: is_running(api, holds))
    assert (await api.get(f"/v1/actions/{holds}")).json()["allocation"]["npu"] == 2
    waits = await submit(api, **with_npus)
    (lack,) = (await explained(api, waits, "waits_for_capacity"))["wait"]["shortfalls"]
    assert lack == {"resource": "npu", "needed": 2, "free": 0, "capacity": 2}
    assert (await api.get("/v1/admin/consistency")).json()["findings"] == []
    await api.delete(f"/v1/actions/{holds}")
    await eventually(lambda: is_running(api, waits))
    await api.delete(f"/v1/actions/{waits}")
    for resources in ({"npu": 3}, {"tpu": 1}):
        answer = await api.post("/v1/actions", json=LONG | {"demand": {"resources": resources}})
        assert (answer.status_code, answer.json()["code"]) == (422, "demand_impossible")
        assert [error["field"] for error in answer.json()["errors"]] == [f"demand.resources.{next(iter(resources))}"]


async def test_gang_starts_when_all_its_members_fit(system: System, api: httpx.AsyncClient, busy: str) -> None:
    half = [exec_action(task="t", argv=["sleep", "300"], cpu=0.5) for _ in range(2)]
    async with AsyncTangram(system.url, API_KEY) as tangram:
        gang = await tangram.submit_gang(half)
        await explained(api, str(gang[1]), "waits_for_capacity")
        with pytest.raises(BatchRefused) as refused:
            await tangram.submit_gang(half * 2)
    assert {error.code for error in refused.value.refused.values()} == {"demand_impossible"}
    await api.delete(f"/v1/actions/{busy}")
    await eventually(lambda: is_running(api, str(gang[0])))
    shown = [(await api.get(f"/v1/actions/{id}")).json() for id in gang]
    assert len({each["granted_at"] for each in shown}) == len({each["gang"] for each in shown}) == 1
    listed = (await api.get("/v1/actions", params={"state": "running"})).json()["items"]
    assert {each["gang"] for each in listed} == {shown[0]["gang"]}
    await api.delete(f"/v1/actions/{gang[0]}")
    assert (await api.get(f"/v1/actions/{gang[1]}")).json()["state"] == "running", "started, each goes its own way"


async def test_invalid_gang_is_refused_with_a_problem_per_item(api: httpx.AsyncClient) -> None:
    for wrong, field in (
        ({"kind": "exec", "trajectory": "x", "environment": {"scope": "trajectory"}}, "actions.1.environment.scope"),
        ({"task": "other"}, "actions.1.task"),
        ({"priority": 3}, "actions.1.priority"),
        ({"argv": []}, "actions.1.argv"),
    ):
        body = {"actions": [LONG, LONG | wrong], "gang": True}
        items = (await api.post("/v1/actions:batch", json=body)).json()["items"]
        assert [item["problem"]["code"] for item in items] == ["gang_refused", "validation_failed"]
        assert items[1]["problem"]["errors"][0]["field"] == field
    (alone,) = (await api.post("/v1/actions:batch", json={"actions": [LONG], "gang": True})).json()["items"]
    assert alone["problem"]["errors"][0]["field"] == "actions.0.gang"


async def test_action_far_slower_than_its_class_is_listed_as_straggler(system: System, api: httpx.AsyncClient) -> None:
    alike = {"task": "t", "profile": "suite", "cpu": 0.1}
    async with AsyncTangram(system.url, API_KEY) as tangram:
        quick = [exec_action(argv=["sleep", "0.02"], **alike) for _ in range(MIN_STRAGGLER_RUNS)]
        ended = await tangram.wait(await tangram.submit_many(quick), timeout_s=20)
        slow = await tangram.submit(argv=["sleep", "300"], **alike)
        found: list[StragglerInfo] = []

        async def is_seen() -> bool:
            found[:] = await tangram.stragglers()
            return bool(found)

        await eventually(is_seen)
        explained = await tangram.explain(slow.id)
        await tangram.cancel(slow.id)
    (straggler,) = found
    assert (straggler.id, straggler.task, straggler.allocation["cpu_milli"]) == (slow.id, "t", 100)
    least_s = min(action.times.run_s or 0.0 for action in ended)
    assert straggler.elapsed_s > straggler.limit_s > 4.9 * least_s > 0.0, "five times the usual, in milliseconds"
    assert stragglers_table(found).row_count == 1
    assert explained.straggler is not None
    assert explained.straggler.elapsed_s > explained.straggler.limit_s == straggler.limit_s
    assert any("is a straggler: the limit" in sentence for sentence in sentences(explained))


async def test_capacity_plan_shows_the_effect_of_more_or_fewer_cores(
    system: System, api: httpx.AsyncClient, busy: str
) -> None:
    id = await submit(api)
    await explained(api, id, "waits_for_capacity")
    async with AsyncTangram(system.url, API_KEY) as tangram:
        found = await tangram.plan_capacity(add_nodes=1, actions=3, cpu=0.5, seconds=60)
    before, after = found.current, found.hypothetical
    assert after is not None
    assert (before.nodes, before.cpu_milli, before.queued, before.starts_now) == (1, 1000, 1, 0)
    assert (after.nodes, after.cpu_milli, after.queued, after.starts_now) == (2, 2000, 4, 1)
    assert (before.started, after.started) == (1, 4)
    assert before.complete
    assert [str(cell) for cell in capacity_table(found).columns[2].cells][:5] == ["2", "2", "4", "4", "1"]
    node = (await api.get("/v1/admin/nodes")).json()["items"][0]["name"]
    for change in ({"cores": "50%"}, {"exclude_node": [node]}):
        (without,) = [(await api.get("/v1/admin/capacity", params=change)).json()["hypothetical"]]
        assert without["started"] == 0
        assert "drain_s" not in without
        assert not without["complete"]
        assert without["unstarted"] == [{"reason": "no_node_fits", "actions": 1}]
    assert (await api.get(f"/v1/actions/{id}")).json()["state"] == "queued"
    assert [each["name"] for each in (await api.get("/v1/admin/nodes")).json()["items"]] == [node], "nothing was done"


async def test_invalid_capacity_plan_is_refused_with_its_field(api: httpx.AsyncClient) -> None:
    for asked, field in (
        ({"cores": "lots"}, "query.cores"),
        ({"exclude_node": ["nobody"]}, "query.exclude_node"),
        ({"actions": 1001}, "query.actions"),
        ({"kores": "1"}, "query.kores"),
    ):
        answer = await api.get("/v1/admin/capacity", params=asked)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


async def test_granted_action_is_explained_without_the_scheduler(
    system: System, api: httpx.AsyncClient, busy: str
) -> None:
    system.kill("scheduler")
    try:
        found = await explained(api, busy)
        assert (found["state"], found["allocation"]["cpu_milli"], "wait" in found) == ("running", 1000, False)
        assert found["granted_at"] <= found["started_at"]
        waiting = await submit(api)
        assert (await api.get(f"/v1/actions/{waiting}/explain")).status_code == 503
        assert (await api.get("/v1/admin/capacity")).status_code == 503
    finally:
        await system.start("scheduler")

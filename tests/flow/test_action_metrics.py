"""Test that every settled action is counted once, by task, kind, outcome and reason, with its times."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from support.conditions import eventually
from support.postgres import Databases
from support.rows import rows_in
from support.system import METRICS_TOKEN, SERVICES, System, running_system

SMALL = {"cpu": 0.5, "memory_mib": 64}
BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
PARTS = {"completion": "act_s", "queueing": "queue_s", "run": "run_s", "overhead": "overhead_s"}
Settled = list[dict[str, Any]]
Samples = dict[str, list[tuple[dict[str, str], float]]]


async def submit(api: httpx.AsyncClient, task: str, *argv: str, **more: Any) -> str:
    action = {"task": task, "argv": list(argv), "demand": SMALL} | more
    answer = await api.post("/v1/actions", json=action)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def wait(api: httpx.AsyncClient, *ids: str) -> Settled:
    while True:
        answer = (await api.post("/v1/actions:wait", json={"ids": ids, "timeout_s": 30})).json()
        if not answer["pending"]:
            settled: Settled = answer["settled"]
            return settled


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(databases: Databases) -> AsyncIterator[System]:
    owner_url = await databases.clone()
    async with running_system(owner_url, driver="namespaces", cores=2) as system:
        yield system
    await databases.drop(owner_url)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def settled(system: System) -> Settled:
    """Actions of two tasks: ok, failed, over their time, late and cancelled in the queue, cancelled while running."""
    async with system.client() as api:
        busy = await wait(api, await submit(api, "a", "python3", "-c", BUSY, demand={"cpu": 1, "memory_mib": 64}))
        runs = [await submit(api, "a", "true") for _ in range(3)]
        runs += [await submit(api, "b", "false"), await submit(api, "b", "sleep", "30", timeout_s=0.2)]
        done = busy + await wait(api, *runs)
        holder = await submit(api, "b", "sleep", "300", demand={"cpu": 2, "memory_mib": 64})
        await eventually(lambda: is_running(api, holder))
        late = await submit(api, "a", "true", deadline_s=0.3, demand={"cpu": 1})
        waits = await submit(api, "b", "true", demand={"cpu": 1})
        await api.delete(f"/v1/actions/{waits}")
        done += await wait(api, late, waits)
        await api.delete(f"/v1/actions/{holder}")
        done += await wait(api, holder)
    # A service counts after its commit.
    await eventually(lambda: has_counted(system, len(done)))
    return done


async def is_running(api: httpx.AsyncClient, id: str) -> bool:
    return bool((await api.get(f"/v1/actions/{id}")).json()["state"] == "running")


async def has_counted(system: System, actions: int) -> bool:
    return total(await scrape(system), "actions_settled_total") == actions


async def scrape(system: System) -> Samples:
    """Return the samples of all services that are labelled by kind."""
    found: Samples = {}
    async with httpx.AsyncClient(timeout=20, headers={"authorization": f"Bearer {METRICS_TOKEN}"}) as client:
        for service in SERVICES:
            if service == "gateway":
                continue
            answer = await client.get(f"{system.url_of(service)}/metrics")
            for family in text_string_to_metric_families(answer.text):
                for sample in family.samples:
                    if "kind" in sample.labels:
                        found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for found, value in samples[f"tangram_{name}"] if labels.items() <= found.items())


async def test_each_settled_action_is_counted_once_by_outcome(system: System, settled: Settled) -> None:
    samples = await scrape(system)
    expected = {
        ("a", "ok"): 4,
        ("a", "deadline_in_queue"): 1,
        ("b", "user_error"): 1,
        ("b", "user_timeout"): 1,
        ("b", "cancelled"): 2,
    }
    counted = {}
    for labels, value in samples["tangram_actions_settled_total"]:
        assert (labels["project"], labels["kind"]) == ("default", "exec")
        key = (labels["task"], labels["outcome"])
        counted[key] = counted.get(key, 0) + value
    assert counted == expected
    reasons = {each.get("reason", "") for each in settled}
    assert {labels["reason"] for labels, _ in samples["tangram_actions_settled_total"]} == reasons


async def test_times_are_those_of_the_actions(system: System, settled: Settled) -> None:
    samples = await scrape(system)
    for task in ("a", "b"):
        own = [each["times"] for each in settled if each["task"] == task]
        assert total(samples, "action_completion_seconds_count", task=task) == len(own)
        assert total(samples, "action_queueing_seconds_count", task=task) == len(own)
        granted = [each["times"] for each in settled if each["task"] == task and "granted_at" in each]
        assert total(samples, "action_run_seconds_count", task=task) == len(granted)
        for name, key in (
            ("completion", "act_s"),
            ("queueing", "queue_s"),
            ("run", "run_s"),
            ("overhead", "overhead_s"),
        ):
            expected = sum(times[key] for times in (own if key in ("act_s", "queue_s") else granted))
            assert abs(total(samples, f"action_{name}_seconds_sum", task=task) - expected) < 1e-6
        infinite = total(samples, "action_completion_seconds_bucket", task=task, le="+Inf")
        assert infinite == len(own)


async def test_core_seconds_are_those_of_the_allocations(system: System, settled: Settled) -> None:
    samples = await scrape(system)
    held = dict.fromkeys(("a", "b"), 0.0)
    for each in settled:
        if "granted_at" in each:
            cores = each["allocation"]["cpu_milli"] / 1000
            held[each["task"]] += cores * (each["times"]["act_s"] - each["times"]["queue_s"])
    for task, expected in held.items():
        allocated = total(samples, "allocated_core_seconds_total", task=task, kind="exec")
        assert 0.5 * expected < allocated < 2 * expected + 1
    used = sum(each["result"]["cpu_s"] for each in settled if each["task"] == "a" and "granted_at" in each)
    assert used >= 0.3
    assert abs(total(samples, "used_core_seconds_total", task="a", kind="exec") - used) < 1e-6


async def test_node_settles_actions_while_the_names_of_their_tasks_cannot_be_read(
    system: System, settled: Settled
) -> None:
    """A lock on the names stops their reader. The states come from rows, as the API may need the locked table."""
    before = total(await scrape(system), "actions_settled_total")
    locker = await asyncpg.connect(system.owner_url)
    try:
        async with system.client() as api, rows_in(system.owner_url) as rows:
            actions = [UUID(await submit(api, task, "sleep", "300")) for task in ("new", "newer")]
            for action in actions:
                await rows.until_state(action, "running")
            async with locker.transaction():
                await locker.execute("lock table projects in access exclusive mode")
                for action in actions:
                    await rows.unguarded("update actions set cancel_requested_at = now() where id = $1", action)
                    await rows.until_state(action, "settled")
    finally:
        await locker.close()
    await eventually(lambda: has_counted(system, int(before) + 2))
    samples = await scrape(system)
    for task in ("new", "newer"):
        assert total(samples, "actions_settled_total", project="default", task=task, outcome="cancelled") == 1

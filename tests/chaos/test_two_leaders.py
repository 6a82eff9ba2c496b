"""Two schedulers that each believe to lead: nothing is granted that somebody holds."""

import asyncio
import json
import random
import signal

import httpx
import pytest

from support.bookings import LOG_EDGES, edges_of, most_held
from support.postgres import Databases
from support.rows import Rows, rows_in
from support.system import System, running_system

TTL_S = "1"
FREEZES = 8
CORES = 6
LOAD, LEAST_LOAD = 250, 60
MEMORY_MIB = 3000
OPEN = "select count(*) from actions where state <> 'settled'"
SCHEDULERS = ("scheduler", "scheduler-2")


def actions(random_: random.Random, count: int) -> list[dict[str, object]]:
    """Fractions and wholes, so that a round that forgets something finds a gap to put too much into."""
    return [
        {
            "task": "t",
            "argv": ["sleep", str(random_.choice((0.02, 0.2, 0.6)))],
            "demand": {"cpu": random_.choice((0.5, 1, 1.5, 3)), "memory_mib": random_.choice((64, 400, 1200))},
        }
        for _ in range(count)
    ]


async def load(client: httpx.AsyncClient, random_: random.Random, count: int) -> None:
    answer = await client.post("/v1/actions:batch", json={"actions": actions(random_, count)})
    assert answer.is_success and all("id" in item for item in answer.json()["items"]), answer.text


async def leader(system: System) -> str:
    """Whose own figures say that it leads."""
    async with httpx.AsyncClient() as client, asyncio.timeout(20):
        while True:
            for name in SCHEDULERS:
                figures = (await client.get(f"{system.url_of(name)}/metrics")).text
                if "tangram_scheduler_leader 1.0" in figures.splitlines():
                    return name
            await asyncio.sleep(0.02)


async def freeze_the_leader(system: System, rows: Rows) -> None:
    """Until another took the term over. Then both believe to lead."""
    term = await rows.value("select term from leader_term")
    frozen = await leader(system)
    lost_before = system.log(frozen).count("lost the lead")
    system.processes[frozen].send_signal(signal.SIGSTOP)

    async def taken_over() -> bool:
        return bool(await rows.value("select term > $1 from leader_term", term))

    async def noticed() -> bool:
        return system.log(frozen).count("lost the lead") > lost_before

    await rows.until(taken_over, timeout_s=30)
    system.processes[frozen].send_signal(signal.SIGCONT)
    await rows.until(noticed, timeout_s=20)


@pytest.mark.slow
async def test_two_leaders_never_double_book(databases: Databases) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    quick = {"TANGRAM_LEADER_TTL_S": TTL_S}
    overrides = {name: dict(quick) for name in SCHEDULERS} | {"cpu": {"TANGRAM_MEMORY_MIB": str(MEMORY_MIB)}}
    url = await databases.clone()
    async with (
        running_system(url, cores=CORES, overrides=overrides) as system,
        rows_in(url) as rows,
        system.client() as client,
    ):
        await rows.execute(LOG_EDGES)
        await system.start("scheduler-2")
        await load(client, random_, LOAD)
        for _ in range(FREEZES):
            await load(client, random_, max(0, LOAD - await rows.value(OPEN)))
            await freeze_the_leader(system, rows)
            assert await rows.value(OPEN) >= LEAST_LOAD
        await rows.until_value(0, OPEN, timeout_s=60)
        held = most_held(await edges_of(rows.pool))
        node, capacity = await rows.pool.fetchrow("select id, capacity from nodes")
        most, least = json.loads(capacity), CORES * 1000 - 500
        assert all(held[node][resource] <= most[resource] for resource in most), (held, most)
        assert held[node]["cpu_milli"] >= least, "the node was never full, so nothing could be booked twice"
        granted = "select count(*) from edge_log where state = 'granted'"
        assert await rows.value(granted) == await rows.value("select sum(grant_no) from actions")
        audit = (await client.get("/v1/admin/audit")).json()
        assert audit["findings"] == []
    await databases.drop(url)

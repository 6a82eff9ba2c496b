"""Two schedulers that each believe to lead: nothing is granted that somebody holds."""

import asyncio
import json
import random
import signal
from pathlib import Path

import httpx
import pytest

from support.bookings import LOG_EDGES, edges_of, most_held
from support.postgres import Databases
from support.rows import Rows, rows_in
from support.system import System, running_system

TTL_S = "6"
ENDED_LEASES = 5
CORES = 6
LOAD, LEAST_LOAD = 250, 60
MEMORY_MIB = 3000
OPEN = "select count(*) from actions where state <> 'settled'"
GRANTED = "select count(*) from edge_log where state = 'granted'"
LOST = "lost the lead"
SCHEDULERS = ("scheduler", "scheduler-2")


def actions(random_: random.Random, count: int) -> list[dict[str, object]]:
    """Fractions and wholes, so that a round that forgets something finds a gap to put too much into."""
    return [
        {
            "task": "t",
            "argv": ["sleep", str(random_.choice((0.02, 0.2, 0.6)))],
            "priority": random_.randrange(8),
            "demand": {"cpu": random_.choice((0.5, 1, 1.5, 3)), "memory_mib": random_.choice((64, 400, 1200))},
        }
        for _ in range(count)
    ]


async def load(client: httpx.AsyncClient, random_: random.Random, count: int) -> None:
    answer = await client.post("/v1/actions:batch", json={"actions": actions(random_, count)})
    assert all("id" in item for item in answer.json()["items"]), answer.text


async def stopped(system: System) -> str:
    """The leader, standing still at its failpoint with a decision in its hands."""
    async with asyncio.timeout(30):
        while True:
            for name in SCHEDULERS:
                stat = Path(f"/proc/{system.processes[name].pid}/stat").read_text()
                if stat.rpartition(") ")[2].startswith("T"):
                    return name
            await asyncio.sleep(0.02)


async def two_leaders(system: System, rows: Rows, frozen: str, *, lapse: bool) -> None:
    """Another takes over and grants; then the old one goes on, applies what it had decided and learns of its loss.

    With `lapse` its lease runs out, else the lease is ended; then no renewal is due.
    """
    term = await rows.value("select term from leader_term")
    granted = await rows.value(GRANTED)
    lost_before = system.log(frozen).count(LOST)

    async def taken_over() -> bool:
        if not lapse:
            await rows.execute("update leader_lease set expires_at = '-infinity' where term = $1", term)
        return bool(await rows.value("select term > $1 from leader_term", term))

    async def went_on() -> bool:
        return bool(await rows.value(GRANTED) >= granted + CORES)

    async def noticed() -> bool:
        return system.log(frozen).count(LOST) > lost_before

    await rows.until(taken_over, timeout_s=30)
    await rows.until(went_on, timeout_s=20)
    system.processes[frozen].send_signal(signal.SIGCONT)
    await rows.until(noticed, timeout_s=20)


@pytest.mark.slow
async def test_two_leaders_never_double_book(databases: Databases) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    quick = {"TANGRAM_LEADER_TTL_S": TTL_S, "TANGRAM_FAILPOINTS": "leader.between_decision_and_lock=stop:6"}
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
        for lapse in (True, *[False] * ENDED_LEASES):
            frozen = await stopped(system)
            # Much of it comes before what the old leader has decided on.
            await load(client, random_, max(CORES * 2, LOAD - await rows.value(OPEN)))
            await two_leaders(system, rows, frozen, lapse=lapse)
            assert await rows.value(OPEN) >= LEAST_LOAD
        for name in SCHEDULERS:
            system.kill(name)
            del system.overrides[name]["TANGRAM_FAILPOINTS"]
        await system.start("scheduler")
        await rows.until_value(0, OPEN, timeout_s=60)
        held = most_held(await edges_of(rows.pool))
        node, capacity = await rows.pool.fetchrow("select id, capacity from nodes")
        most, least = json.loads(capacity), CORES * 1000 - 500
        assert all(held[node][resource] <= most[resource] for resource in most), (held, most)
        assert held[node]["cpu_milli"] >= least, "the node was never full, so nothing could be booked twice"
        assert await rows.value(GRANTED) == await rows.value("select sum(grant_no) from actions")
        audit = (await client.get("/v1/admin/audit")).json()
        assert audit["findings"] == []
    await databases.drop(url)

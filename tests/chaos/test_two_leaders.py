"""Two schedulers that each believe to lead: nothing is granted that somebody holds."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.bookings import LOG_EDGES, edges_of, most_held
from support.conditions import eventually
from support.postgres import Databases
from support.rows import rows_in
from support.system import System, running_system

CORES = 4
LEADER_TTL = {"TANGRAM_LEADER_TTL_S": "3"}
OPEN = "select count(*) from actions where state <> 'settled'"
GRANTED = "select count(*) from edge_log where state = 'granted'"
RUNNING = "select count(*) from actions where state = 'running' and id = any($1)"
NEXT_LEADER_WAITS = """
    select count(*) > 0 from pg_stat_activity
     where datname = current_database() and wait_event_type = 'Lock' and query like '%update leader_term%'
"""


async def submit(client: httpx.AsyncClient, *, seconds: str, priority: int) -> list[str]:
    """As many as fill the node."""
    action = {"task": "t", "argv": ["sleep", seconds], "priority": priority, "demand": {"cpu": 1}}
    answer = await client.post("/v1/actions:batch", json={"actions": [action] * CORES})
    return [item["id"] for item in answer.json()["items"]]


def stands_still(system: System, name: str) -> bool:
    stat = Path(f"/proc/{system.processes[name].pid}/stat").read_text()
    return stat.rpartition(") ")[2].startswith("T")


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["leader.between_decision_and_lock", "leader.between_lock_and_update"])
async def test_a_leader_that_stood_still_books_nothing_twice(databases: Databases, moment: str) -> None:
    """What it has decided fills the node; what the next leader prefers, and grants meanwhile, fills it too."""
    overrides: dict[str, Any] = {
        "scheduler": LEADER_TTL | {"TANGRAM_FAILPOINTS": f"{moment}=stop:1"},
        "scheduler-2": LEADER_TTL,
    }
    url = await databases.clone()
    async with (
        running_system(url, cores=CORES, overrides=overrides) as system,
        rows_in(url) as rows,
        system.client() as client,
    ):
        await rows.execute(LOG_EDGES)
        await submit(client, seconds="1", priority=0)
        await eventually(lambda: stands_still(system, "scheduler"))
        preferred = await submit(client, seconds="600", priority=9)
        await system.start("scheduler-2")

        async def preferred_run() -> bool:
            return bool(await rows.value(RUNNING, preferred) == CORES)

        async def next_leader_is_there() -> bool:
            return await preferred_run() or bool(await rows.value(NEXT_LEADER_WAITS))

        await rows.until(next_leader_is_there, timeout_s=20)
        system.processes["scheduler"].send_signal(signal.SIGCONT)
        await eventually(lambda: "lost the lead" in system.log("scheduler"))
        await rows.until(preferred_run, timeout_s=20)
        await asyncio.gather(*(client.delete(f"/v1/actions/{id}") for id in preferred))
        await rows.until_value(0, OPEN, timeout_s=20)

        node, capacity = await rows.pool.fetchrow("select id, capacity from nodes")
        most, held = json.loads(capacity), most_held(await edges_of(rows.pool))[node]
        assert all(held[resource] <= most[resource] for resource in held), (held, most)
        assert held["cpu_milli"] == CORES * 1000, "never full, so nothing could be booked twice"
        assert await rows.value(GRANTED) == await rows.value("select sum(grant_no) from actions")
        assert (await client.get("/v1/admin/audit")).json()["findings"] == []
    await databases.drop(url)

"""Test that two schedulers that both believe to be leader never allocate a resource twice."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from arl_tangram import ActionOutcome, AsyncTangram, SubmitActionRequest, exec_action
from support.bookings import LOG_EDGES, edges_of, most_held
from support.conditions import eventually
from support.postgres import Databases
from support.rows import Rows, rows_in
from support.system import API_KEY, System, running_system

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
    """Submit as many actions as the node has cores and return their ids."""
    action = {"task": "t", "argv": ["sleep", seconds], "priority": priority, "demand": {"cpu": 1}}
    answer = await client.post("/v1/actions:batch", json={"actions": [action] * CORES})
    return [item["id"] for item in answer.json()["items"]]


def stands_still(system: System, name: str) -> bool:
    stat = Path(f"/proc/{system.processes[name].pid}/stat").read_text()
    return stat.rpartition(") ")[2].startswith("T")


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["leader.between_decision_and_lock", "leader.between_lock_and_update"])
async def test_frozen_leader_allocates_nothing_twice(databases: Databases, moment: str) -> None:
    """The frozen leader's decision fills the node, and so do the grants of the next leader."""
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
        assert (await client.get("/v1/admin/consistency")).json()["findings"] == []
    await databases.drop(url)


TURNS = 2
BOTH = ("scheduler", "scheduler-2")
TERM = "select term from leader_term"
AS_WIDE_AS_CAN_BE = (
    f"select count(*) from actions where state = 'running' and amounts @> '{{\"cpu_milli\": {CORES}000}}'"
)
RESIZED = "select count(*) from edge_log where state = 'running' and amounts_seq > 1"
HALF_GANGS = """
    select count(*)
      from (select s.gang ->> 'id'
              from edge_log as e
              join action_specs as s using (id)
             where s.gang is not null and e.state = 'granted' and e.grant_no = 1
             group by 1
            having count(distinct e.xid) > 1 or count(*) <> max((s.gang ->> 'size')::int)) as half
"""


def wide(task: int, *, seconds: float) -> SubmitActionRequest:
    return exec_action(
        task=f"t{task}",
        argv=["sleep", str(seconds)],
        cpu=(1, CORES),
        parallel_fraction=0.9,
        resizable="any",
        memory_mib=64,
    )


def some_work(turn: int) -> tuple[list[SubmitActionRequest], list[SubmitActionRequest]]:
    """Return resizable and fixed actions, and a gang that needs more than half the node."""
    resizable = [wide(n % 2, seconds=0.2 + n % 3) for n in range(5)]
    fixed = [exec_action(task="t0", argv=["sleep", "0.1"], cpu=1 + turn % 2, memory_mib=64) for _ in range(4)]
    gang = [exec_action(task="t1", argv=["sleep", "0.5"], cpu=1, memory_mib=64) for _ in range(CORES - 1)]
    return [*resizable, *fixed], gang


async def the_leader(system: System) -> str:
    """Wait until exactly one scheduler's metric reports that it leads, and return its name."""
    found: list[str] = []

    async def says_so() -> bool:
        said = {name: await system.metrics(name) for name in BOTH}
        found[:] = [name for name, text in said.items() if "tangram_leader 1.0" in text]
        return len(found) == 1

    await eventually(says_so)
    return found[0]


@pytest.mark.slow
async def test_alternating_frozen_leaders_allocate_nothing_twice_during_resizes(
    databases: Databases,
) -> None:
    """Each leader in turn is frozen for longer than its lease and then continues its work."""
    overrides = {
        name: {"TANGRAM_LEADER_TTL_S": "2", "TANGRAM_POLICY": "spar_m"} for name in ("scheduler", "scheduler-2")
    } | {"admission": {"TANGRAM_CPU_FORM": "exclusive"}}
    url = await databases.clone()
    async with (
        running_system(url, cores=CORES, overrides=overrides) as system,
        rows_in(url) as rows,
        AsyncTangram(system.url, API_KEY) as client,
    ):
        await system.start("scheduler-2")
        await rows.execute(LOG_EDGES)

        async def some_are_resized() -> bool:
            return bool(await rows.value(RESIZED) > 0)

        ids: list[UUID] = [(await client.submit(wide(0, seconds=10))).id]
        await rows.until_value(1, AS_WIDE_AS_CAN_BE, timeout_s=20)
        for turn in range(TURNS):
            batch, gang = some_work(turn)
            ids += await client.submit_many(batch)
            ids += await client.submit_gang(gang)
            await rows.until(some_are_resized, timeout_s=20)
            leader, term = await the_leader(system), await rows.value(TERM)
            system.processes[leader].send_signal(signal.SIGSTOP)
            await rows.until(lambda term=term: another_leads(rows, term), timeout_s=20)
            system.processes[leader].send_signal(signal.SIGCONT)
        settled = await client.wait(ids, timeout_s=60)
        assert {action.outcome for action in settled} == {ActionOutcome.OK}
        node, capacity = await rows.pool.fetchrow("select id, capacity from nodes")
        most, held = json.loads(capacity), most_held(await edges_of(rows.pool))[node]
        assert all(held[resource] <= most[resource] for resource in held), (held, most)
        assert held["cpu_milli"] == CORES * 1000, "never full, so nothing could be booked twice"
        assert await rows.value(GRANTED) == await rows.value("select sum(grant_no) from actions")
        assert await rows.value(HALF_GANGS) == 0
        async with system.client() as api:
            assert (await api.get("/v1/admin/consistency")).json()["findings"] == []
    await databases.drop(url)


async def another_leads(rows: Rows, term: int) -> bool:
    return bool(await rows.value(TERM) > term)

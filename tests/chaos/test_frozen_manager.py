"""Test that a manager frozen past its lease changes nothing when it continues."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from arl_wire.admin.consistency import ConsistencyReport
from support.bookings import LOG_EDGES
from support.conditions import eventually
from support.postgres import Databases
from support.rows import Rows, rows_in
from support.system import running_system

SHORT = {"TANGRAM_NODE_TTL_S": "1", "TANGRAM_BEAT_S": "0.2", "TANGRAM_POLL_IDLE_S": "1"}
ELSEWHERE = SHORT | {"TANGRAM_DRIVER": "simulated", "TANGRAM_NODE_NAME": "elsewhere", "TANGRAM_CPU_CORES": "1"}
SECONDS = {
    "ends": "345671",
    "goes on": "345672",
    "ends, again elsewhere": "345673",
    "goes on, again elsewhere": "345674",
    "ends, kept": "345675",
}
"""Sleep seconds that identify each attempt's process on this machine; no test waits that long."""

ROWS = """
    select state, outcome, reason, grant_no, node_epoch, settled_at, failures
      from actions where id = any($1) order by id
"""
EDGES = "select count(*) from edge_log where id = any($1)"


def body(name: str) -> dict[str, Any]:
    kept = {"trajectory": "kept", "environment": {"scope": "trajectory"}} if "kept" in name else {}
    demand = {"cpu": 0.25, "memory_mib": 64}
    return {"task": "t", "argv": ["sleep", SECONDS[name]], "demand": demand, "retries": int("again" in name)} | kept


def processes_of(name: str) -> list[int]:
    argv = f"sleep\0{SECONDS[name]}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == argv:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


async def until_states(rows: Rows, ids: dict[str, str], expected: dict[str, tuple[str, str | None, int]]) -> None:
    async def reached() -> bool:
        found = [await rows.pool.fetchrow("select * from actions where id = $1", ids[name]) for name in expected]
        return [(row["state"], row["outcome"], row["grant_no"]) for row in found] == list(expected.values())

    await rows.until(reached, timeout_s=20)


async def until_nothing_is_held(client: httpx.AsyncClient) -> ConsistencyReport:
    async with asyncio.timeout(20):
        while True:
            audit = ConsistencyReport.model_validate_json((await client.get("/v1/admin/consistency")).content)
            if not any(entry.allocated for entry in audit.allocations):
                return audit
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_actions_lost_by_a_frozen_manager_are_not_changed(databases: Databases) -> None:
    url = await databases.clone()
    overrides = {"scheduler": SHORT, "cpu": SHORT, "cpu-2": ELSEWHERE}
    async with (
        running_system(url, driver="unsafe-local", cores=2, overrides=overrides) as system,
        rows_in(url) as rows,
        system.client() as client,
    ):
        await rows.execute(LOG_EDGES)
        ids = {name: (await client.post("/v1/actions", json=body(name))).json()["id"] for name in SECONDS}
        await until_states(rows, ids, dict.fromkeys(SECONDS, ("running", None, 1)))
        await eventually(lambda: all(processes_of(name) for name in SECONDS))

        system.processes["cpu"].send_signal(signal.SIGSTOP)
        for name in SECONDS:
            if name.startswith("ends"):
                os.kill(*processes_of(name), signal.SIGTERM)
        await system.start("cpu-2")
        lost = {
            "ends": ("settled", "infra_error", 1),
            "goes on": ("settled", "infra_error", 1),
            "ends, again elsewhere": ("running", None, 2),
            "goes on, again elsewhere": ("running", None, 2),
        }
        await until_states(rows, ids, lost | {"ends, kept": ("running", None, 1)})
        assert [name for name in SECONDS if processes_of(name)] == ["goes on", "goes on, again elsewhere"]
        lost_ids = [ids[name] for name in lost]
        before, edges = await rows.pool.fetch(ROWS, lost_ids), await rows.value(EDGES, lost_ids)

        system.processes["cpu"].send_signal(signal.SIGCONT)
        # It reports in the order of the ends, and this one it still holds: an environment outlives a lease.
        await until_states(rows, ids, {"ends, kept": ("settled", "user_error", 1)})
        await eventually(lambda: not any(processes_of(name) for name in SECONDS))
        whole = {"task": "t", "argv": ["true"], "demand": {"cpu": 2}}
        assert (await client.post("/v1/actions?wait=20", json=whole)).json()["outcome"] == "ok", "it has its cores back"
        assert await rows.pool.fetch(ROWS, lost_ids) == before
        assert await rows.value(EDGES, lost_ids) == edges, "not even for a moment"

        await asyncio.gather(*(client.delete(f"/v1/actions/{id}") for id in lost_ids))
        await until_states(rows, ids, {name: ("settled", "cancelled", 2) for name in lost if "elsewhere" in name})
        await client.delete("/v1/trajectories/kept", params={"task": "t"})
        assert (await until_nothing_is_held(client)).findings == []
    await databases.drop(url)

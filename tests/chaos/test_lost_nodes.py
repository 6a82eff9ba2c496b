"""Test a node that is frozen past its lease under load, and a node that dies with its disk."""

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from support.conditions import eventually
from support.outages import State, audit_when_idle, submit, until_states
from support.postgres import Databases
from support.rows import rows_in
from support.system import System, running_system

FROZEN_S = 30.0
ELSEWHERE = {"TANGRAM_DRIVER": "simulated", "TANGRAM_NODE_NAME": "elsewhere", "TANGRAM_CPU_CORES": "1"}
TRAJECTORIES, STEPS, SHORT = 4, 6, 40
LONG = "345691"
"""Seconds of a sleep that identifies its processes on this machine; no test waits that long."""
OK: State = ("settled", "ok", None, 1)
LOST: State = ("settled", "infra_error", "node_lost", 1)
GONE: State = ("settled", "infra_error", "environment_lost", 1)

OK_COUNT = "select count(*) from actions where id = any($1) and state = 'settled' and outcome = 'ok'"


def in_environment(name: str) -> dict[str, Any]:
    return {"trajectory": name, "environment": {"scope": "trajectory"}}


def sleepers() -> list[int]:
    """Return the processes of actions that sleep for `LONG` seconds."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{LONG}\0".encode():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
async def test_node_frozen_for_30_s_under_load_repeats_and_loses_only_fresh_actions(databases: Databases) -> None:
    url = await databases.clone()
    step = "n=$(cat n 2>/dev/null || echo 0); test $n = {step} && sleep 0.5 && echo $((n + 1)) > n"
    actions: dict[str, dict[str, Any]] = {f"long {n}": {"argv": ["sleep", LONG]} for n in range(3)}
    actions |= {
        f"step {t} {s}": {"argv": ["sh", "-c", step.format(step=s)]} | in_environment(f"t{t}")
        for s in range(STEPS)
        for t in range(TRAJECTORIES)
    }
    actions |= {f"short {n}": {"argv": ["sleep", "0.5"], "retries": 1} for n in range(SHORT)}
    async with (
        running_system(url, driver="unsafe-local", cores=2, overrides={"cpu-2": ELSEWHERE}) as system,
        rows_in(url) as rows,
        system.client() as client,
    ):
        ids = await submit(client, actions)
        first = {f"step {t} 0": OK for t in range(TRAJECTORIES)}
        await until_states(rows, ids, first | {f"long {n}": ("running", None, None, 1) for n in range(3)})
        await eventually(lambda: len(sleepers()) == 3)
        for name in ("launcher", "cpu"):
            system.processes[name].send_signal(signal.SIGSTOP)
        await system.start("cpu-2")
        await asyncio.sleep(FROZEN_S)
        long = {f"long {n}": LOST for n in range(3)}
        await until_states(rows, ids, long)
        assert len(sleepers()) == 3, "the frozen node does not know yet"
        for name in ("cpu", "launcher"):
            system.processes[name].send_signal(signal.SIGCONT)
        await eventually(lambda: not sleepers())
        steps, short = ([ids[name] for name in actions if name.startswith(kind)] for kind in ("step", "short"))
        # One that was granted but had not started may have a second grant. Each step checks that it ran once, in order.
        await rows.until_value(len(steps), f"{OK_COUNT} and failures = 0", steps, timeout_s=60)
        await rows.until_value(SHORT, OK_COUNT, short, timeout_s=60)
        assert await rows.value("select max(grant_no) from actions where id = any($1)", short) > 1, "some were repeated"
        await until_states(rows, ids, long)
        for trajectory in range(TRAJECTORIES):
            await client.delete(f"/v1/trajectories/t{trajectory}", params={"task": "t"})
        audit = await audit_when_idle(client)
        assert (audit.findings, audit.actions) == ([], {"settled": len(actions)})
    await databases.drop(url)


@pytest.mark.slow
async def test_new_node_with_the_name_of_a_dead_one_without_its_disk_starts_empty(databases: Databases) -> None:
    url = await databases.clone()
    long: dict[str, Any] = {"argv": ["sleep", LONG]}
    actions = {
        "fresh": long,
        "again": {"argv": ["sleep", "3"], "retries": 1},
        "kept": long | in_environment("kept"),
        "next": {"argv": ["true"]} | in_environment("kept"),
        "waits": {"argv": ["true"], "demand": {"cpu": 2, "memory_mib": 64}},
    }
    async with (
        running_system(url, driver="unsafe-local", cores=2) as system,
        rows_in(url) as rows,
        system.client() as client,
    ):
        ids = await submit(client, actions)
        await until_states(rows, ids, dict.fromkeys(("fresh", "again", "kept"), ("running", None, None, 1)))
        await eventually(lambda: len(sleepers()) == 2)
        lose_node(system)
        await system.start("launcher", "cpu")
        expected: dict[str, State] = {
            "fresh": LOST,
            "again": ("settled", "ok", None, 2),
            "kept": GONE,
            "next": ("settled", "infra_error", "environment_lost", 0),
            "waits": OK,
        }
        await until_states(rows, ids, expected)
        tombstone = await submit(client, {"late": {"argv": ["true"]} | in_environment("kept")})
        await until_states(rows, tombstone, {"late": ("settled", "infra_error", "environment_lost", 0)})
        await client.delete("/v1/trajectories/kept", params={"task": "t"})
        empty = await submit(client, {"new": {"argv": ["sh", "-c", "test -z $(ls)"]} | in_environment("other")})
        await until_states(rows, empty, {"new": OK})
        await client.delete("/v1/trajectories/other", params={"task": "t"})
        audit = await audit_when_idle(client)
        assert (audit.findings, audit.actions) == ([], {"settled": len(actions) + 2})
    await databases.drop(url)


def lose_node(system: System) -> None:
    """Kill the node with its actions, delete all its files, and let the next one have another address."""
    for name in ("cpu", "launcher"):
        system.kill(name)
    for pid in sleepers():
        os.kill(pid, signal.SIGKILL)
    for name in ("launcher", "snapshots", "spool"):
        shutil.rmtree(system.directory / name, ignore_errors=True)
    (system.directory / "l.sock").unlink()
    del system.ports["cpu"]

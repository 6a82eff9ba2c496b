"""Test kill -9 of every process, at failpoints and at random, with 500 open acknowledged actions."""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from arl_local.postgres.embedded_postgres import EmbeddedPostgres
from arl_tangram import ActionOutcome, AsyncTangram
from arl_tangram.cli.system.host_resources import HostResourceScanner
from support.conditions import eventually, is_running
from support.load import Load
from support.machine import Machine, an_armed_machine

FAILPOINTS = {
    "gateway": ("gateway.after_admission_ack",),
    "admission": ("admission.after_commit",),
    "scheduler": ("scheduler.after_grant_commit", "leader.between_lock_and_update"),
    "cpu": ("manager.after_running", "manager.after_exit_before_settle"),
}
KILLS = {"gateway": 20, "admission": 20, "scheduler": 20, "cpu": 20, "postgres": 10}
OPEN, MARGIN = 500, 200
PATIENCE_S = 60.0
SHORT_LIFE_S, LONG_LIFE_S = 1.0, 9.5
"""A process that lived 10 s restarts immediately, others with growing delay; one life in six is long."""


async def ready(machine: Machine, process: str) -> int:
    await eventually(lambda: machine.ready_pid_of(process) is not None, timeout_s=PATIENCE_S)
    pid = machine.ready_pid_of(process)
    return pid if pid is not None else await ready(machine, process)


async def kill(machine: Machine, process: str) -> bool:
    """Kill a process that is ready now; return True if this kill ended it."""
    pid = await ready(machine, process)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    await eventually(lambda: machine.ready_pid_of(process) != pid)
    return True


def end(machine: Machine, process: str) -> None:
    """Kill a process without waiting for readiness, because an armed process may die before it."""
    pid = json.loads((machine.directory / "processes.json").read_text())["processes"][process]["pid"]
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def die_at_each_failpoint(machine: Machine, service: str) -> None:
    """Kill the service at each of its failpoints; wait for the log entry and disarm it."""
    for failpoint in FAILPOINTS[service]:
        machine.arm(service, failpoint)
        end(machine, service)
        died = f"failpoint {failpoint}: SIGKILL"
        try:
            await eventually(lambda died=died: died in machine.log(service), timeout_s=PATIENCE_S)
        except TimeoutError:
            audit = machine.cli("check", check=False).stdout
            raise AssertionError(f"{failpoint} is never reached: {audit}{logs_of(machine)}") from None
        machine.disarm(service)


def logs_of(machine: Machine) -> str:
    """Return the end of each process log, before the machine deletes the logs."""
    return "".join(f"\n{each}:\n{machine.log(each)[-3000:]}" for each in ("supervisor", *KILLS, "cpu-launcher"))


async def kill_at_random(machine: Machine, load: Load, process: str, random_: random.Random) -> None:
    """Kill the process at random moments under full load."""
    kills, first_long = 0, 1 + list(KILLS).index(process)
    while kills < KILLS[process]:
        await ready(machine, process)
        await asyncio.sleep(LONG_LIFE_S if kills % 6 == first_long else random_.uniform(0, SHORT_LIFE_S))
        await load.until_open(OPEN, timeout_s=PATIENCE_S)
        kills += await kill(machine, process)


@pytest.mark.slow
async def test_every_acknowledged_action_settles_once_under_random_kills(tmp_path: Path) -> None:
    seed, begun = random.randrange(1 << 30), time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} s  {what}")

    tell(f"seed {seed}")
    async with an_armed_machine(tmp_path / "state") as machine:
        url = EmbeddedPostgres(machine.directory).owner_url("tangram")
        async with machine.async_client() as client:
            load = Load(client, url, random.Random(seed))
            await load.submit(chains=25, steps=8, lone=OPEN + MARGIN - 25 * 8)
            async with load.topped_up(OPEN + MARGIN):
                tell("killing at failpoints")
                await asyncio.gather(*(die_at_each_failpoint(machine, each) for each in FAILPOINTS))
                tell("killing at random")
                lanes = [kill_at_random(machine, load, each, random.Random(f"{seed} {each}")) for each in KILLS]
                await asyncio.gather(*lanes)
                await asyncio.gather(*(ready(machine, each) for each in KILLS))
            tell(f"all killed, {load.acknowledged} actions acknowledged, {len(load.open)} open")
            await load.until_all_settled(timeout_s=PATIENCE_S)
            tell("all settled")
            await expect_one_truth(client, load)
            await until_free(client, load)
        assert await load.changed() == [], "a settled action never changes"
        audited = json.loads(machine.cli("check", "-o", "json").stdout)
        assert audited["rows"]["actions"] == {"settled": load.acknowledged}
        assert set(audited["compared"]) >= {"rows", "processes", "amounts", "leftovers"}
        pids = machine.pids()
        tell("clean; stopping")
    tell("stopped")
    assert not [pid for pid in pids if is_running(pid)], "processes outlive `down`"
    assert not list(HostResourceScanner(machine.directory).findings())
    assert not machine.directory.exists()


async def expect_one_truth(client: AsyncTangram, load: Load) -> None:
    """Check that no persistent environment reports a false failure and its steps ran once, in order."""
    outcomes = Counter(truth[:2] for truth in load.truth.values())
    print(dict(outcomes))
    failed = [id for id, truth in load.truth.items() if truth[0] not in (ActionOutcome.OK, ActionOutcome.INFRA_ERROR)]
    assert not failed, [(await client.get(id)).model_dump() for id in failed[:3]]
    assert outcomes[ActionOutcome.OK, None] >= load.acknowledged * 0.9
    for id, (_, step) in load.steps.items():
        if load.truth[id][0] == ActionOutcome.OK:
            result = (await client.get(id)).result
            assert result is not None
            assert result.stdout.text.split()[-1] == str(step)


async def until_free(client: AsyncTangram, load: Load) -> None:
    """End all trajectories and wait until the node has no action and no environment."""
    for trajectory in load.trajectories:
        await client.end_trajectory("chaos", trajectory)
    async with asyncio.timeout(30):
        while any(node.running or node.environments for node in (await client.nodes()).items):
            await asyncio.sleep(0.1)

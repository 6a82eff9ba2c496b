"""kill -9 of everything, at random and at its worst moments, under 500 acknowledged actions that have not settled."""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from arl_store.embedded import EmbeddedPostgres
from arl_tangram import AsyncTangram, Outcome
from support.conditions import is_running
from support.load import Load
from support.machine import Machine, an_armed_machine

FAILPOINTS = {
    "gateway": ("gateway.after_admission_ack",),
    "admission": ("admission.after_commit",),
    "scheduler": ("scheduler.after_grant_commit", "leader.between_lock_and_update"),
    "cpu": ("manager.after_running", "manager.after_exit_before_settle"),
    "postgres": (),
}
KILLS = {"gateway": 20, "admission": 20, "scheduler": 20, "cpu": 20, "postgres": 10}
OPEN = 500
SETTLES_S = 240.0
LONG_LIFE_S = 10.5
"""Whoever lives for 10 s is started again at once; the others later and later."""


async def alive(machine: Machine, process: str, not_pid: int) -> int:
    """The pid of its next life, once that is ready."""
    async with asyncio.timeout(90):
        while True:
            entry = processes(machine)[process]
            if entry["state"] == "ready" and entry["pid"] not in (None, not_pid):
                return int(entry["pid"])
            await asyncio.sleep(0.05)


def processes(machine: Machine) -> dict[str, dict[str, object]]:
    return dict(json.loads((machine.directory / "processes.json").read_text())["processes"])


async def die_at(machine: Machine, load: Load, process: str, failpoint: str) -> None:
    """Until its log says that it died there. It may die of something else before."""
    said = f"failpoint {failpoint}: SIGKILL"
    died = asyncio.Event()

    async def go_on_asking() -> None:
        while not died.is_set():
            await load.keep(OPEN)
            await load.submit(chains=0, steps=0, lone=1)
            await asyncio.sleep(0.2)

    # A request may well be what it dies of, again and again until it is disarmed: it must not hold this up.
    asking = asyncio.create_task(go_on_asking())
    async with asyncio.timeout(90):
        while said not in machine.log(process):
            await asyncio.sleep(0.05)
    machine.disarm(process)
    died.set()
    await asking


async def kill_again_and_again(machine: Machine, load: Load, process: str, random_: random.Random) -> int:
    """At random moments of its life, each time with all the load there; every failpoint of it once in between."""
    failpoints = dict(zip((3, 8), FAILPOINTS[process], strict=False))
    pid, kills = 0, 0
    while kills < KILLS[process]:
        pid = await alive(machine, process, pid)
        lives_s = LONG_LIFE_S if kills % 6 == 5 else random_.uniform(0, 1)
        await asyncio.sleep(lives_s)  # a random moment is the point; nothing is waited for
        if failpoint := failpoints.get(kills):
            machine.arm(process, failpoint)
        assert await load.keep(OPEN) >= OPEN
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # its last failpoint, or Postgres, was faster
        kills += 1
        if failpoint:
            await die_at(machine, load, process, failpoint)
    await alive(machine, process, pid)
    return kills


def remains() -> set[str]:
    """Cgroups of sandboxes, and mounts, on this machine."""
    cgroups = {str(path) for path in Path("/sys/fs/cgroup").glob("*/tangram/*") if path.is_dir()}
    cgroups |= {str(path) for path in Path("/sys/fs/cgroup").glob("tangram/*") if path.is_dir()}
    return cgroups | set(Path("/proc/self/mounts").read_text().splitlines())


@pytest.mark.slow
async def test_every_acknowledged_action_settles_once_whatever_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    before_anything, begun = remains(), time.monotonic()
    async with an_armed_machine(tmp_path / "state") as machine:
        url = EmbeddedPostgres(machine.directory).owner_url("tangram")
        async with machine.async_client() as client:
            load = Load(client, url, random.Random(seed))
            await load.submit(chains=25, steps=8, lone=400)
            kills = await asyncio.gather(
                *(kill_again_and_again(machine, load, each, random.Random(f"{seed} {each}")) for each in KILLS)
            )
            print(f"{sum(kills)} kills, {load.acknowledged} actions after {time.monotonic() - begun:.0f} s")
            await until_all_settled(load)
            await expect_one_truth(client, load)
            await until_free(client, load)
        assert await load.changed() == [], "a settled action never changes"
        audited = json.loads(machine.cli("audit", "-o", "json").stdout)
        assert audited["rows"]["actions"] == {"settled": load.acknowledged}
        assert set(audited["compared"]) >= {"rows", "processes", "amounts", "leftovers"}
        pids = machine.pids()
    print(f"{time.monotonic() - begun:.0f} s in all")
    assert not [pid for pid in pids if is_running(pid)], "processes outlive `down`"
    assert remains() <= before_anything
    assert not (tmp_path / "state").exists()


async def until_all_settled(load: Load) -> None:
    async with asyncio.timeout(SETTLES_S):
        while await load.look():
            await asyncio.sleep(0.2)


async def expect_one_truth(client: AsyncTangram, load: Load) -> None:
    """What ran in a kept environment is never a false failure of its code, and ran once and in order."""
    outcomes = Counter(truth[0] for truth in load.truth.values())
    print(dict(outcomes), Counter(truth[1] for truth in load.truth.values()))
    failed = [id for id, truth in load.truth.items() if truth[0] not in (Outcome.OK, Outcome.INFRA_ERROR)]
    assert not failed, [(await client.get(id)).model_dump() for id in failed[:3]]
    assert outcomes[Outcome.OK] >= load.acknowledged * 0.9
    for id, (_, step) in load.steps.items():
        if load.truth[id][0] == Outcome.OK:
            result = (await client.get(id)).result
            assert result is not None
            assert result.stdout.text.split()[-1] == str(step)


async def until_free(client: AsyncTangram, load: Load) -> None:
    """The node holds no action and no environment."""
    for trajectory in load.trajectories:
        await client.end_trajectory("chaos", trajectory)
    async with asyncio.timeout(30):
        while any(node.running or node.environments for node in (await client.nodes()).items):
            await asyncio.sleep(0.1)

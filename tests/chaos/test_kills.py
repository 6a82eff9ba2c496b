"""kill -9 of each service and of Postgres, under 200 acknowledged actions."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from arl_tangram import AsyncTangram, Outcome, SubmitAction, exec_action
from arl_wire.actions import Action
from support.conditions import is_running
from support.machine import Machine, a_machine

VICTIMS = ("gateway", "admission", "scheduler", "cpu", "postgres")
ACTIONS = 200
TRAJECTORIES = 20


def workload() -> list[SubmitAction]:
    """Short and long, fresh environments and chains of steps in kept ones; each step checks the one before."""
    actions = []
    for number in range(ACTIONS):
        step, trajectory = divmod(number, TRAJECTORIES)
        if trajectory < TRAJECTORIES // 2:
            code = (
                "import pathlib, time; p = pathlib.Path('steps'); n = len(p.read_text()) if p.exists() else 0\n"
                f"assert n == {step}, n\ntime.sleep(0.05)\np.write_text('x' * (n + 1))"
            )
            actions.append(exec_action(task="chaos", trajectory=f"t{trajectory}", source=code, memory_mib=64))
        else:
            seconds = 0.02 if number % 3 else 1.5
            argv = ["sleep", str(seconds)]
            actions.append(exec_action(task="chaos", argv=argv, memory_mib=64, cpu=0.5 if number % 2 else 1, retries=2))
    return actions


async def settled_count(client: AsyncTangram, ids: list[UUID]) -> int:
    found = await asyncio.gather(*(client.get(id) for id in ids))
    return sum(action.settled_at is not None for action in found)


@pytest.mark.slow
async def test_every_acknowledged_action_settles_once_whatever_is_killed(tmp_path: Path) -> None:
    before_anything = remains()
    with a_machine(tmp_path / "state") as machine:
        pids = machine.pids()
        async with machine.async_client() as client:
            ids = await client.submit_many(workload())
            assert await settled_count(client, ids) < ACTIONS
            for victim in VICTIMS:
                before = await settled_count(client, ids)
                assert before < ACTIONS, f"the load ended before {victim} was killed"
                machine.kill(victim)
                pids |= machine.pids()
            actions = await client.wait(ids, timeout_s=150)
            await expect_all_accounted_for(machine, client, actions)
            again = await client.wait(ids, timeout_s=10)
        audited = json.loads(machine.cli("audit", "-o", "json").stdout)
        assert audited["rows"]["actions"] == {"settled": ACTIONS}
        assert set(audited["compared"]) >= {"rows", "processes", "amounts", "leftovers"}
        assert [(a.outcome, a.settled_at, a.grant_no) for a in again] == [
            (a.outcome, a.settled_at, a.grant_no) for a in actions
        ], "a settled action never changes"
        assert all(machine.status()["processes"][victim]["restarts"] >= 1 for victim in VICTIMS)
    assert not [pid for pid in pids if is_running(pid)], "processes outlive `down`"
    assert remains() <= before_anything


def remains() -> set[str]:
    """Cgroups of sandboxes, and mounts, on this machine."""
    cgroups = {str(path) for path in Path("/sys/fs/cgroup").glob("*/tangram/*") if path.is_dir()}
    cgroups |= {str(path) for path in Path("/sys/fs/cgroup").glob("tangram/*") if path.is_dir()}
    return cgroups | set(Path("/proc/self/mounts").read_text().splitlines())


async def expect_all_accounted_for(machine: Machine, client: AsyncTangram, actions: list[Action]) -> None:
    """Nothing that ran in a kept environment is a false failure, and nothing stays taken."""
    outcomes = Counter(action.outcome for action in actions)
    failed = [(a.outcome, a.reason, a.result.stderr.text if a.result else "") for a in actions if a.outcome != "ok"]
    assert set(outcomes) <= {Outcome.OK, Outcome.INFRA_ERROR}, failed
    assert outcomes[Outcome.OK] >= ACTIONS * 0.9, failed
    for trajectory in range(TRAJECTORIES // 2):
        await client.end_trajectory("chaos", f"t{trajectory}")
    await until_free(client)


async def until_free(client: AsyncTangram) -> None:
    """The node holds no action and no environment."""
    async with asyncio.timeout(30):
        while any(node.running or node.environments for node in (await client.nodes()).items):
            await asyncio.sleep(0.1)

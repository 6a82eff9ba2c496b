"""Test that every action settles once and all resources are freed if a process dies at a failpoint."""

import asyncio
from collections import Counter
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from arl_core.domain.states import ActionState
from arl_tangram import ActionOutcome, AsyncTangram, SubmitActionRequest, exec_action
from arl_wire.actions.action import Action
from arl_wire.admin.consistency import ConsistencyReport
from support.postgres import Databases
from support.system import API_KEY, System, running_system

FAILPOINTS = {
    "admission.after_commit": "admission",
    "gateway.after_admission_ack": "gateway",
    "scheduler.after_grant_commit": "scheduler",
    "leader.between_lock_and_update": "scheduler",
    "scheduler.after_growth_commit": "scheduler",
    "scheduler.before_shrink_commit": "scheduler",
    "manager.after_running": "cpu",
    "manager.after_exit_before_settle": "cpu",
}
TRAJECTORIES, STEPS, LONE = 3, 4, 18
ACTIONS = TRAJECTORIES * STEPS + LONE + 1
SETTLES_S = 60.0
QUICK = {"TANGRAM_LEADER_TTL_S": "2"}
RESIZING = {"TANGRAM_POLICY": "spar_m"}
EXCLUSIVE = {"TANGRAM_CPU_FORM": "exclusive"}
"""Only exclusive cores are resized."""
STATES = "select count(*), count(distinct id) from actions where state = 'settled'"


def workload() -> list[SubmitActionRequest]:
    """Build chains of steps that check their predecessor, and independent actions without retries."""
    step = (
        "import pathlib; p = pathlib.Path('steps'); n = len(p.read_text()) if p.exists() else 0\n"
        "assert n == {step}, n\np.write_text('x' * (n + 1))"
    )
    kept = [
        exec_action(task="t", trajectory=f"t{t}", source=step.format(step=s), memory_mib=64, cpu=0.25)
        for s in range(STEPS)
        for t in range(TRAJECTORIES)
    ]
    seconds = ("0", "0.05", "0.3")
    lone = [
        exec_action(task="t", argv=["sleep", seconds[n % 3]], memory_mib=64, cpu=0.5)
        if n % 2 == 0
        else exec_action(
            task="t", argv=["sleep", seconds[n % 3]], memory_mib=64, cpu=(1, 2), parallel_fraction=0.9, resizable="any"
        )
        for n in range(LONE)
    ]
    return [action for pair in zip(kept, lone, strict=False) for action in pair] + lone[len(kept) :]


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", FAILPOINTS)
async def test_process_killed_at_a_failpoint_loses_and_duplicates_no_action(
    databases: Databases, failpoint: str, tmp_path: Path
) -> None:
    service, release = FAILPOINTS[failpoint], tmp_path / "release"
    overrides = {"scheduler": QUICK | RESIZING, "admission": dict(EXCLUSIVE)}
    overrides.setdefault(service, {})["TANGRAM_FAILPOINTS"] = f"{failpoint}=kill:1"
    url = await databases.clone()
    async with running_system(url, driver="unsafe-local", cores=2, overrides=overrides) as system:
        async with AsyncTangram(system.url, API_KEY) as client:
            restarting = asyncio.create_task(system.start_again_without_failpoint(service))
            wide = await a_wide_one(client, release)
            # Several requests, so that what dies in a batch has company that does not.
            batches = await asyncio.gather(*(client.submit_many(workload()[start::3]) for start in range(3)))
            others = [id for batch in batches for id in batch]
            await client.wait(others, timeout_s=SETTLES_S)
            # Nothing waits any more: by now the wide one is, or is about to be, given back what it was shrunk by.
            await asyncio.wait_for(restarting, 20)
            release.touch()
            expect_one_truth(await client.wait([wide, *others], timeout_s=SETTLES_S))
            for trajectory in range(TRAJECTORIES):
                await client.end_trajectory("t", f"t{trajectory}")
            await until_nothing_is_held(system)
        assert await count_of(url) == (ACTIONS, ACTIONS), "a batch that was sent again was admitted once"
    await databases.drop(url)


async def a_wide_one(client: AsyncTangram, release: Path) -> UUID:
    """Submit a resizable action that starts first, so that it can give up cores, and runs until released.

    Of a class of its own: what the others teach, which sleep and use no core, is not held against it.
    """
    action = await client.submit(
        task="t",
        profile="wide",
        argv=["sh", "-c", f"until test -e {release}; do sleep 0.05; done"],
        memory_mib=64,
        cpu=(1, 2),
        parallel_fraction=0.9,
        resizable="any",
    )
    async with asyncio.timeout(20):
        while (await client.get(action.id)).state == ActionState.QUEUED:
            await asyncio.sleep(0.02)
    return action.id


def expect_one_truth(actions: list[Action]) -> None:
    """Check that every action is ok and that no persistent environment reports a false user error."""
    failed = [
        (a.outcome, a.reason, a.trajectory, a.message, a.result) for a in actions if a.outcome != ActionOutcome.OK
    ]
    assert Counter(action.outcome for action in actions) == {ActionOutcome.OK: ACTIONS}, failed


async def until_nothing_is_held(system: System) -> None:
    async with system.client() as client, asyncio.timeout(30):
        while True:
            answer = await client.get("/v1/admin/consistency")
            audit = ConsistencyReport.model_validate_json(answer.content)
            if not any(entry.allocated for entry in audit.allocations) and not any(
                node.environments for node in audit.nodes
            ):
                break
            await asyncio.sleep(0.1)
    assert audit.actions == {"settled": ACTIONS}
    assert audit.findings == []


async def count_of(owner_url: str) -> tuple[int, int]:
    connection = await asyncpg.connect(owner_url)
    try:
        row = await connection.fetchrow(STATES)
    finally:
        await connection.close()
    return row[0], row[1]

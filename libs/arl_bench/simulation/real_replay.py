"""Replay of trajectories with real processes on a running system, faster than they were recorded."""

import asyncio
import time
from statistics import fmean, median, quantiles
from uuid import uuid4

from arl_core.domain.states import ActionOutcome
from arl_sim.workload import ActionWork, ResourceKind, SimTrajectory, SimWorkload
from arl_tangram.async_client import AsyncTangram
from arl_wire.actions.action import Action

__all__ = ["replay_program", "run_real_replay"]

TASK = "replay"
MEMORY_MIB, DISK_MIB = 64, 4
PERIOD_S = 0.02
"""Length of a burst of computing and of the waiting after it."""
_PROGRAM = """\
import time
left, share = {cpu_s}, {share}
while left > 0:
    began = time.process_time()
    while time.process_time() - began < min(left, {period}):
        pass
    left -= {period}
    time.sleep({period} * (1 - share) / share if left > 0 else 0)
"""


def replay_program(work: ActionWork, *, speed: float) -> str:
    """Return the source of a program that uses the CPU time of the work, a part of a core at a time."""
    share = min(1.0, float(work.choices[-1]))
    return _PROGRAM.format(cpu_s=work.seconds / speed, share=share, period=PERIOD_S * share)


async def run_real_replay(client: AsyncTangram, workload: SimWorkload, *, speed: float) -> dict[str, float]:
    """Run all trajectories together, each in an environment, and return figures in seconds.

    Only commands on cores are run; scores and calls count as thinking. Raises TangramError.
    """
    run, began = uuid4().hex[:8], time.monotonic()
    played = await asyncio.gather(
        *(_play(client, f"{run}-{number}", each, speed) for number, each in enumerate(workload.trajectories))
    )
    step_s = time.monotonic() - began
    actions = [action for each in played for action in each]
    acts = [action.times.act_s or 0.0 for action in actions] or [0.0]
    return {
        "actions": len(actions),
        "failed": sum(action.outcome is not ActionOutcome.OK for action in actions),
        "act": fmean(acts),
        "p50": median(acts),
        "p99": quantiles(acts, n=100)[98] if len(acts) > 1 else acts[0],
        "queue": fmean([action.times.queue_s or 0.0 for action in actions] or [0.0]),
        "step": step_s,
    }


async def _play(client: AsyncTangram, name: str, trajectory: SimTrajectory, speed: float) -> list[Action]:
    await asyncio.sleep(trajectory.starts_s / speed)
    found = []
    for turn in trajectory.actions:
        await asyncio.sleep(turn.think_s / speed)
        if turn.work.resource_kind is not ResourceKind.CPU:
            await asyncio.sleep(turn.work.seconds / speed)
            continue
        action = await client.run(
            task=TASK,
            trajectory=name,
            source=replay_program(turn.work, speed=speed),
            profile=turn.work.cls,
            expected_turns=len(trajectory.actions),
            step=1,
            memory_mib=MEMORY_MIB,
            disk_mib=DISK_MIB,
        )
        found.append(action)
    await client.end_trajectory(TASK, name)
    return found

"""All trajectories at once, on whatever system the client is connected to."""

import asyncio
import time
from collections.abc import Callable, Sequence
from uuid import uuid4

from arl_tangram.client import AsyncTangram
from arl_tangram.demo.attempts import Plan
from arl_tangram.demo.rollout import Rollout, roll_out
from arl_tangram.demo.verdict import Judge
from arl_wire.actions import Action

__all__ = ["run_demo"]

TASK = "demo-coding"


async def run_demo(
    client: AsyncTangram,
    plans: Sequence[Plan],
    *,
    on_action: Callable[[Action], None],
    on_rollout: Callable[[Rollout], None],
) -> tuple[list[Rollout], float]:
    """Rollouts in the order of `plans`, and the wall time in seconds."""
    judge = Judge(client, task=TASK)
    run = f"demo-{uuid4().hex[:8]}"
    begun = time.monotonic()

    async def one(plan: Plan) -> Rollout:
        rollout = await roll_out(client, judge, plan, task=TASK, run=run, on_action=on_action)
        on_rollout(rollout)
        return rollout

    rollouts = await asyncio.gather(*(one(plan) for plan in plans))
    return list(rollouts), time.monotonic() - begun

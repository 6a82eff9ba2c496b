"""Concurrent execution of all trajectories on the system that the client is connected to."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from uuid import uuid4

from arl_bench.demo.attempts import TrajectoryPlan
from arl_bench.demo.rollout import ENVIRONMENT_MEMORY_MIB, DemoRollout, run_rollout
from arl_bench.demo.verdict import MODEL_KINDS, SolutionJudge
from arl_tangram.async_client import AsyncTangram
from arl_wire.actions.action import Action

__all__ = ["max_concurrent_trajectories", "run_demo"]

TASK = "demo-coding"


async def run_demo(
    client: AsyncTangram,
    plans: Sequence[TrajectoryPlan],
    *,
    on_action: Callable[[Action], None],
    on_rollout: Callable[[DemoRollout], None],
) -> tuple[list[DemoRollout], float]:
    """Return rollouts in the order of `plans`, and the wall time in seconds."""
    judge = SolutionJudge(client, task=TASK, services=await _reward_services(client))
    room = asyncio.Semaphore(await _max_trajectories(client))
    run = f"demo-{uuid4().hex[:8]}"
    begun = time.monotonic()

    async def one(plan: TrajectoryPlan) -> DemoRollout:
        async with room:
            rollout = await run_rollout(client, judge, plan, task=TASK, run=run, on_action=on_action)
        on_rollout(rollout)
        return rollout

    # Unlike `gather`, a group that is cancelled waits until every rollout has ended its environment.
    async with asyncio.TaskGroup() as group:
        rollouts = [group.create_task(one(plan)) for plan in plans]
    return [rollout.result() for rollout in rollouts], time.monotonic() - begun


async def _reward_services(client: AsyncTangram) -> dict[str, str]:
    """Return the first available service of each kind."""
    offered = [service for service in await client.reward_services() if service.available]
    found = {kind: next((each.name for each in offered if each.kind == kind), None) for kind in MODEL_KINDS}
    return {kind: name for kind, name in found.items() if name is not None}


async def _max_trajectories(client: AsyncTangram) -> int:
    """Return how many trajectories may live at once. Their environments use at most half of the memory."""
    memory_mib = sum(node.capacity.get("memory_mib", 0) for node in (await client.nodes()).items if node.alive)
    return max(1, memory_mib // (2 * ENVIRONMENT_MEMORY_MIB))


def max_concurrent_trajectories() -> int:
    """Estimate the limit for a system that is not up yet, or slightly less: a node offers nine tenths of the memory."""
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return max(1, int(0.9 * memory_mib) // (2 * ENVIRONMENT_MEMORY_MIB))

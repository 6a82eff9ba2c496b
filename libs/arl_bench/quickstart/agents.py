"""Agents that run at once while a view of them is refreshed."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from arl_bench.demo.attempts import TrajectoryPlan, plan_trajectories
from arl_bench.demo.problems import bundled_problems
from arl_bench.demo.rollout import DemoRollout
from arl_bench.demo.run import TASK, run_demo
from arl_bench.quickstart.agents_view import AgentsView
from arl_core.domain.states import ActionState
from arl_tangram.async_client import AsyncTangram
from arl_wire.errors import TangramError

__all__ = ["agents_claim", "plan_agents", "run_agents"]

AGENTS_PER_PROBLEM = 2
# The demo's rollouts with longer thinking and shorter tests, so that 16 agents on two cores take about ten seconds.
THINKING_FACTOR = 2.0
TEST_FACTOR = 0.4


def plan_agents(agents: int, *, seed: int = 0, sandboxed: bool = True) -> tuple[TrajectoryPlan, ...]:
    """Plan two agents per problem: one submits a right solution, one a reward hack."""
    problems = bundled_problems()[: (agents + 1) // AGENTS_PER_PROBLEM]
    plans = plan_trajectories(problems, trajectories=AGENTS_PER_PROBLEM, seed=seed, sandboxed=sandboxed)
    return tuple(
        replace(
            plan,
            thinking_s=tuple(THINKING_FACTOR * seconds for seconds in plan.thinking_s),
            test_cpu_s=tuple(TEST_FACTOR * seconds for seconds in plan.test_cpu_s),
        )
        for plan in plans[:agents]
    )


async def run_agents(
    client: AsyncTangram,
    plans: Sequence[TrajectoryPlan],
    view: AgentsView,
    *,
    show: Callable[[float], None],
    interval_s: float,
) -> tuple[list[DemoRollout], float]:
    """Run all agents at once. Return their rollouts and the wall time in seconds.

    Args:
        view: receives the agents' states.
        show: called with the elapsed seconds after each update of the view.
        interval_s: seconds between two updates.
    """
    watching = asyncio.create_task(_watch(client, view, show, interval_s))
    try:
        return await run_demo(client, plans, on_action=view.on_action, on_rollout=view.on_rollout)
    finally:
        watching.cancel()
        await asyncio.wait((watching,))


def agents_claim(rollouts: Sequence[DemoRollout], *, wall_s: float, cores: float) -> str:
    """Return the result of the agents as text, from measured times and rewards."""
    actions = sum(len(rollout.actions) for rollout in rollouts)
    hacks = [rollout for rollout in rollouts if rollout.plan.attempts[-1].kind == "hack"]
    rights = [rollout for rollout in rollouts if rollout.plan.deserved_reward == 1.0]
    return (
        f"{len(rollouts)} agents shared {cores:g} cores: {actions} actions in {wall_s:.0f} s."
        f" No cores were held while the models thought, {sum(map(_thinking_s, rollouts)):.0f} s in total."
        f" {sum(rollout.reward == 1.0 for rollout in rights)} of {len(rights)} right solutions got reward 1;"
        f" {sum(rollout.reward == 0.0 for rollout in hacks)} of {len(hacks)} reward hacks got 0."
    )


def _thinking_s(rollout: DemoRollout) -> float:
    """Return the seconds in which no action of the rollout waited or ran."""
    spans = sorted((action.created_at, action.settled_at or action.created_at) for action in rollout.actions)
    active_s = 0.0
    until = None
    for start, end in spans:
        start = start if until is None else max(start, until)
        active_s += max(0.0, (end - start).total_seconds())
        until = end if until is None else max(until, end)
    return rollout.ended_s - rollout.started_s - active_s


async def _watch(client: AsyncTangram, view: AgentsView, show: Callable[[float], None], interval_s: float) -> None:
    """Update and show the view until the task is cancelled. A failed request is repeated at the next update."""
    begun = time.monotonic()
    while True:
        with suppress(TangramError):
            unsettled = [
                action
                for state in (ActionState.RUNNING, ActionState.QUEUED)
                async for action in client.list(task=TASK, state=state)
            ]
            view.update(unsettled)
        show(time.monotonic() - begun)
        await asyncio.sleep(interval_s)

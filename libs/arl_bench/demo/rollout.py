"""The rollout of one trajectory: it writes attempts, runs tests, thinks, submits code and gets a reward."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from arl_bench.demo.attempts import TrajectoryPlan
from arl_bench.demo.verdict import CODE_OUTCOMES, SolutionJudge, program_text
from arl_tangram.async_client import AsyncTangram
from arl_tangram.operations import expect_ok, fetched_files
from arl_wire.actions.action import Action
from arl_wire.errors import TangramError

__all__ = ["ENVIRONMENT_MEMORY_MIB", "DemoRollout", "run_rollout"]

TEST_TIMEOUT_S = 120.0
TEST_CORES = (1.0, 2.0)
"""Minimum and maximum cores of the tests."""
TEST_PARALLEL_FRACTION = 0.9
ENVIRONMENT_MEMORY_MIB = 96


@dataclass(slots=True)
class DemoRollout:
    plan: TrajectoryPlan
    reward: float | None = None
    reason: str = ""
    model_scores: dict[str, float] = field(default_factory=dict)
    """Scores of the submitted code by kind of reward service, for the available kinds."""
    started_s: float = 0.0
    """Monotonic time at which the first action was sent."""
    ended_s: float = 0.0
    actions: list[Action] = field(default_factory=list)
    is_environment_ended: bool = False

    @property
    def is_correct(self) -> bool:
        return self.reward == self.plan.deserved_reward


async def run_rollout(
    client: AsyncTangram,
    judge: SolutionJudge,
    plan: TrajectoryPlan,
    *,
    task: str,
    run: str,
    on_action: Callable[[Action], None],
) -> DemoRollout:
    """Run one trajectory and end its environment.

    An error in it raises nothing: the reward stays None and `reason` explains it.
    """
    rollout = DemoRollout(plan)
    trajectory = f"{run}/{plan.name}"
    rollout.started_s = time.monotonic()
    try:
        await _act(client, judge, rollout, task=task, trajectory=trajectory, on_action=on_action)
    except (TangramError, KeyError, ValueError) as error:
        rollout.reason = f"{type(error).__name__}: {error}"
    finally:
        if not rollout.is_environment_ended:
            # Also after an error, and if Ctrl-C cancels the rollout: the environment would keep its memory.
            with suppress(TangramError):
                await client.end_trajectory(task, trajectory)
    rollout.ended_s = time.monotonic()
    return rollout


async def _act(
    client: AsyncTangram,
    judge: SolutionJudge,
    rollout: DemoRollout,
    *,
    task: str,
    trajectory: str,
    on_action: Callable[[Action], None],
) -> None:
    """Run the actions of the trajectory and set its reward."""
    plan = rollout.plan

    def note(action: Action) -> Action:
        rollout.actions.append(action)
        on_action(action)
        return action

    thinking = iter(plan.thinking_s)
    note(await client.run(
        task=task, trajectory=trajectory, argv=["ls", "-la"], files={"problem.py": plan.problem.prompt},
        timeout_s=TEST_TIMEOUT_S, memory_mib=ENVIRONMENT_MEMORY_MIB,
    ))  # fmt: skip
    for attempt, cpu_s in zip(plan.attempts, plan.test_cpu_s, strict=True):
        await asyncio.sleep(next(thinking))
        request = json.dumps({"entry_point": plan.problem.entry_point, "cpu_s": cpu_s})
        note(await client.run(
            task=task, trajectory=trajectory, argv=["python3", "suite.py"], profile=f"tests:{plan.problem.task_id}",
            files={"solution.py": attempt.code, "suite.py": program_text("suite"), "request.json": request},
            timeout_s=TEST_TIMEOUT_S, memory_mib=ENVIRONMENT_MEMORY_MIB, cpu=TEST_CORES,
            parallel_fraction=TEST_PARALLEL_FRACTION,
        ))  # fmt: skip
    await asyncio.sleep(next(thinking))
    submitted = note(await client.run(
        task=task, trajectory=trajectory, argv=["true"], files={"solution.py": plan.attempts[-1].code},
        fetch=["solution.py"], memory_mib=ENVIRONMENT_MEMORY_MIB,
    ))  # fmt: skip
    solution = fetched_files(submitted).get("solution.py")
    if solution is None and submitted.outcome in CODE_OUTCOMES:
        rollout.reward, rollout.reason = 0.0, f"nothing submitted: {submitted.outcome}"
    else:
        content = fetched_files(expect_ok(submitted))["solution.py"].decode()
        verdict = await judge.score(plan.problem, content, trajectory=trajectory)
        for action in verdict.actions:
            note(action)
        rollout.reward, rollout.reason = verdict.reward, verdict.reason
        # The sandbox is no longer needed. Under static provisioning its cores stay reserved until the trajectory
        # ends.
        await client.end_trajectory(task, trajectory)
        rollout.is_environment_ended = True
        rollout.model_scores, asked = await judge.model_scores(plan.problem, content, trajectory=trajectory)
        for action in asked:
            note(action)

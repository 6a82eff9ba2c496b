"""One step of a workload on a running system: trajectories in environments, commands that burn CPU time."""

import asyncio
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from arl_bench.step.workloads import StepTurn, StepWorkload
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_wire.actions.action import Action

__all__ = ["StepHints", "StepResult", "burn_script", "calibrate", "run_step"]

TASK = "step"
MEMORY_MIB, DISK_MIB = 32, 4
CALIBRATION_LOOPS = 400_000
_SIZES: Any = {"memory_mib": MEMORY_MIB, "disk_mib": DISK_MIB}
LIMITED_CPU_S = 0.1
"""CPU-seconds of the shortest command that gets a limit; the start of a process is too large a part of shorter ones."""
SHELL_START_S = 0.002
"""CPU time of the start of a shell, which is a part of each command."""


class StepHints(StrEnum):
    """The hints that the actions of a step give about their trajectories."""

    NONE = "none"
    PROMPT = "prompt"  # the key of the prompt, which an earlier step had as well
    TURNS = "turns"  # the number of turns


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step."""

    step_s: float
    """Seconds from the first thinking to the end of the last command."""
    act_s: tuple[float, ...]
    """Completion time of each action, trajectory by trajectory."""
    cpu_s: float
    """CPU time of all commands."""
    masked: int
    """Actions that ended otherwise than `ok`, and not by their limit."""
    limited: int = 0
    """Actions that had a limit."""
    timed_out: int = 0
    """Actions that were ended by their limit."""


def burn_script(turn: StepTurn, *, loops_per_s: float) -> str:
    """Return a shell script that uses the CPU time of the turn; two processes share its parallel part."""
    work_s = max(0.0, turn.cpu_s - SHELL_START_S)
    parallel = round(loops_per_s * work_s * turn.parallel_fraction / 2)
    serial = max(1, round(loops_per_s * work_s) - 2 * parallel)
    loop = "i=0; while [ $i -lt {} ]; do i=$((i+1)); done"
    script = loop.format(serial)
    if parallel:
        share = loop.format(parallel)
        script += f"; ( {share} ) & {share}; wait"
    return script


async def calibrate(client: AsyncTangram) -> float:
    """Return the loops that a shell of the sandbox runs in a CPU-second."""
    turn = StepTurn(0.0, 1.0 + SHELL_START_S, 0.0, "calibration")
    found = []
    for _ in range(3):
        script = burn_script(turn, loops_per_s=CALIBRATION_LOOPS)
        action = await client.run(task=TASK, argv=["sh", "-c", script], **_SIZES)
        result = _check(action).result
        if result is None or not result.cpu_s:
            raise RuntimeError("the node does not measure the CPU time of actions; nothing is measured")
        found.append(CALIBRATION_LOOPS / max(1e-3, result.cpu_s - SHELL_START_S))
    return max(found)


async def run_step(
    client: AsyncTangram,
    workload: StepWorkload,
    *,
    loops_per_s: float,
    step: int = 0,
    hints: StepHints = StepHints.NONE,
    limit_factor: float | None = None,
) -> StepResult:
    """Run one step. Environments exist before it begins, as a step reuses prepared environments.

    With `limit_factor`, a command of at least `LIMITED_CPU_S` has a limit: this multiple of its time alone on a core.
    """
    names = [f"trajectory-{number}" for number in range(len(workload))]
    await asyncio.gather(*(client.run(task=TASK, trajectory=name, argv=["true"], **_SIZES) for name in names))
    began = time.monotonic()
    played = await asyncio.gather(
        *(
            _play(client, name, turns, loops_per_s, {"step": step, **_hint_options(hints, name, turns)}, limit_factor)
            for name, turns in zip(names, workload, strict=True)
        )
    )
    actions = [action for trajectory in played for action in trajectory.actions]
    return StepResult(
        step_s=max(trajectory.ended for trajectory in played) - began,
        act_s=tuple(action.times.act_s or 0.0 for action in actions),
        cpu_s=sum(action.result.cpu_s for action in actions if action.result is not None),
        masked=sum(action.outcome not in (ActionOutcome.OK, ActionOutcome.USER_TIMEOUT) for action in actions),
        limited=sum(limit_factor is not None and turn.cpu_s >= LIMITED_CPU_S for each in workload for turn in each),
        timed_out=sum(action.outcome is ActionOutcome.USER_TIMEOUT for action in actions),
    )


def _hint_options(hints: StepHints, name: str, turns: tuple[StepTurn, ...]) -> dict[str, Any]:
    match hints:
        case StepHints.PROMPT:
            return {"prompt": name}
        case StepHints.TURNS:
            return {"expected_turns": len(turns)}
        case StepHints.NONE:
            return {}


@dataclass(frozen=True, slots=True)
class _PlayedTrajectory:
    actions: list[Action]
    ended: float
    """Monotonic time of the end of its last command."""


async def _play(
    client: AsyncTangram,
    name: str,
    turns: tuple[StepTurn, ...],
    loops_per_s: float,
    options: dict[str, Any],
    limit_factor: float | None,
) -> _PlayedTrajectory:
    """Run the turns of a trajectory, then end it, as a trainer does while others of its step still run."""
    found = []
    for turn in turns:
        await asyncio.sleep(turn.think_s)
        chosen = dict(options)
        if limit_factor is not None and turn.cpu_s >= LIMITED_CPU_S:
            chosen["timeout_s"] = limit_factor * turn.cpu_s
        script = burn_script(turn, loops_per_s=loops_per_s)
        found.append(
            await client.run(
                task=TASK,
                trajectory=name,
                profile=turn.profile,
                argv=["sh", "-c", script],
                **_SIZES,
                **chosen,
            )
        )
    ended = time.monotonic()
    await client.end_trajectory(TASK, name)
    return _PlayedTrajectory(found, ended)


def _check(action: Action) -> Action:
    if action.outcome is not ActionOutcome.OK:
        raise RuntimeError(f"action {action.id} settled as {action.outcome} ({action.reason}); nothing is measured")
    return action

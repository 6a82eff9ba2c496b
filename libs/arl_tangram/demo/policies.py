"""The same rollouts under one policy after the other, each on a system of its own with the same cores."""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles
from typing import Any

from arl_tangram.bench.own_system import own_system
from arl_tangram.demo.attempts import Plan
from arl_tangram.demo.rollout import TEST_CORES, Rollout
from arl_tangram.demo.run import run_demo
from arl_wire.actions import Action

__all__ = [
    "OVERCOMMITTED",
    "POLICIES",
    "STATIC",
    "TANGRAM",
    "PolicyRun",
    "figures_of_policies",
    "run_policy",
    "samples_of_policies",
]

TANGRAM, STATIC, SHRUNK, OVERCOMMITTED = "tangram", "static", "shrunk", "overcommitted"
POLICIES = (TANGRAM, STATIC, SHRUNK, OVERCOMMITTED)


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """What became of all rollouts under one policy."""

    policy: str
    rollouts: tuple[Rollout, ...]
    wall_s: float
    cores: float
    pod_cores: float | None
    """Of each trajectory's pod; None where there are none."""

    @property
    def actions(self) -> list[Action]:
        return [action for rollout in self.rollouts for action in rollout.actions]

    @property
    def used_core_s(self) -> float:
        """By what ran in sandboxes."""
        ran = (action.result for action in self.actions if action.kind == "exec")
        return sum(result.cpu_s for result in ran if result is not None)

    @property
    def reserved_core_s(self) -> float:
        """What was held and nobody else could have: cores of actions while granted, of pods while they lived."""
        if self.pod_cores is not None:
            return self.pod_cores * sum(_life_s(rollout) for rollout in self.rollouts)
        return sum(_cores_of(action) * _granted_s(action) for action in self.actions)


def run_policy(
    policy: str,
    plans: Sequence[Plan],
    *,
    cores: int,
    driver: str,
    on_action: Callable[[Action], None],
    on_rollout: Callable[[Rollout], None],
) -> PolicyRun:
    """Raises `Unavailable` if its system does not come up. Nothing of it is left afterwards."""
    pod_cores = _pod_cores(policy, cores=cores, trajectories=len(plans))
    with own_system(driver=driver, cores=cores, environment=_settings(policy, pod_cores)) as system:

        async def go() -> tuple[list[Rollout], float]:
            async with system.client() as client:
                return await run_demo(client, plans, on_action=on_action, on_rollout=on_rollout)

        rollouts, wall_s = asyncio.run(go())
    return PolicyRun(policy, tuple(rollouts), wall_s, cores, pod_cores)


def figures_of_policies(runs: Sequence[PolicyRun]) -> dict[str, float]:
    """Flat, the policy's name before each: seconds, core-seconds, and how many rewards were not what code deserved."""
    figures: dict[str, float] = {}
    for run in runs:
        acts = sorted(action.times.act_s or 0.0 for action in run.actions)
        cuts = quantiles(acts, n=100) if len(acts) > 1 else [0.0] * 99
        found = {
            "act_mean_s": fmean(acts),
            "act_p50_s": cuts[49],
            "act_p99_s": cuts[98],
            "queue_mean_s": fmean(action.times.queue_s or 0.0 for action in run.actions),
            "overhead_mean_s": fmean(action.times.overhead_s or 0.0 for action in run.actions),
            "run_mean_s": fmean(action.times.run_s or 0.0 for action in run.actions),
            "step_s": run.wall_s,
            "trajectory_mean_s": fmean(rollout.ended_s - rollout.began_s for rollout in run.rollouts),
            "reserved_core_s": run.reserved_core_s,
            "used_core_s": run.used_core_s,
            "wrong_rewards": sum(not rollout.right for rollout in run.rollouts),
            "timeouts": sum(action.outcome == "user_timeout" for action in run.actions),
        }
        figures |= {f"{run.policy}_{name}": round(value, 4) for name, value in found.items()}
    return figures


def samples_of_policies(runs: Sequence[PolicyRun]) -> dict[str, Any]:
    """Each action's completion time in seconds, and each trajectory's, in the order of the plans."""
    return {
        run.policy: {
            "act_s": [action.times.act_s for action in run.actions],
            "trajectory_s": [round(rollout.ended_s - rollout.began_s, 3) for rollout in run.rollouts],
        }
        for run in runs
    }


def _pod_cores(policy: str, *, cores: int, trajectories: int) -> float | None:
    """As sized: what its tests can use. Shrunk: so that all trajectories have one at the same time."""
    as_sized = min(TEST_CORES[1], float(cores))
    return {STATIC: as_sized, OVERCOMMITTED: as_sized, SHRUNK: min(as_sized, cores / trajectories)}.get(policy)


def _settings(policy: str, pod_cores: float | None) -> dict[str, str]:
    """For the scheduler and the node. Whatever the user's own environment says of policies does not count here."""
    if pod_cores is None:
        return {"TANGRAM_POLICY": os.environ.get("TANGRAM_POLICY", "fcfs")}
    name = STATIC if policy == SHRUNK else policy
    return {"TANGRAM_POLICY": name, "TANGRAM_POD_CORES": f"{max(0.01, pod_cores):.4f}"}


def _life_s(rollout: Rollout) -> float:
    """From the first grant to the end of the trajectory."""
    granted = [action.granted_at for action in rollout.actions if action.granted_at is not None]
    ended = [action.settled_at for action in rollout.actions if action.settled_at is not None]
    return (max(ended) - min(granted)).total_seconds() if granted and ended else 0.0


def _granted_s(action: Action) -> float:
    if action.granted_at is None or action.settled_at is None:
        return 0.0
    return (action.settled_at - action.granted_at).total_seconds()


def _cores_of(action: Action) -> float:
    return (action.amounts or {}).get("cpu_milli", 0) / 1000

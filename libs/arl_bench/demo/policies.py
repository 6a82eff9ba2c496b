"""Runs of identical rollouts under each policy in sequence, each on a separate system with the same cores."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, quantiles
from typing import Any

from arl_bench.demo.attempts import TrajectoryPlan
from arl_bench.demo.rollout import TEST_CORES, DemoRollout
from arl_bench.demo.run import max_concurrent_trajectories, run_demo
from arl_bench.harness.bench_system import bench_system
from arl_wire.actions.action import Action

__all__ = [
    "FCFS",
    "OVERCOMMITTED",
    "PLAIN_NAMES",
    "POLICIES",
    "STATIC",
    "TANGRAM",
    "UNLIMITED",
    "PolicyRun",
    "pod_cores_of",
    "policy_figures",
    "policy_samples",
    "run_policy",
    "settings_of",
]

TANGRAM, FCFS, STATIC, SHRUNK = "tangram", "fcfs", "static", "shrunk"
OVERCOMMITTED, UNLIMITED = "overcommitted", "unlimited"
POLICIES = (TANGRAM, FCFS, STATIC, SHRUNK, OVERCOMMITTED, UNLIMITED)
PLAIN_NAMES = {
    TANGRAM: "Tangram",
    FCFS: "first come, first served",
    STATIC: "one pod per rollout",
    SHRUNK: "small pods, all at once",
    OVERCOMMITTED: "overcommitted, limited",
    UNLIMITED: "pods without limits",
}
"""Names of the policies in tables and pictures."""
MIN_POD_CPU_MILLI = 10
"""Minimum size of a pod. If more trajectories exist than pods of this size fit, some wait."""


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """The result of all rollouts under one policy."""

    policy: str
    rollouts: tuple[DemoRollout, ...]
    wall_s: float
    cores: float
    pod_cores: float | None
    """Cores of each trajectory's pod; None if the policy has no pods."""

    @property
    def actions(self) -> list[Action]:
        return [action for rollout in self.rollouts for action in rollout.actions]

    @property
    def used_core_s(self) -> float:
        """Return the core-seconds that programs in sandboxes used."""
        ran = (action.result for action in self.actions if action.kind == "exec")
        return sum(result.cpu_s for result in ran if result is not None)

    @property
    def reserved_core_s(self) -> float:
        """Return the reserved core-seconds: cores of granted actions, or cores of pods during their lifetime.

        Pods that share cores reserve nothing. For them it is the cores that running actions share, at most all cores.
        """
        if self.policy in (OVERCOMMITTED, UNLIMITED):
            return _shared_core_s(self.actions, cores=self.cores)
        if self.pod_cores is not None:
            return self.pod_cores * sum(_lifetime_s(rollout) for rollout in self.rollouts)
        return sum(_cores_of(action) * _granted_s(action) for action in self.actions)


def run_policy(
    policy: str,
    plans: Sequence[TrajectoryPlan],
    *,
    cores: int,
    driver: str,
    on_action: Callable[[Action], None],
    on_rollout: Callable[[DemoRollout], None],
) -> PolicyRun:
    """Run the plans under one policy. Raises `Unavailable` if its system does not start. All its state is removed."""
    pod_cores = pod_cores_of(policy, cores=cores, trajectories=min(len(plans), max_concurrent_trajectories()))
    with bench_system(driver=driver, cores=cores, environment=settings_of(policy, pod_cores)) as system:

        async def go() -> tuple[list[DemoRollout], float]:
            async with system.client() as client:
                return await run_demo(client, plans, on_action=on_action, on_rollout=on_rollout)

        rollouts, wall_s = asyncio.run(go())
    return PolicyRun(policy, tuple(rollouts), wall_s, cores, pod_cores)


def policy_figures(runs: Sequence[PolicyRun]) -> dict[str, float]:
    """Return figures prefixed with the policy: seconds, core-seconds and the number of wrong rewards."""
    figures: dict[str, float] = {}
    for run in runs:
        acts = sorted(action.times.act_s or 0.0 for action in run.actions)
        cuts = quantiles(acts, n=100) if len(acts) > 1 else [0.0] * 99
        found = {
            "act_mean_s": _mean(acts),
            "act_p50_s": cuts[49],
            "act_p99_s": cuts[98],
            "queue_mean_s": _mean(action.times.queue_s or 0.0 for action in run.actions),
            "overhead_mean_s": _mean(action.times.overhead_s or 0.0 for action in run.actions),
            "run_mean_s": _mean(action.times.run_s or 0.0 for action in run.actions),
            "step_s": run.wall_s,
            "trajectory_mean_s": _mean(rollout.ended_s - rollout.started_s for rollout in run.rollouts),
            "reserved_core_s": run.reserved_core_s,
            "used_core_s": run.used_core_s,
            "wrong_rewards": sum(not rollout.is_correct for rollout in run.rollouts),
            "masked": sum(rollout.reward is None for rollout in run.rollouts),
            "pod_cores": run.pod_cores or 0.0,
            "timeouts": sum(action.outcome == "user_timeout" for action in run.actions),
        }
        figures |= {f"{run.policy}_{name}": round(value, 4) for name, value in found.items()}
    return figures


def policy_samples(runs: Sequence[PolicyRun]) -> dict[str, Any]:
    """Return the completion time of each action and trajectory in seconds, in the order of the plans."""
    return {
        run.policy: {
            "act_s": [action.times.act_s for action in run.actions],
            "trajectory_s": [round(rollout.ended_s - rollout.started_s, 3) for rollout in run.rollouts],
        }
        for run in runs
    }


def pod_cores_of(policy: str, *, cores: int, trajectories: int) -> float | None:
    """Return the cores of a pod. A sized pod fits its tests; shrunk pods all fit at the same time."""
    as_sized = min(TEST_CORES[1], float(cores))
    shrunk = max(MIN_POD_CPU_MILLI, 1000 * cores // trajectories) / 1000
    return {STATIC: as_sized, OVERCOMMITTED: as_sized, UNLIMITED: as_sized, SHRUNK: min(as_sized, shrunk)}.get(policy)


def settings_of(policy: str, pod_cores: float | None) -> dict[str, str]:
    """Return the environment variables of the system. They override the user's; ours is SPAR-M with shared cores."""
    if policy == TANGRAM:
        return {"TANGRAM_POLICY": "spar_m", "TANGRAM_CPU_FORM": "shared"}
    exclusive = {"TANGRAM_POLICY": STATIC if policy == SHRUNK else policy, "TANGRAM_CPU_FORM": "exclusive"}
    return exclusive if pod_cores is None else exclusive | {"TANGRAM_POD_CORES": f"{pod_cores:.3f}"}


def _shared_core_s(actions: Sequence[Action], *, cores: float) -> float:
    """Return core-seconds of running actions. At each moment the promised cores count, limited to all cores."""
    edges = sorted(
        edge
        for action in actions
        if action.started_at is not None and action.settled_at is not None
        for edge in (
            (action.started_at.timestamp(), _cores_of(action)),
            (action.settled_at.timestamp(), -_cores_of(action)),
        )
    )
    total, promised = 0.0, 0.0
    for (at_s, change), (until_s, _) in pairwise(edges):
        promised += change
        total += min(cores, promised) * (until_s - at_s)
    return total


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return fmean(known) if known else 0.0


def _lifetime_s(rollout: DemoRollout) -> float:
    """Return the seconds from the first grant to the end of the trajectory."""
    ran = [action for action in rollout.actions if action.kind == "exec"]
    granted = [action.granted_at for action in ran if action.granted_at is not None]
    ended = [action.settled_at for action in ran if action.settled_at is not None]
    return (max(ended) - min(granted)).total_seconds() if granted and ended else 0.0


def _granted_s(action: Action) -> float:
    if action.granted_at is None or action.settled_at is None:
        return 0.0
    return (action.settled_at - action.granted_at).total_seconds()


def _cores_of(action: Action) -> float:
    return (action.allocation or {}).get("cpu_milli", 0) / 1000

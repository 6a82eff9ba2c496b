"""The paper's comparison on the real control plane: gateway, admission, scheduler, Postgres and several node managers.

The nodes are simulated: a program takes its time but no cores, and its speed follows the cores that it is granted. The
workload is the coding task of the step that `sim` simulates; all its actions need cores. The searching and scoring
tasks are left out, because such nodes have no devices. Clients think and programs run `compression` times faster than
in reality. Figures are in uncompressed seconds.

The simulator runs the same trajectories on the same cores and the same clock. The reason is that a policy has its own
times, for example between two resizes, which are not compressed. The simulator is charged with the overhead measured
here. `over_uncompressed` compares with a simulation without compression, with proportionally longer overhead. If it
differs from `over_sim`, compression has changed the policy's decisions.
"""

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, quantiles
from typing import Any

from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_bench.harness.process_usage import own_cpu_s
from arl_bench.paper.simulated import level_name
from arl_core.domain.states import ActionOutcome
from arl_core.policies.registry import POD_POLICIES, PolicyName
from arl_sim.cluster import DemandMode
from arl_sim.engine import RESIZE_S, SimOverheads
from arl_sim.results import compute_statistics
from arl_sim.sizing import SimHardware, demand_mode_for, simulate
from arl_sim.workload import ActionWork, SimTrajectory, SimWorkload, TrajectoryAction
from arl_sim.workloads.synthetic_step import synthetic_step
from arl_tangram.async_client import AsyncTangram
from arl_tangram.options import exec_action
from arl_wire.actions.action import Action, SubmitActionRequest

__all__ = ["ControlPlaneBenchConfig", "comparison_table", "run_control_plane"]

POD_CORES = 4
BASELINE_POLICY = PolicyName.FCFS
"""The policy under which no action waits for cores on the full hardware."""
MEMORY_MIB, DISK_MIB = 64, 16
TIMEOUT_S = 3600.0
_RESIZES_METRIC = re.compile(r"^tangram_resizes_total\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneBenchConfig:
    rollouts: int = 128
    nodes: int = 8
    cores: int = 64
    """Cores of each node at level 1: four per rollout."""
    turns: int | None = None
    """Maximum number of actions per trajectory, including its last one."""
    compression: float = 10.0
    levels: tuple[float, ...] = (1.0, 0.25)
    policies: tuple[PolicyName, ...] = (PolicyName.STATIC, BASELINE_POLICY, PolicyName.REFERENCE, PolicyName.SPAR_M)
    seed: int = 10

    @classmethod
    def short(cls) -> "ControlPlaneBenchConfig":
        return cls(rollouts=8, nodes=2, cores=16, turns=2, levels=(1.0,), policies=(BASELINE_POLICY, PolicyName.SPAR_M))

    def hardware(self, level: float) -> SimHardware:
        cores = max(POD_CORES, round(self.cores * level))
        return SimHardware(nodes=self.nodes, cores=cores, gpus=0, calls=1, pod_cores=POD_CORES)


@dataclass(frozen=True, slots=True)
class ActionSample:
    """The measured times of one action in seconds."""

    act_s: float
    queue_s: float
    run_s: float
    overhead_s: float
    lag_s: float
    """Seconds that are neither thinking nor the action: the client's time and the transport."""


@dataclass(frozen=True, slots=True)
class ControlPlaneRun:
    """The measured result of all trajectories under one policy."""

    policy: PolicyName
    level: float
    samples: tuple[ActionSample, ...]
    step_s: float
    busy_fraction: float
    """Fraction of this machine's processors that system and client used."""
    resizes: int


def run_control_plane(
    config: ControlPlaneBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures, and each run with the simulator's prediction. `control_over_sim` is the worst ratio."""
    workload = build_workload(config)
    base = (1.0, BASELINE_POLICY)
    wanted = [(level, policy) for level in config.levels for policy in config.policies]
    runs = {}
    for level, policy in dict.fromkeys([base, *wanted]):
        runs[level, policy] = _run_policy(config, workload, policy, level)
        report_progress(_format_run(runs[level, policy], config.compression))
    waited_s = fmean(each.queue_s for each in runs[base].samples)
    compared = [
        _compare(runs[each], config, workload, SimulatorCharge.from_run(runs[each], waited_s)) for each in wanted
    ]
    return _figures(compared), {"runs": compared}


def build_workload(config: ControlPlaneBenchConfig) -> SimWorkload:
    """Build the workload. Its choices are all whole numbers of cores in the range, as in demands of this system."""
    drawn = synthetic_step(config.seed, coding=config.rollouts, search=0, scoring=0)
    return SimWorkload(
        tuple(replace(rollout, actions=_truncate_turns(rollout, config.turns)) for rollout in drawn.trajectories)
    )


def _truncate_turns(rollout: SimTrajectory, max_turns: int | None) -> tuple[TrajectoryAction, ...]:
    kept = rollout.actions if max_turns is None else (*rollout.actions[:-1][: max_turns - 1], rollout.actions[-1])
    return tuple(replace(turn, work=_use_whole_cores(turn.work)) for turn in kept)


def _use_whole_cores(work: ActionWork) -> ActionWork:
    least, most = int(work.choices[0]), int(work.choices[-1])
    return replace(work, choices=tuple(float(cores) for cores in range(least, most + 1)))


def _run_policy(
    config: ControlPlaneBenchConfig, workload: SimWorkload, policy: PolicyName, level: float
) -> ControlPlaneRun:
    cores = config.hardware(level).cores
    environment = {
        "TANGRAM_POLICY": policy.value,
        "TANGRAM_POD_CORES": str(POD_CORES),
        "TANGRAM_CPU_FORM": "exclusive",  # as in the simulation whose times are compared
    }
    with bench_system(driver="simulated", cores=cores, nodes=config.nodes, environment=environment) as system:
        return asyncio.run(_run_rollouts(system, workload, policy, level, config.compression))


async def _run_rollouts(
    system: BenchSystem, workload: SimWorkload, policy: PolicyName, level: float, compression: float
) -> ControlPlaneRun:
    async with system.client() as client:
        loop = _RolloutDriver(client, demand_mode_for(policy), compression, has_pods=policy in POD_POLICIES)
        used, began = sum(system.cpu_s().values()) + own_cpu_s(), time.monotonic()
        ends = await asyncio.gather(
            *(loop.run_rollout(number, each) for number, each in enumerate(workload.trajectories))
        )
        wall_s = time.monotonic() - began
        used = sum(system.cpu_s().values()) + own_cpu_s() - used
        busy = used / (wall_s * len(os.sched_getaffinity(0)))
    return ControlPlaneRun(policy, level, tuple(loop.samples), max(ends) - began, busy, await _count_resizes(system))


class _RolloutDriver:
    """A driver of trajectories that think and act alternately through the real API."""

    def __init__(self, client: AsyncTangram, demand_mode: DemandMode, compression: float, *, has_pods: bool) -> None:
        self._client = client
        self._demand_mode = demand_mode
        self._compression = compression
        self._has_pods = has_pods
        self.samples: list[ActionSample] = []

    async def run_rollout(self, number: int, rollout: SimTrajectory) -> float:
        """Run a trajectory and return the end of its last action."""
        trajectory = f"rollout-{number}"
        await asyncio.sleep(rollout.starts_s / self._compression)
        # A pod exists during its whole trajectory, including the thinking before the first action.
        pod = asyncio.create_task(self._create_pod(rollout.task, trajectory)) if self._has_pods else None
        for turn in rollout.actions:
            await self._run_turn(turn, rollout.task, trajectory)
        ended = time.monotonic()
        if pod is not None:
            await pod
        await self._client.end_trajectory(rollout.task, trajectory)
        return ended

    async def _create_pod(self, task: str, trajectory: str) -> None:
        await self._client.environment(task=task, trajectory=trajectory, memory_mib=MEMORY_MIB, disk_mib=DISK_MIB)

    async def _run_turn(self, turn: TrajectoryAction, task: str, trajectory: str) -> None:
        began, think_s = time.monotonic(), turn.think_s / self._compression
        await asyncio.sleep(think_s)
        action = await self._client.run(self._action(turn.work, task, trajectory))
        self.samples.append(_to_sample(action, time.monotonic() - began - think_s))

    def _action(self, work: ActionWork, task: str, trajectory: str) -> SubmitActionRequest:
        seconds = work.seconds / self._compression
        argv = ("work", f"{seconds:.6f}", f"{work.parallel_fraction:.6f}", f"{work.choices[-1]:g}")
        common: dict[str, Any] = {"task": task, "trajectory": trajectory, "profile": work.cls, "argv": argv}
        common |= {"timeout_s": TIMEOUT_S, "memory_mib": MEMORY_MIB, "disk_mib": DISK_MIB}
        if self._demand_mode is DemandMode.FIXED or len(work.choices) == 1:
            return exec_action(
                cpu=work.fixed_units if self._demand_mode is DemandMode.FIXED else work.choices[0], **common
            )
        cpu = (work.choices[0], work.choices[-1])
        return exec_action(cpu=cpu, parallel_fraction=work.parallel_fraction, resizable="any", **common)


def _to_sample(action: Action, took_s: float) -> ActionSample:
    times = action.times
    if action.outcome is not ActionOutcome.OK or times.act_s is None:
        raise RuntimeError(f"action {action.id} settled as {action.outcome} ({action.reason}); nothing is measured")
    return ActionSample(
        times.act_s, times.queue_s or 0.0, times.run_s or 0.0, times.overhead_s or 0.0, took_s - times.act_s
    )


async def _count_resizes(system: BenchSystem) -> int:
    text = await system.read_metrics("scheduler")
    return sum(int(float(value)) for value in _RESIZES_METRIC.findall(text))


@dataclass(frozen=True, slots=True)
class SimulatorCharge:
    """The measured overhead in seconds that the simulator is charged with."""

    action_s: float
    """Seconds of an action in addition to its run that occupy its cores."""
    turn_s: float
    """Seconds that the client and the transport add to the thinking."""

    @classmethod
    def from_run(cls, run: ControlPlaneRun, waited_s: float) -> "SimulatorCharge":
        """Compute the overhead of a run. `waited_s` is an action's queueing delay if there are enough cores."""
        overhead_s = fmean(each.overhead_s for each in run.samples)
        return cls(waited_s + overhead_s, max(0.0, fmean(each.lag_s for each in run.samples)))


def _compare(
    run: ControlPlaneRun, config: ControlPlaneBenchConfig, workload: SimWorkload, charged: SimulatorCharge
) -> dict[str, Any]:
    compression = config.compression
    found: dict[str, Any] = {
        "policy": run.policy.value,
        "level": level_name(run.level),
        "actions": len(run.samples),
        **{name: compression * value for name, value in _times(run).items()},
        "charged_action_s": compression * charged.action_s,
        "charged_turn_s": compression * charged.turn_s,
        "busy": run.busy_fraction,
        "resizes": run.resizes,
    }
    predicted = _predict(run, config, workload, charged, clock=compression)
    uncompressed = _predict(run, config, workload, charged, clock=1.0)
    found |= {f"sim_{name}": value for name, value in predicted.items()}
    found |= {
        "over_sim": found["act_s"] / predicted["act_s"],
        "step_over_sim": found["step_s"] / predicted["step_s"],
        "over_uncompressed": found["act_s"] / uncompressed["act_s"],
    }
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def _times(run: ControlPlaneRun) -> dict[str, float]:
    acts = [each.act_s for each in run.samples]
    means = {
        name: fmean(getattr(each, name) for each in run.samples) for name in ("queue_s", "run_s", "overhead_s", "lag_s")
    }
    return {"act_s": fmean(acts), "p99_s": quantiles(acts, n=100)[98], "step_s": run.step_s, **means}


def _predict(
    run: ControlPlaneRun,
    config: ControlPlaneBenchConfig,
    workload: SimWorkload,
    charged: SimulatorCharge,
    *,
    clock: float,
) -> dict[str, float]:
    """Return the simulator's prediction if everything is `clock` times faster, in uncompressed seconds."""
    slower = config.compression / clock
    action_s = slower * charged.action_s
    overheads = SimOverheads(start_s=action_s, pod_start_s=action_s, resize_s=slower * RESIZE_S)
    scaled = SimWorkload(
        tuple(_scale_rollout(rollout, slower * charged.turn_s, clock) for rollout in workload.trajectories)
    )
    found = compute_statistics(simulate(scaled, run.policy.value, config.hardware(run.level), overheads))
    return {f"{name}_s": clock * getattr(found, name) for name in ("act", "p99", "step", "queue")}


def _scale_rollout(rollout: SimTrajectory, turn_s: float, clock: float) -> SimTrajectory:
    turns = tuple(
        TrajectoryAction(turn.think_s / clock + turn_s, replace(turn.work, seconds=turn.work.seconds / clock))
        for turn in rollout.actions
    )
    return SimTrajectory(rollout.task, turns, rollout.starts_s / clock)


def _figures(compared: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    figures = {
        f"control_{each['level']}_{each['policy']}_{name}_s": each[f"{name}_s"]
        for each in compared
        for name in ("act", "step", "p99")
    }
    ratios = {name: [each[name] for each in compared] for name in ("over_sim", "over_uncompressed")}
    return figures | {
        "control_over_sim": max(ratios["over_sim"]),
        "control_over_sim_mean": round(fmean(ratios["over_sim"]), 4),
        "control_over_sim_least": min(ratios["over_sim"]),
        "control_over_uncompressed_sim": max(ratios["over_uncompressed"]),
        "control_overhead_s": max(each["charged_action_s"] for each in compared),
        "control_busy": max(each["busy"] for each in compared),
    }


def comparison_table(compared: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table: results of the control plane and the simulator's predictions."""
    names = f"{'p99 s':>8} {'step s':>8} {'simulated':>10}"
    yield f"{'level':>6} {'policy':14} {'ACT s':>8} {'simulated':>10} {'ratio':>7} {names}"
    for each in compared:
        yield (
            f"{each['level']:>6} {each['policy']:14} {each['act_s']:8.2f} {each['sim_act_s']:10.2f}"
            f" {each['over_sim']:7.3f} {each['p99_s']:8.1f} {each['step_s']:8.0f} {each['sim_step_s']:10.0f}"
        )


def _format_run(run: ControlPlaneRun, compression: float) -> str:
    times = {name: compression * value for name, value in _times(run).items()}
    return (
        f"{level_name(run.level):>6} {run.policy:10} ACT {times['act_s']:6.2f} s  p99 {times['p99_s']:6.1f} s"
        f"  step {times['step_s']:5.0f} s  processors {run.busy_fraction:.0%} busy"
    )

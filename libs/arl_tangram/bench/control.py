"""The paper's comparison on the real control plane: gateway, admission, scheduler, Postgres and several node managers.

Nodes are simulated: what runs there takes its time and no cores, and follows the cores that it is given. The workload
is the coding task of the step that `sim` simulates, all of whose actions need cores; the searching and scoring tasks
beside it are left out, as such nodes have no devices. Clients think and programs run so many times as fast as they
would. Figures are in seconds as they would be.

The simulator runs the same trajectories on the same cores by the same clock, since a policy has seconds of its own
(how soon after a resize another is allowed, for instance), which are not compressed. It is charged with the overhead
that was measured here. `over_uncompressed` sets the same against a simulation in which nothing is compressed and the
overhead is as many times as long: where it differs from `over_sim`, compression changed what the policy does.
"""

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, quantiles
from typing import Any

import httpx

from arl_core.policies import PolicyName
from arl_core.states import Outcome
from arl_sim.engine import RESIZE_S, Overheads
from arl_sim.prototype import prototype
from arl_sim.results import statistics_of
from arl_sim.site import Asking
from arl_sim.sizing import PODS, Hardware, asking_of, simulate
from arl_sim.workload import Rollout, Turn, Work, Workload
from arl_tangram.bench.cpu_time import own_cpu_s
from arl_tangram.bench.own_system import OwnSystem, own_system
from arl_tangram.bench.paper import level_name
from arl_tangram.client import AsyncTangram
from arl_tangram.options import exec_action
from arl_wire.actions import Action, SubmitAction
from arl_wire.environments import CreateEnvironment

__all__ = ["Sizes", "run_control", "table"]

POD_CORES = 4
BASE = PolicyName.FCFS
"""The policy under which, on all of the hardware, no action waits for cores."""
HOME = {"memory_mib": 64, "disk_mib": 16}
TIMEOUT_S = 3600.0
_RESIZES = re.compile(r"^tangram_resizes_total\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    rollouts: int = 128
    nodes: int = 8
    cores: int = 64
    """Of each node at level 1: four of a rollout."""
    turns: int | None = None
    """Of each trajectory at most; its last is one of them."""
    compression: float = 10.0
    levels: tuple[float, ...] = (1.0, 0.25)
    policies: tuple[PolicyName, ...] = (PolicyName.STATIC, BASE, PolicyName.REFERENCE, PolicyName.SPAR_M)
    seed: int = 10

    @classmethod
    def short(cls) -> "Sizes":
        return cls(rollouts=8, nodes=2, cores=16, turns=2, levels=(1.0,), policies=(BASE, PolicyName.SPAR_M))

    def hardware(self, level: float) -> Hardware:
        cores = max(POD_CORES, round(self.cores * level))
        return Hardware(nodes=self.nodes, cores=cores, gpus=0, calls=1, pod_cores=POD_CORES)


@dataclass(frozen=True, slots=True)
class Seen:
    """One action, by the clock: seconds."""

    act_s: float
    queue_s: float
    run_s: float
    overhead_s: float
    lag_s: float
    """Of its turn, that is neither thinking nor the action: its client's, and on the way to it."""


@dataclass(frozen=True, slots=True)
class Run:
    """All trajectories under one policy, by the clock."""

    policy: PolicyName
    level: float
    seen: tuple[Seen, ...]
    step_s: float
    busy: float
    """Part of this machine's processors that system and client used."""
    resizes: int


def run_control(sizes: Sizes, say: Callable[[str], None]) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures, and of each run what the simulator says beside it. The worst ratio is the one that counts."""
    workload = workload_of(sizes)
    base = (1.0, BASE)
    wanted = [(level, policy) for level in sizes.levels for policy in sizes.policies]
    runs = {}
    for level, policy in dict.fromkeys([base, *wanted]):
        runs[level, policy] = _run(sizes, workload, policy, level)
        say(_line(runs[level, policy], sizes.compression))
    waited_s = fmean(each.queue_s for each in runs[base].seen)
    compared = [_compared(runs[each], sizes, workload, Charged.of(runs[each], waited_s)) for each in wanted]
    return _figures(compared), {"runs": compared}


def workload_of(sizes: Sizes) -> Workload:
    """With every whole number of cores between the least and the most, as a demand of this system has them."""
    drawn = prototype(sizes.seed, coding=sizes.rollouts, search=0, scoring=0)
    return Workload(tuple(replace(rollout, turns=_turns(rollout, sizes.turns)) for rollout in drawn.rollouts))


def _turns(rollout: Rollout, most: int | None) -> tuple[Turn, ...]:
    kept = rollout.turns if most is None else (*rollout.turns[:-1][: most - 1], rollout.turns[-1])
    return tuple(replace(turn, work=_by_whole_cores(turn.work)) for turn in kept)


def _by_whole_cores(work: Work) -> Work:
    least, most = int(work.choices[0]), int(work.choices[-1])
    return replace(work, choices=tuple(float(cores) for cores in range(least, most + 1)))


def _run(sizes: Sizes, workload: Workload, policy: PolicyName, level: float) -> Run:
    cores = sizes.hardware(level).cores
    environment = {"TANGRAM_POLICY": policy.value, "TANGRAM_POD_CORES": str(POD_CORES)}
    with own_system(driver="simulated", cores=cores, nodes=sizes.nodes, environment=environment) as system:
        return asyncio.run(_drive(system, workload, policy, level, sizes.compression))


async def _drive(system: OwnSystem, workload: Workload, policy: PolicyName, level: float, compression: float) -> Run:
    async with system.client() as client:
        loop = _Loop(client, asking_of(policy), compression, has_pods=policy in PODS)
        used, began = sum(system.cpu_s().values()) + own_cpu_s(), time.monotonic()
        ends = await asyncio.gather(*(loop.roll_out(number, each) for number, each in enumerate(workload.rollouts)))
        wall_s = time.monotonic() - began
        used = sum(system.cpu_s().values()) + own_cpu_s() - used
        busy = used / (wall_s * len(os.sched_getaffinity(0)))
    return Run(policy, level, tuple(loop.seen), max(ends) - began, busy, await _resizes(system))


class _Loop:
    """Every trajectory thinks, acts and thinks again, by the real API."""

    def __init__(self, client: AsyncTangram, asking: Asking, compression: float, *, has_pods: bool) -> None:
        self._client = client
        self._asking = asking
        self._compression = compression
        self._has_pods = has_pods
        self.seen: list[Seen] = []

    async def roll_out(self, number: int, rollout: Rollout) -> float:
        """When its last action was over."""
        trajectory = f"rollout-{number}"
        await asyncio.sleep(rollout.starts_s / self._compression)
        home = CreateEnvironment(task=rollout.task, trajectory=trajectory, **HOME)
        # A pod is there for the whole of its trajectory, which also thinks before it acts.
        pod = asyncio.create_task(self._client.create_environment(home)) if self._has_pods else None
        for turn in rollout.turns:
            await self._take(turn, rollout.task, trajectory)
        ended = time.monotonic()
        if pod is not None:
            await pod
        await self._client.end_trajectory(rollout.task, trajectory)
        return ended

    async def _take(self, turn: Turn, task: str, trajectory: str) -> None:
        began, think_s = time.monotonic(), turn.think_s / self._compression
        await asyncio.sleep(think_s)
        action = await self._client.run(self._action(turn.work, task, trajectory))
        self.seen.append(_seen(action, time.monotonic() - began - think_s))

    def _action(self, work: Work, task: str, trajectory: str) -> SubmitAction:
        seconds = work.seconds / self._compression
        argv = ("work", f"{seconds:.6f}", f"{work.parallel_fraction:.6f}", f"{work.choices[-1]:g}")
        common: dict[str, Any] = {"task": task, "trajectory": trajectory, "profile": work.cls, "argv": argv}
        common |= {"timeout_s": TIMEOUT_S, **HOME}
        if self._asking is Asking.FIXED or len(work.choices) == 1:
            return exec_action(cpu=work.asked if self._asking is Asking.FIXED else work.choices[0], **common)
        cpu = (work.choices[0], work.choices[-1])
        return exec_action(cpu=cpu, parallel_fraction=work.parallel_fraction, resizable="any", **common)


def _seen(action: Action, took_s: float) -> Seen:
    times = action.times
    if action.outcome is not Outcome.OK or times.act_s is None:
        raise RuntimeError(f"action {action.id} settled as {action.outcome} ({action.reason}); nothing is measured")
    return Seen(times.act_s, times.queue_s or 0.0, times.run_s or 0.0, times.overhead_s or 0.0, took_s - times.act_s)


async def _resizes(system: OwnSystem) -> int:
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{system.url_of('scheduler')}/metrics")).text
    return sum(int(float(value)) for value in _RESIZES.findall(text))


@dataclass(frozen=True, slots=True)
class Charged:
    """What the simulator is charged with, by the clock: seconds."""

    action_s: float
    """What an action takes besides its run, on its cores."""
    turn_s: float
    """What its client and the way to it add to its thinking."""

    @classmethod
    def of(cls, run: Run, waited_s: float) -> "Charged":
        """What this very run had of it; an action waited for `waited_s` where there were cores for all."""
        overhead_s = fmean(each.overhead_s for each in run.seen)
        return cls(waited_s + overhead_s, max(0.0, fmean(each.lag_s for each in run.seen)))


def _compared(run: Run, sizes: Sizes, workload: Workload, charged: Charged) -> dict[str, Any]:
    compression = sizes.compression
    found: dict[str, Any] = {
        "policy": run.policy.value,
        "level": level_name(run.level),
        "actions": len(run.seen),
        **{name: compression * value for name, value in _times(run).items()},
        "charged_action_s": compression * charged.action_s,
        "charged_turn_s": compression * charged.turn_s,
        "busy": run.busy,
        "resizes": run.resizes,
    }
    predicted = _predicted(run, sizes, workload, charged, clock=compression)
    uncompressed = _predicted(run, sizes, workload, charged, clock=1.0)
    found |= {f"sim_{name}": value for name, value in predicted.items()}
    found |= {
        "over_sim": found["act_s"] / predicted["act_s"],
        "step_over_sim": found["step_s"] / predicted["step_s"],
        "over_uncompressed": found["act_s"] / uncompressed["act_s"],
    }
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def _times(run: Run) -> dict[str, float]:
    acts = [each.act_s for each in run.seen]
    means = {
        name: fmean(getattr(each, name) for each in run.seen) for name in ("queue_s", "run_s", "overhead_s", "lag_s")
    }
    return {"act_s": fmean(acts), "p99_s": quantiles(acts, n=100)[98], "step_s": run.step_s, **means}


def _predicted(run: Run, sizes: Sizes, workload: Workload, charged: Charged, *, clock: float) -> dict[str, float]:
    """What the simulator says of the same where all goes `clock` times as fast; in seconds as they would be."""
    slower = sizes.compression / clock
    action_s = slower * charged.action_s
    overheads = Overheads(start_s=action_s, pod_start_s=action_s, resize_s=slower * RESIZE_S)
    scaled = Workload(tuple(_scaled(rollout, slower * charged.turn_s, clock) for rollout in workload.rollouts))
    found = statistics_of(simulate(scaled, run.policy.value, sizes.hardware(run.level), overheads))
    return {f"{name}_s": clock * getattr(found, name) for name in ("act", "p99", "step", "queue")}


def _scaled(rollout: Rollout, turn_s: float, clock: float) -> Rollout:
    turns = tuple(
        Turn(turn.think_s / clock + turn_s, replace(turn.work, seconds=turn.work.seconds / clock))
        for turn in rollout.turns
    )
    return Rollout(rollout.task, turns, rollout.starts_s / clock)


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


def table(compared: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """For people: what the control plane did, and what the simulator says of the same."""
    names = f"{'p99 s':>8} {'step s':>8} {'simulated':>10}"
    yield f"{'level':>6} {'policy':14} {'ACT s':>8} {'simulated':>10} {'ratio':>7} {names}"
    for each in compared:
        yield (
            f"{each['level']:>6} {each['policy']:14} {each['act_s']:8.2f} {each['sim_act_s']:10.2f}"
            f" {each['over_sim']:7.3f} {each['p99_s']:8.1f} {each['step_s']:8.0f} {each['sim_step_s']:10.0f}"
        )


def _line(run: Run, compression: float) -> str:
    times = {name: compression * value for name, value in _times(run).items()}
    return (
        f"{level_name(run.level):>6} {run.policy:10} ACT {times['act_s']:6.2f} s  p99 {times['p99_s']:6.1f} s"
        f"  step {times['step_s']:5.0f} s  processors {run.busy:.0%} busy"
    )

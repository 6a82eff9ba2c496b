"""A benchmark of the scaling of pools: node-hours and completion times under bursts of recorded agent runs.

A burst is one training step: all of its trajectories start together, and the next burst begins some time after the last
trajectory has ended. The same bursts run on a fixed pool of the peak size and on a pool that scales. The nodes are
simulated processes of this machine, so commands sleep and use no core. Environments keep memory from the first command
of a trajectory to its end, so memory limits how many trajectories a node takes.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_core.domain.states import ActionOutcome
from arl_sim.workloads.agent_runs import AgentRun, load_agent_runs, peak_commands
from arl_tangram.async_client import AsyncTangram
from arl_wire.errors import Unavailable

__all__ = ["AutoscaleBenchConfig", "run_autoscale"]

POLL_S = 0.5
ENVIRONMENT_MIB = 2048
READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 180.0
POOLS = ("fixed", "scaled")


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleBenchConfig:
    """Sizes of the bursts and of the pools."""

    repeats: int = 1
    agent: str = "mini-swe-agent"
    trajectories: int = 48
    """Trajectories of a burst."""
    bursts: int = 2
    gap_s: float = 240.0
    """Recorded seconds between two bursts, in which the trainer updates its weights."""
    speed: float = 2.0
    """Factor by which thinking, running and gaps are shortened. The start of a node is not shortened."""
    cores: int = 4
    """Cores of each node."""
    environments: int = 8
    """Environments of trajectories for which a node has memory."""
    min_nodes: int = 2
    target_s: float = 1.0
    cooldown_s: float = 15.0
    seed: int = 1

    @property
    def node_mib(self) -> int:
        """Return the memory of a node. The scheduler keeps an eighth of it free of environments."""
        return ceil(self.environments * ENVIRONMENT_MIB * 8 / 7) + 1


@dataclass(slots=True)
class _PoolResult:
    act_s: list[float] = field(default_factory=list)
    node_s: float = 0.0
    wall_s: float = 0.0
    peak_nodes: int = 0


def run_autoscale(
    config: AutoscaleBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples. The order of the two pools alternates between the repeats.

    Raises `Unavailable` if the system or a node does not start.
    """
    bursts = _bursts(config)
    nodes = max(ceil(max(map(peak_commands, bursts)) / config.cores), ceil(config.trajectories / config.environments))
    least = min(config.min_nodes, nodes)
    options = {
        "fixed": f"min={nodes},max={nodes}",
        "scaled": f"min={least},max={nodes},target={config.target_s},cooldown={config.cooldown_s}",
    }
    results: dict[str, list[_PoolResult]] = {name: [] for name in POOLS}
    for repeat in range(config.repeats):
        for name in POOLS if repeat % 2 == 0 else reversed(POOLS):
            report_progress(f"repeat {repeat + 1} of {config.repeats}: {name} pool, {options[name]}")
            with bench_system(driver="simulated", cores=1, listen="127.0.0.1") as system:
                pool = f"{name}:{options[name]},cores={config.cores},driver=simulated,drain=3600"
                results[name].append(asyncio.run(_measure(system, pool, bursts, config)))
    return _figures(results, nodes), _samples(results)


def _bursts(config: AutoscaleBenchConfig) -> list[tuple[AgentRun, ...]]:
    """Return the runs of each burst, chosen at random and shortened."""
    chance = random.Random(config.seed)
    runs = load_agent_runs(config.agent)
    return [
        tuple(_shortened(run, config.speed) for run in chance.sample(runs, min(config.trajectories, len(runs))))
        for _ in range(config.bursts)
    ]


def _shortened(run: AgentRun, speed: float) -> AgentRun:
    turns = tuple((think_s / speed, run_s / speed) for think_s, run_s in run.turns)
    return AgentRun(run.id, run.source, run.agent, turns)


async def _measure(
    system: BenchSystem, pool: str, bursts: Sequence[tuple[AgentRun, ...]], config: AutoscaleBenchConfig
) -> _PoolResult:
    """Run the bursts on one pool. The own node of the system takes no action."""
    name, result = pool.partition(":")[0], _PoolResult()
    async with system.client() as client:
        for node in (await client.nodes()).items:
            await client.change_node(node.name, cordoned=True)
        async with _controlled(system, client, name, pool, memory_mib=config.node_mib):
            started, done = time.monotonic(), asyncio.Event()
            counting = asyncio.create_task(_count_nodes(client, name, result, done))
            for number, burst in enumerate(bursts):
                found = await asyncio.gather(*(_play(client, f"{number}-{at}", run) for at, run in enumerate(burst)))
                result.act_s += [act_s for each in found for act_s in each]
                await asyncio.sleep(config.gap_s / config.speed)
            done.set()
            await counting
            result.wall_s = time.monotonic() - started
    return result


@asynccontextmanager
async def _controlled(
    system: BenchSystem, client: AsyncTangram, name: str, pool: str, *, memory_mib: int
) -> AsyncIterator[None]:
    """Run a controller of the pool, with the smallest number of nodes ready. At the end, stop its nodes."""
    log = system.directory / "controller.log"
    controller = _start_controller(system, pool, log, memory_mib=memory_mib)
    try:
        await _until_ready(client, name, controller, log)
        yield
    finally:
        controller.send_signal(signal.SIGINT)
        try:
            await asyncio.to_thread(controller.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            controller.kill()
            raise Unavailable(f"the nodes of pool {name} did not stop: {_last_lines(log)}") from None


def _start_controller(system: BenchSystem, pool: str, log: Path, *, memory_mib: int) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TANGRAM_")}
    options = ["--dir", str(system.directory), "--pool", pool, "--stop-nodes"]
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "arl_tangram.cli", "engine", "local", *options],
            env=environment | {"TANGRAM_MEMORY_MIB": str(memory_mib)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


async def _until_ready(client: AsyncTangram, name: str, controller: subprocess.Popen[bytes], log: Path) -> None:
    ends_at = time.monotonic() + READY_TIMEOUT_S
    while True:
        state = next((each for each in (await client.pools()).items if each.name == name), None)
        if state is not None and state.ready and state.ready == state.wanted:
            return
        if controller.poll() is not None or time.monotonic() > ends_at:
            raise Unavailable(f"pool {name} did not start: {_last_lines(log)}")
        await asyncio.sleep(POLL_S)


async def _count_nodes(client: AsyncTangram, name: str, result: _PoolResult, done: asyncio.Event) -> None:
    """Add up the seconds of all nodes that the engine has, from their start to their end."""
    last = time.monotonic()
    while not done.is_set():
        present = next(each.present for each in (await client.pools()).items if each.name == name)
        now = time.monotonic()
        result.node_s += present * (now - last)
        result.peak_nodes = max(result.peak_nodes, present)
        last = now
        await asyncio.sleep(POLL_S)


async def _play(client: AsyncTangram, trajectory: str, run: AgentRun) -> list[float]:
    """Run the commands of one trajectory in its environment. Return their completion times.

    Raises RuntimeError if an action does not succeed.
    """
    found = []
    for think_s, run_s in run.turns:
        await asyncio.sleep(think_s)
        action = await client.run(
            task="burst",
            trajectory=trajectory,
            scope="trajectory",
            argv=["sleep", f"{run_s:.3f}"],
            memory_mib=ENVIRONMENT_MIB,
            disk_mib=16,
        )
        if action.outcome is not ActionOutcome.OK or action.settled_at is None:
            raise RuntimeError(f"action {action.id} settled as {action.outcome} ({action.reason})")
        found.append((action.settled_at - action.created_at).total_seconds())
    await client.end_trajectory("burst", trajectory)
    return found


def _last_lines(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-1000:]


def _figures(results: dict[str, list[_PoolResult]], nodes: int) -> dict[str, float]:
    figures: dict[str, float] = {"nodes_at_peak": nodes}
    for name, runs in results.items():
        acts = [act_s for run in runs for act_s in run.act_s]
        figures[f"{name}_node_hours"] = round(median(run.node_s for run in runs) / 3600, 4)
        figures[f"{name}_act_mean_s"] = round(fmean(acts), 3)
        figures[f"{name}_act_p99_s"] = round(quantiles(acts, n=100)[98], 3)
        figures[f"{name}_wall_s"] = round(median(run.wall_s for run in runs), 1)
        figures[f"{name}_peak_nodes"] = max(run.peak_nodes for run in runs)
    for what in ("node_hours", "act_mean_s", "wall_s"):
        figures[f"{what.removesuffix('_s')}_ratio"] = round(figures[f"scaled_{what}"] / figures[f"fixed_{what}"], 3)
    return figures


def _samples(results: dict[str, list[_PoolResult]]) -> dict[str, Any]:
    return {
        name: [
            {
                "node_s": round(run.node_s, 1),
                "wall_s": round(run.wall_s, 1),
                "act_s": [round(act_s, 4) for act_s in run.act_s],
            }
            for run in runs
        ]
        for name, runs in results.items()
    }

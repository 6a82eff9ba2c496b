"""A benchmark of shared cores: exclusive actions beside shared ones, limits of time, and the cost of the control.

One program with an exclusive core does a fixed amount of work, alternately alone and beside many shared programs that
always want a core. Then training steps run whose commands have tight limits: a command must not be ended because it
waited for a core.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_bench.harness.process_usage import process_cpu_s
from arl_bench.step.run import StepHints, calibrate, run_step
from arl_bench.step.workloads import StepWorkloadName, make_workload
from arl_core.domain.states import ActionOutcome, ActionState
from arl_tangram.async_client import AsyncTangram

__all__ = ["CoreSharingBenchConfig", "run_core_sharing"]

TASK = "core-sharing"
POLL_INTERVAL_S = 0.1
CONTROL_PROCESSES = ("cpu", "cpu-launcher")
"""The processes that set weights and read counters for actions with shared cores."""
_FIXED_WORK = """
import json, time
began = time.monotonic()
for _ in range({loops}):
    pass
print(json.dumps(time.monotonic() - began))
"""
_BUSY_LOOP = "while True: pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSharingBenchConfig:
    """Sizes of the measurements."""

    repeats: int = 5
    shared: int = 40
    """Number of shared programs beside the exclusive one."""
    observed_s: float = 5.0
    """Seconds for which the control of the running shared programs is observed in each repeat."""
    loops: int = 60_000_000
    """Loops of the exclusive program; about a second."""
    limit_factor: float = 1.5
    """Limits of the commands of a step, relative to their time alone on one core."""
    workloads: tuple[StepWorkloadName, ...] = tuple(StepWorkloadName)
    seeds: int = 1


def run_core_sharing(
    config: CoreSharingBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples."""
    with bench_system() as system:
        figures, samples = asyncio.run(_exclusive_beside_shared(system, config, report_progress))
    for workload in config.workloads:
        limited = timed_out = 0
        for seed in range(501, 501 + config.seeds):
            with bench_system() as system:
                has_limit, ended = asyncio.run(_step_with_limits(system, workload, seed, config))
            limited, timed_out = limited + has_limit, timed_out + ended
        figures |= {f"{workload}_limited": float(limited), f"{workload}_false_timeouts": float(timed_out)}
        report_progress(f"{workload}: {timed_out} of {limited} commands were ended by their limit")
    return figures, samples


async def _exclusive_beside_shared(
    system: BenchSystem, config: CoreSharingBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    alone, beside, control = [], [], []
    async with system.client() as client:
        cores = sum(node.capacity.get("cpu_milli", 0) for node in (await client.nodes()).items) / 1000
        if cores < 2:
            raise RuntimeError("a node with two cores or more is needed: one is exclusive, and the others are shared")
        await _fixed_work_s(client, config.loops)
        for repeat in range(config.repeats):
            alone.append(await _fixed_work_s(client, config.loops))
            async with _shared_programs(client, config.shared):
                beside.append(await _fixed_work_s(client, config.loops))
                before_s, began = _control_cpu_s(system), time.monotonic()
                await asyncio.sleep(config.observed_s)
                control.append((_control_cpu_s(system) - before_s) / (time.monotonic() - began) / cores)
            report_progress(f"repeat {repeat + 1}: alone {alone[-1]:.3f} s, beside {beside[-1]:.3f} s")
    figures = {
        f"exclusive_beside_{config.shared}_ratio": round(median(beside) / median(alone), 4),
        "exclusive_alone_spread": round(max(alone) / min(alone), 4),
        "control_fraction_of_node": round(median(control), 5),
    }
    return figures, {"alone_s": alone, "beside_s": beside, "control_fraction": control}


def _control_cpu_s(system: BenchSystem) -> float:
    pids = system.process_pids()
    return sum(process_cpu_s(pids[name]) for name in CONTROL_PROCESSES)


async def _fixed_work_s(client: AsyncTangram, loops: int) -> float:
    """Return the seconds that the program with an exclusive core measures itself."""
    source = _FIXED_WORK.format(loops=loops)
    action = await client.run(task=TASK, source=source, cpu=1, exclusive=True, memory_mib=64, priority=1)
    if action.outcome is not ActionOutcome.OK or action.result is None:
        raise RuntimeError(f"action {action.id} settled as {action.outcome} ({action.reason}); nothing is measured")
    return float(json.loads(action.result.stdout.text))


@asynccontextmanager
async def _shared_programs(client: AsyncTangram, count: int) -> AsyncIterator[None]:
    """Run `count` shared programs that always want a core, as long as the context lasts.

    Each declares that it needs little, so that all of them run at once.
    """
    submitted = await asyncio.gather(
        *(
            client.submit(task=TASK, source=_BUSY_LOOP, cpu=0.01, exclusive=False, memory_mib=32, timeout_s=3600)
            for _ in range(count)
        )
    )
    ids = [action.id for action in submitted]
    try:
        for each in ids:
            while (await client.get(each)).state is not ActionState.RUNNING:  # noqa: ASYNC110
                await asyncio.sleep(POLL_INTERVAL_S)
        yield
    finally:
        await asyncio.gather(*(client.cancel(each) for each in ids))
        await client.wait(ids)


async def _step_with_limits(
    system: BenchSystem, workload: StepWorkloadName, seed: int, config: CoreSharingBenchConfig
) -> tuple[int, int]:
    """Return how many commands of one step had a limit, and how many were ended by it."""
    async with system.client() as client:
        loops_per_s = await calibrate(client)
        result = await run_step(
            client,
            make_workload(workload, seed),
            loops_per_s=loops_per_s,
            hints=StepHints.TURNS,
            limit_factor=config.limit_factor,
        )
    if result.masked:
        raise RuntimeError(f"{result.masked} commands of {workload} did not end as `ok`")
    return result.limited, result.timed_out

"""A benchmark of granted cores: how exactly actions get them, and how fast a resize takes effect.

Two busy processes get half a core, one and two, alternately in an action and as a plain program. Then the cores of a
running action change through the CPU manager's internal call that the scheduler uses. Measured are the time to its
response and the time until the usage of cores follows.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from arl_bench.harness.bench_system import EXCLUSIVE_CORES, BenchSystem, bench_system
from arl_bench.sandboxes.plain_cgroup import PlainCgroup, plain_cgroup
from arl_bench.sandboxes.resizable_action import ResizableAction, running_resizable_action
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_tangram.options import exec_action

__all__ = ["CpuAllocationBenchConfig", "run_cpu_allocation"]

TASK = "cpu-allocation"
CORE_AMOUNTS = {"half": 0.5, "one": 1.0, "two": 2.0}
SAMPLE_INTERVAL_S = 0.01
QUOTA_PERIOD_S = 0.1
"""Seconds of a quota period."""
LOW_CPU_MILLI, HIGH_CPU_MILLI = 100, 1000
CLEAR_CHANGE_CPU_S = 0.04
"""CPU seconds in two periods: twice the usage at the low amount, a fifth of the usage at the high amount."""

BURNER_PROGRAM = """
import json, os, resource, time

begun = time.monotonic()
for _ in range(2):
    if os.fork() == 0:
        while time.monotonic() < begun + {seconds}:
            for _ in range(1000):
                pass
        os._exit(0)
for _ in range(2):
    os.wait()
used = resource.getrusage(resource.RUSAGE_CHILDREN)
cores = (used.ru_utime + used.ru_stime) / (time.monotonic() - begun)
print(json.dumps({{"cores": cores, "on": sorted(os.sched_getaffinity(0))}}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuAllocationBenchConfig:
    """Sizes of the measurements."""

    repeats: int = 5
    seconds: float = 2.0
    """Seconds of each burner."""
    resizes: int = 50
    """Number of timed resizes."""
    steps: int = 12
    """Number of resizes after which the usage is measured."""
    settle_s: float = 0.6
    """Seconds of usage measurement after each resize."""


@dataclass(slots=True)
class _CpuAllocationSamples:
    cores: dict[str, list[float]] = field(default_factory=dict)
    resize_ms: list[float] = field(default_factory=list)
    usage_follows_ms: list[float] = field(default_factory=list)


def run_cpu_allocation(
    config: CpuAllocationBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any], str]:
    """Return figures, samples, and the limits that the plain program shares with an action."""
    with (
        bench_system(environment=EXCLUSIVE_CORES) as system,
        plain_cgroup(system.process_pids()["cpu-launcher"]) as plain,
    ):
        rows = asyncio.run(_measure(system, plain, config, report_progress))
        limits = plain.limits
    samples = {**rows.cores, "resize_ms": rows.resize_ms, "use_follows_ms": rows.usage_follows_ms}
    return _figures(rows), {name: [round(each, 4) for each in samples[name]] for name in samples}, limits


async def _measure(
    system: BenchSystem, plain: PlainCgroup, config: CpuAllocationBenchConfig, report_progress: Callable[[str], None]
) -> _CpuAllocationSamples:
    rows = _CpuAllocationSamples()
    async with system.client() as client:
        amounts = {name: cpu for name, cpu in CORE_AMOUNTS.items() if cpu <= await _node_cores(client)}
        for repeat in range(config.repeats):
            report_progress(f"repeat {repeat + 1} of {config.repeats}")
            for name, cpu in amounts.items():
                ours = await _run_in_action(client, cpu, config.seconds)
                program = BURNER_PROGRAM.format(seconds=config.seconds)
                theirs = await asyncio.to_thread(plain.run, program, cpu=cpu, cores=ours["on"])
                rows.cores.setdefault(f"cores_at_{name}", []).append(ours["cores"])
                rows.cores.setdefault(f"plain_at_{name}", []).append(theirs["cores"])
        report_progress(f"{config.resizes} resizes, then {config.steps} more with a look at the use of cores")
        seconds = 60 + config.steps * 2 * config.settle_s
        action = exec_action(task=TASK, source=BURNER_PROGRAM.format(seconds=seconds), cpu=1)
        async with running_resizable_action(system, client, action) as burner:
            for number in range(config.resizes):
                rows.resize_ms.append(1000 * await burner.resize(HIGH_CPU_MILLI if number % 2 else HIGH_CPU_MILLI // 2))
            rows.usage_follows_ms = await _measure_resize_effect(burner, config)
    return rows


async def _node_cores(client: AsyncTangram) -> float:
    return sum(node.capacity.get("cpu_milli", 0) for node in (await client.nodes()).items) / 1000


async def _run_in_action(client: AsyncTangram, cpu: float, seconds: float) -> dict[str, Any]:
    action = await client.run(exec_action(task=TASK, source=BURNER_PROGRAM.format(seconds=seconds), cpu=cpu))
    if action.outcome is not ActionOutcome.OK or action.result is None:
        raise RuntimeError(f"action {action.id} settled as {action.outcome} ({action.reason}); nothing is measured")
    found: dict[str, Any] = json.loads(action.result.stdout.text)
    return found


async def _measure_resize_effect(burner: ResizableAction, config: CpuAllocationBenchConfig) -> list[float]:
    """Return milliseconds until usage follows each resize. A growth that a busy machine does not show is skipped."""
    found = []
    for step in range(config.steps):
        grows = step % 2 == 1
        await burner.resize(HIGH_CPU_MILLI if grows else LOW_CPU_MILLI)
        looks = [(time.monotonic(), burner.cpu_used_s())]
        while looks[-1][0] < looks[0][0] + config.settle_s:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            looks.append((time.monotonic(), burner.cpu_used_s()))
        followed_s = _growth_delay_s(looks) if grows else _shrink_delay_s(looks)
        if followed_s is not None:
            found.append(1000 * followed_s)
    return found


def _growth_delay_s(readings: Sequence[tuple[float, float]]) -> float | None:
    """Return the seconds until the usage exceeded the first reading by `CLEAR_CHANGE_CPU_S`, or None."""
    begun, used = readings[0]
    return next((at - begun for at, used_then in readings if used_then - used > CLEAR_CHANGE_CPU_S), None)


def _shrink_delay_s(readings: Sequence[tuple[float, float]]) -> float:
    """Return the seconds after which no two periods used more than `CLEAR_CHANGE_CPU_S`."""
    seen_at = readings[0][0]
    for (at, used), following in pairwise(readings):
        within = [used_then for then, used_then in readings if at <= then <= at + 2 * QUOTA_PERIOD_S]
        if within[-1] - used > CLEAR_CHANGE_CPU_S:
            seen_at = following[0]
    return seen_at - readings[0][0]


def _figures(rows: _CpuAllocationSamples) -> dict[str, float]:
    """Return the best of the repeats for each amount. Other load on the machine can only reduce it."""
    figures = {name: round(max(samples), 4) for name, samples in rows.cores.items()}
    for name in CORE_AMOUNTS:
        if f"cores_at_{name}" in figures:
            ratio = figures[f"cores_at_{name}"] / figures[f"plain_at_{name}"]
            figures[f"ours_over_plain_at_{name}"] = round(ratio, 4)
    figures["resize_ms"] = round(median(rows.resize_ms), 3)
    figures["resize_max_ms"] = round(max(rows.resize_ms), 3)
    if rows.usage_follows_ms:
        figures["use_follows_ms"] = round(median(rows.usage_follows_ms), 1)
        figures["use_follows_max_ms"] = round(max(rows.usage_follows_ms), 1)
    return figures

"""A benchmark of very many idle environments on one node: their cost, and their effect on an exec."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_bench.harness.process_usage import descendants, pss_mib
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_tangram.cli.system.host_resources import HostResourceScanner
from arl_tangram.options import exec_action
from arl_wire.actions.action import SubmitActionRequest
from arl_wire.errors import TangramError

__all__ = ["DensityBenchConfig", "run_density"]

TASK = "density"
CREATE_BATCH = 100
END_CONCURRENCY = 16
SETTLE_S = 3.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DensityBenchConfig:
    """Sizes of the measurements."""

    environments: int = 2000
    memory_mib: int = 8
    samples: int = 300
    idle_s: float = 20.0


def run_density(
    config: DensityBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples. The node is empty, then full, then empty again."""
    with bench_system() as system:
        return asyncio.run(_measure(system, config, report_progress))


async def _measure(
    system: BenchSystem, config: DensityBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    async with system.client() as client:
        report_progress("an empty node")
        await _time_execs(client, config.samples // 4)  # opens connections, warms paths
        empty = await _time_execs(client, config.samples)
        charged, by = _charged_mib(system)
        report_progress(f"{config.environments} environments")
        begun = time.monotonic()
        await _create_environments(client, config)
        created_s = time.monotonic() - begun
        full = await _time_execs(client, config.samples)
        charged = _charged_mib(system)[0] - charged
        report_progress(f"{config.idle_s:g} s of rest")
        idle = await _idle_cores(system, config.idle_s)
        report_progress("an empty node again")
        await _end_environments(client, config)
        again = await _time_execs(client, config.samples)
    figures = {
        "mib_per_environment": round(charged / config.environments, 3),
        "idle_cores": round(sum(idle.values()), 4),
        "exec_p50_ms_empty": round(median(empty + again), 3),
        "exec_p50_ms_full": round(median(full), 3),
        "exec_p50_ratio": round(median(full) / median(empty + again), 3),
        "create_per_s": round(config.environments / created_s, 1),
    }
    return figures, {"empty_ms": empty, "full_ms": full, "empty_again_ms": again, "idle_cores": idle, "charged_by": by}


async def _create_environments(client: AsyncTangram, config: DensityBenchConfig) -> None:
    """Create environments by a first exec in each."""
    for first in range(0, config.environments, CREATE_BATCH):
        numbers = range(first, min(first + CREATE_BATCH, config.environments))
        actions = [_true_action(f"resting-{number}", config.memory_mib) for number in numbers]
        for settled in await client.wait(await client.submit_many(actions)):
            if settled.outcome is not ActionOutcome.OK:
                raise TangramError(f"action {settled.id} settled as {settled.outcome} ({settled.message})")


async def _end_environments(client: AsyncTangram, config: DensityBenchConfig) -> None:
    left = iter(range(config.environments))

    async def lane() -> None:
        for number in left:
            await client.end_trajectory(TASK, f"resting-{number}")

    await asyncio.gather(*(lane() for _ in range(END_CONCURRENCY)))
    # The probe's environment remains.
    while any(node.environments > 1 for node in (await client.nodes()).items):  # noqa: ASYNC110
        await asyncio.sleep(SETTLE_S / 10)


async def _time_execs(client: AsyncTangram, count: int) -> list[float]:
    """Return the milliseconds of sequential execs in one persistent environment."""
    took = []
    for _ in range(count):
        begun = time.monotonic()
        settled = await client.run(_true_action("probe", 64))
        took.append(round(1000 * (time.monotonic() - begun), 3))
        if settled.outcome is not ActionOutcome.OK:
            raise TangramError(f"action {settled.id} settled as {settled.outcome} ({settled.message})")
    return took


async def _idle_cores(system: BenchSystem, seconds: float) -> dict[str, float]:
    """Return the cores that each process and its descendants use. The launcher's include all environments."""
    await asyncio.sleep(SETTLE_S)
    before, begun = system.cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    after, wall_s = system.cpu_s(), time.monotonic() - begun
    return {name: round((after[name] - before[name]) / wall_s, 5) for name in after}


def _charged_mib(system: BenchSystem) -> tuple[float, str]:
    """Return the memory of all environments: the charge of their cgroups, or the Pss if there are no cgroups."""
    for tree in HostResourceScanner(system.directory).cgroup_trees():
        for name in ("memory.usage_in_bytes", "memory.current"):
            if (tree / name).exists():
                return sum(int(path.read_text()) for path in tree.glob(f"*/{name}")) / MIB, name
    pids = descendants(system.process_pids()["cpu-launcher"])
    return sum(map(pss_mib, pids)), "Pss"


def _true_action(trajectory: str, memory_mib: int) -> SubmitActionRequest:
    argv = ["true"]
    return exec_action(task=TASK, trajectory=trajectory, argv=argv, memory_mib=memory_mib, disk_mib=1, cpu=0.2)

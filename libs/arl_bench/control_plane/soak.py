"""A soak test: very many no-op actions on a simulated node with a short retention, to detect growth."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_tangram.options import exec_action

__all__ = ["RETENTION_SETTINGS", "run_soak"]

RETENTION_SETTINGS = {"TANGRAM_ACTION_RETENTION_S": "30", "TANGRAM_IDEMPOTENCY_KEY_RETENTION_S": "60"}
BATCH = 250
CONCURRENT_BATCHES = 4
SIMULATED_CORES = 64
SAMPLE_COUNT = 20
MIB = 1 << 20
_TABLE_SIZE_METRIC = re.compile(r'^tangram_table_bytes\{table="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass(slots=True)
class _SoakState:
    system: BenchSystem
    total: int
    act_s: list[float] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)
    submitted: int = 0
    samples_taken: int = 0


def run_soak(total: int, report_progress: Callable[[str], None]) -> tuple[dict[str, float], dict[str, Any]]:
    """Run `total` actions. Return figures and samples in the order in which the actions settled."""
    with bench_system(driver="simulated", cores=SIMULATED_CORES, environment=RETENTION_SETTINGS) as system:
        soak = _SoakState(system, total)
        begun = time.monotonic()
        asyncio.run(_run_batches(soak, report_progress))
        wall_s = time.monotonic() - begun
    return _figures(soak, wall_s), {"over_time": soak.samples}


async def _run_batches(soak: _SoakState, report_progress: Callable[[str], None]) -> None:
    async with soak.system.client() as client:

        async def look() -> None:
            soak.samples_taken += 1
            soak.samples.append(await _measure_sample(soak))
            report_progress(f"{len(soak.act_s)} of {soak.total}")

        await asyncio.gather(*(_submit_batches(soak, client, look) for _ in range(CONCURRENT_BATCHES)))


async def _submit_batches(soak: _SoakState, client: AsyncTangram, take_sample: Callable[[], Awaitable[None]]) -> None:
    action = exec_action(task="soak", argv=["true"], memory_mib=8, disk_mib=1, cpu=0.1)
    while soak.submitted < soak.total:
        count = min(BATCH, soak.total - soak.submitted)
        soak.submitted += count
        for settled in await client.wait(await client.submit_many([action] * count)):
            if settled.outcome is not ActionOutcome.OK or settled.times.act_s is None:
                raise RuntimeError(f"action {settled.id} settled as {settled.outcome} ({settled.reason})")
            soak.act_s.append(settled.times.act_s)
        if len(soak.act_s) >= soak.total * (soak.samples_taken + 1) // SAMPLE_COUNT:
            await take_sample()


async def _measure_sample(soak: _SoakState) -> dict[str, float]:
    """Return the memory of each process and the size of each table in MiB."""
    found: dict[str, float] = {"settled": len(soak.act_s)}
    for name, pid in soak.system.process_pids().items():
        found[f"{name}_mib"] = round(_resident_kib(pid) / 1024, 2)
    metrics = await soak.system.read_metrics("admission")
    for table, size in _TABLE_SIZE_METRIC.findall(metrics):
        found[f"table_{table}_mib"] = round(float(size) / MIB, 2)
    return found


def _resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def _figures(soak: _SoakState, wall_s: float) -> dict[str, float]:
    """Compare the second quarter with the last one. Start-up and the first retention period are over by then."""
    tenth = len(soak.act_s) // 10
    first, last = _p99(soak.act_s[:tenth]), _p99(soak.act_s[-tenth:])
    figures = {
        "actions": float(len(soak.act_s)),
        "per_s": round(len(soak.act_s) / wall_s, 1),
        "act_p50_s": round(median(soak.act_s), 4),
        "act_p99_first_s": round(first, 4),
        "act_p99_last_s": round(last, 4),
        "act_p99_last_over_first": round(last / first, 4),
    }
    quarter = len(soak.samples) // 4
    for name in soak.samples[-1]:
        if name.endswith("_mib"):
            early = median(sample[name] for sample in soak.samples[quarter : 2 * quarter])
            late = median(sample[name] for sample in soak.samples[-quarter:])
            figures[f"{name.removesuffix('_mib')}_late_over_early"] = round(late / early, 4)
    return figures


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98]

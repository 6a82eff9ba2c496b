"""A benchmark of the number of nodes: throughput, latency and CPU time of the control plane.

Simulated nodes of 64 cores load the control plane. Three real nodes and Ray tasks run the same program, `true`.
"""

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from arl_bench.control_plane.overhead import BenchRate, OverheadBenchConfig, measure_cost, run_noops
from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_bench.harness.database_queries import DatabaseWork, read_database_work
from arl_bench.harness.joined_node import joined_node
from arl_bench.harness.process_usage import loopback_bytes, tree_cpu_s
from arl_bench.rewards.peer_servers import install_packages
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_tangram.options import exec_action
from arl_wire.actions.action import Action

__all__ = ["RAY_PACKAGE", "SIMULATED_CORES", "ScaleBenchConfig", "run_scale"]

NODE_COUNTS = (1, 2, 4, 8)
SIMULATED_CORES = 64
REAL_NODES = 3
RAY_PACKAGE = "ray==2.60.0"
TASK = "scale"
_RAY_PROGRAM = Path(__file__).parents[1] / "peers" / "ray_subprocess.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleBenchConfig:
    """Sizes of the measurements."""

    repeats: int = 3
    seconds: float = 8.0
    """Seconds of each measurement of throughput."""
    starts: int = 100
    """Single actions per repeat, one after the other, for the latency."""
    idle_s: float = 5.0
    """Seconds without actions, for the cost of the nodes' heartbeats."""
    batch: int = 250
    batches: int = 4


@dataclass(slots=True)
class _Measured:
    rates: list[BenchRate] = field(default_factory=list)
    work: list[DatabaseWork] = field(default_factory=list)
    """Work of Postgres during each measurement of throughput."""
    network_bytes: list[int] = field(default_factory=list)
    """Bytes over the loopback interface during each measurement; Postgres' private socket is not part of it."""
    idle: list[tuple[DatabaseWork, float]] = field(default_factory=list)
    """Work of Postgres, and CPU seconds of all processes, while idle."""
    start_ms: list[float] = field(default_factory=list)


def run_scale(
    config: ScaleBenchConfig, peers: Path | None, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples. `peers` is the directory in which Ray is installed; None leaves Ray out.

    One system is up at a time. The order of the numbers of nodes alternates between the repeats.
    """
    measured = {name: _Measured() for name in (*map(str, NODE_COUNTS), f"real_{REAL_NODES}")}
    ray: list[float] = []
    python = install_packages("ray", (RAY_PACKAGE,), peers) if peers is not None else None
    for repeat in range(config.repeats):
        counts = NODE_COUNTS if repeat % 2 == 0 else tuple(reversed(NODE_COUNTS))
        for count in counts:
            report_progress(f"repeat {repeat + 1} of {config.repeats}: {count} simulated nodes")
            with bench_system(driver="simulated", cores=SIMULATED_CORES, nodes=count) as system:
                asyncio.run(_measure(system, config, measured[str(count)], simulated=True))
        report_progress(f"repeat {repeat + 1} of {config.repeats}: {REAL_NODES} real nodes")
        _measure_real_nodes(config, measured[f"real_{REAL_NODES}"])
        if python is not None:
            report_progress(f"repeat {repeat + 1} of {config.repeats}: Ray tasks")
            ray.append(_ray_rate(python, config.seconds))
    return _figures(measured, ray, config), _samples(measured, ray)


def _measure_real_nodes(config: ScaleBenchConfig, into: _Measured) -> None:
    with ExitStack() as stack:
        system = stack.enter_context(bench_system(listen="127.0.0.1"))
        pids = [stack.enter_context(joined_node(system)) for _ in range(REAL_NODES - 1)]
        asyncio.run(_measure(system, config, into, simulated=False, nodes=pids))


async def _measure(
    system: BenchSystem, config: ScaleBenchConfig, into: _Measured, *, simulated: bool, nodes: list[int] | None = None
) -> None:
    """Measure throughput and latency. CPU time of joined nodes, whose supervisors are `nodes`, counts too."""
    async with system.client() as client:
        work = _run_noops if simulated else _run_programs
        await _check([await client.run(_true_action("warm"))])
        before, database = sum(map(tree_cpu_s, nodes or ())), await read_database_work(system)
        network = loopback_bytes()
        rate = await measure_cost(system, work(client, config))
        into.network_bytes.append(loopback_bytes() - network)
        into.work.append((await read_database_work(system)).since(database))
        rate.cpu_s["nodes"] = sum(map(tree_cpu_s, nodes or ())) - before
        into.rates.append(rate)
        into.idle.append(await _measure_idle(system, config.idle_s))
        for number in range(config.starts):
            action = await client.run(_true_action(f"start-{number % 8}"))
            await _check([action])
            assert action.started_at is not None
            into.start_ms.append((action.started_at - action.created_at).total_seconds() * 1000)


async def _measure_idle(system: BenchSystem, seconds: float) -> tuple[DatabaseWork, float]:
    """Return the work of Postgres and the CPU seconds of all processes in a time without actions."""
    cpu_s, database = sum(system.cpu_s().values()), await read_database_work(system)
    await asyncio.sleep(seconds)
    return (await read_database_work(system)).since(database), sum(system.cpu_s().values()) - cpu_s


def _run_noops(client: AsyncTangram, config: ScaleBenchConfig) -> Awaitable[int]:
    sizes = OverheadBenchConfig(seconds=config.seconds, batch=config.batch, batches=config.batches)
    return run_noops(client, sizes, cpu=1.0)  # a whole core each, so that all nodes get some of the 1,000 in flight


async def _run_programs(client: AsyncTangram, config: ScaleBenchConfig) -> int:
    """Run `true` in environments on all nodes, with two batches in flight."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + config.seconds
    actions = [_true_action(f"program-{number % 48}") for number in range(config.batch)]

    async def pump() -> int:
        done = 0
        while loop.time() < ends_at:
            done += await _check(await client.wait(await client.submit_many(actions)))
        return done

    return sum(await asyncio.gather(pump(), pump()))


def _true_action(trajectory: str) -> Any:
    return exec_action(task=TASK, trajectory=trajectory, argv=["true"], memory_mib=64, disk_mib=16, cpu=0.1)


async def _check(actions: list[Action]) -> int:
    bad = next((action for action in actions if action.outcome is not ActionOutcome.OK), None)
    if bad is not None:
        raise RuntimeError(f"action {bad.id} settled as {bad.outcome} ({bad.reason}); nothing is measured")
    return len(actions)


def _ray_rate(python: Path, seconds: float) -> float:
    """Return Ray tasks per second. Each task runs `true` as a subprocess."""
    with tempfile.TemporaryDirectory(prefix="tangram-ray-", ignore_cleanup_errors=True) as path:
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        environment |= {"PEER_DIRECTORY": path, "RAY_USAGE_STATS_ENABLED": "0"}
        command = [str(python), "-P", str(_RAY_PROGRAM), str(seconds)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Ray failed: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return float(found["done"] / found["wall_s"])


def _figures(measured: dict[str, _Measured], ray: list[float], config: ScaleBenchConfig) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, each in measured.items():
        starts = quantiles(each.start_ms, n=100)
        figures[f"actions_per_s_{name}"] = round(median(rate.per_s for rate in each.rates), 1)
        figures[f"submit_to_start_p50_ms_{name}"] = round(starts[49], 2)
        figures[f"submit_to_start_p99_ms_{name}"] = round(starts[98], 2)
        cpu = [rate.cpu_ms() - rate.cpu_ms("client") for rate in each.rates]
        figures[f"cpu_ms_per_action_{name}"] = round(median(cpu), 3)
        pairs = list(zip(each.work, each.rates, strict=True))
        for counter in ("wal_bytes", "transactions", "row_versions"):
            value = median(work.per(rate.done)[counter] for work, rate in pairs)
            figures[f"{counter}_per_action_{name}"] = value
        network = [sent / rate.done for sent, rate in zip(each.network_bytes, each.rates, strict=True)]
        figures[f"network_bytes_per_action_{name}"] = round(median(network))
        figures[f"idle_transactions_per_s_{name}"] = median(
            work.per(config.idle_s)["transactions"] for work, _ in each.idle
        )
        figures[f"idle_wal_bytes_per_s_{name}"] = median(work.per(config.idle_s)["wal_bytes"] for work, _ in each.idle)
        figures[f"idle_cpu_ms_per_s_{name}"] = round(median(1000 * cpu_s / config.idle_s for _, cpu_s in each.idle), 2)
    if ray:
        figures["ray_subprocess_per_s"] = round(median(ray), 1)
    return figures


def _samples(measured: dict[str, _Measured], ray: list[float]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: {
            "done": [rate.done for rate in each.rates],
            "wall_s": [round(rate.wall_s, 3) for rate in each.rates],
            "cpu_ms_each": [
                {process: round(1000 * seconds / rate.done, 4) for process, seconds in rate.cpu_s.items()}
                for rate in each.rates
            ],
            "postgres": [work.per(rate.done) for work, rate in zip(each.work, each.rates, strict=True)],
            "network_bytes": each.network_bytes,
            "idle": [work.per(1.0) | {"cpu_s": round(cpu_s, 3)} for work, cpu_s in each.idle],
            "start_ms": [round(value, 3) for value in each.start_ms],
        }
        for name, each in measured.items()
    }
    return found | {"ray_subprocess_per_s": [round(value, 1) for value in ray]}

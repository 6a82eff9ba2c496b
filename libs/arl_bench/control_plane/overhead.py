"""A benchmark of scheduling overhead: actions per second and CPU time per action compared with plain processes.

Each repeat runs five measurements. Three run `true`: plain spawns, the API in batches, and the API one by one. The
fourth runs no-op actions on a simulated node. The fifth is the time from sending an action to its program's first
statement on an idle system.
"""

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_bench.harness.process_usage import own_cpu_s
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_tangram.options import exec_action
from arl_wire.actions.action import Action, SubmitActionRequest

__all__ = ["BenchRate", "OverheadBenchConfig", "measure_cost", "run_noops", "run_overhead"]

Samples = dict[str, list[float]]
TASK = "overhead"
NOOP_CORES = 0.1
TIMESTAMP_PROGRAM = "import time\nprint(time.monotonic_ns())"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadBenchConfig:
    """Sizes of the measurements."""

    repeats: int = 3
    seconds: float = 20.0
    """Seconds of no-ops; each of the other rates takes a quarter of it."""
    starts: int = 100
    """Number of idle starts per repeat."""
    environments: int = 16
    clients: int = 32
    batch: int = 250
    batches: int = 4
    """Number of concurrent batches of no-ops."""
    simulated_cores: int = 64


@dataclass(slots=True)
class BenchRate:
    """Completed actions in a period, and their cost."""

    done: int
    wall_s: float
    cpu_s: dict[str, float] = field(default_factory=dict)

    @property
    def per_s(self) -> float:
        return self.done / self.wall_s

    def cpu_ms(self, *names: str) -> float:
        """Return CPU milliseconds per action, for the named processes or for all."""
        return 1000 * sum(seconds for name, seconds in self.cpu_s.items() if not names or name in names) / self.done


def run_overhead(
    config: OverheadBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples. Two systems are up during the run; only one of them works at a time."""
    with bench_system() as real, bench_system(driver="simulated", cores=config.simulated_cores) as simulated:
        rows = asyncio.run(_measure(real, simulated, config, report_progress))
    return _figures(rows), {name: [_to_sample(sample) for sample in samples] for name, samples in rows.items()}


async def _measure(
    real: BenchSystem, simulated: BenchSystem, config: OverheadBenchConfig, report_progress: Callable[[str], None]
) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {name: [] for name in ("plain", "batch", "single", "noop", "start_ms")}
    async with real.client() as client, simulated.client() as noops:
        await _warm_up(client, noops, config)
        for repeat in range(config.repeats):
            report_progress(f"repeat {repeat + 1} of {config.repeats}")
            rows["plain"].append(await asyncio.to_thread(_spawn_plain, config))
            rows["batch"].append(await measure_cost(real, _run_batches(client, config)))
            rows["single"].append(await measure_cost(real, _run_singles(client, config)))
            rows["noop"].append(await measure_cost(simulated, run_noops(noops, config)))
            rows["start_ms"] += await _time_starts(client, config.starts)
    return rows


async def _warm_up(client: AsyncTangram, noops: AsyncTangram, config: OverheadBenchConfig) -> None:
    """Create every environment and open every connection."""
    for names in (_names("batch", config.environments), _names("single", config.clients), ["start"]):
        _count_ok(await client.wait(await client.submit_many([_true_action(name) for name in names])))
    _count_ok(await noops.wait(await noops.submit_many([_noop_action()] * config.batch)))


def _spawn_plain(config: OverheadBenchConfig) -> BenchRate:
    """Spawn processes and wait for them, with one thread per environment."""
    ends_at = time.monotonic() + config.seconds / 4

    def spawn(_: int) -> int:
        done = 0
        while time.monotonic() < ends_at:
            subprocess.run(["/bin/true"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            done += 1
        return done

    begun = time.monotonic()
    with ThreadPoolExecutor(config.environments) as threads:
        done = sum(threads.map(spawn, range(config.environments)))
    return BenchRate(done, time.monotonic() - begun)


async def _run_batches(client: AsyncTangram, config: OverheadBenchConfig) -> int:
    """Run `true` in the live environments in batches. A second batch is submitted while one runs."""
    names = _names("batch", config.environments)
    actions = [_true_action(names[number % len(names)]) for number in range(config.batch)]
    return await _run_workers(client, actions, workers=2, seconds=config.seconds / 4)


async def run_noops(client: AsyncTangram, config: OverheadBenchConfig, *, cpu: float = NOOP_CORES) -> int:
    """Run batches of no-ops of `cpu` cores each for `config.seconds`. Return their number."""
    actions = [_noop_action(cpu)] * config.batch
    return await _run_workers(client, actions, workers=config.batches, seconds=config.seconds)


async def _run_workers(
    client: AsyncTangram, actions: Sequence[SubmitActionRequest], *, workers: int, seconds: float
) -> int:
    """Return the number of completed actions. Each worker has one batch in flight."""
    ends_at = time.monotonic() + seconds

    async def pump() -> int:
        done = 0
        while time.monotonic() < ends_at:
            done += _count_ok(await client.wait(await client.submit_many(actions)))
        return done

    return sum(await asyncio.gather(*(pump() for _ in range(workers))))


async def _run_singles(client: AsyncTangram, config: OverheadBenchConfig) -> int:
    """Run one client per environment. Each sends the next `POST /v1/actions?wait` after its response."""
    ends_at = time.monotonic() + config.seconds / 4

    async def pump(name: str) -> int:
        done = 0
        while time.monotonic() < ends_at:
            done += _count_ok([await client.run(_true_action(name))])
        return done

    return sum(await asyncio.gather(*map(pump, _names("single", config.clients))))


async def _time_starts(client: AsyncTangram, count: int) -> list[float]:
    """Measure milliseconds from the client's call to the program's first statement. Both use the machine's clock."""
    action = exec_action(task=TASK, trajectory="start", source=TIMESTAMP_PROGRAM, memory_mib=64)
    found = []
    for _ in range(count):
        sent = time.monotonic_ns()
        settled = await client.run(action)
        _count_ok([settled])
        assert settled.result is not None
        found.append((int(settled.result.stdout.text) - sent) / 1e6)
    return found


async def measure_cost(system: BenchSystem, work: Awaitable[int]) -> BenchRate:
    """Measure the duration of some work and the CPU time of every process of the system."""
    before, own, begun = system.cpu_s(), own_cpu_s(), time.monotonic()
    done = await work
    wall_s = time.monotonic() - begun
    after = system.cpu_s()
    used = {name: after[name] - before.get(name, 0.0) for name in after} | {"client": own_cpu_s() - own}
    return BenchRate(done, wall_s, used)


def _count_ok(actions: Sequence[Action]) -> int:
    bad = next((action for action in actions if action.outcome is not ActionOutcome.OK), None)
    if bad is not None:
        raise RuntimeError(f"action {bad.id} settled as {bad.outcome} ({bad.reason}); nothing is measured")
    return len(actions)


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(count)]


def _true_action(trajectory: str) -> SubmitActionRequest:
    return exec_action(task=TASK, trajectory=trajectory, argv=["true"], memory_mib=64, cpu=0.1)


def _noop_action(cpu: float = NOOP_CORES) -> SubmitActionRequest:
    return exec_action(task=TASK, argv=["true"], memory_mib=8, disk_mib=1, cpu=cpu)


def _figures(rows: dict[str, list[Any]]) -> dict[str, float]:
    def middle(name: str, value: Callable[[BenchRate], float]) -> float:
        return round(median(value(sample) for sample in rows[name]), 3)

    starts = quantiles(rows["start_ms"], n=100)
    return {
        "plain_exec_per_s": middle("plain", lambda rate: rate.per_s),
        "tangram_exec_per_s": middle("batch", lambda rate: rate.per_s),
        "tangram_exec_cpu_ms": middle("batch", lambda rate: rate.cpu_ms()),
        "tangram_exec_single_per_s": middle("single", lambda rate: rate.per_s),
        "tangram_exec_single_cpu_ms": middle("single", lambda rate: rate.cpu_ms()),
        "client_cpu_ms": middle("single", lambda rate: rate.cpu_ms("client")),
        "tangram_noop_per_s": middle("noop", lambda rate: rate.per_s),
        "cpu_ms_per_noop": middle("noop", lambda rate: rate.cpu_ms()),
        "client_cpu_ms_per_noop": middle("noop", lambda rate: rate.cpu_ms("client")),
        "idle_submit_to_start_p50_ms": round(starts[49], 3),
        "idle_submit_to_start_p99_ms": round(starts[98], 3),
    }


def _to_sample(sample: BenchRate | float) -> Any:
    if not isinstance(sample, BenchRate):
        return round(sample, 3)
    cpu = {name: round(1000 * seconds / sample.done, 4) for name, seconds in sample.cpu_s.items()}
    return {"done": sample.done, "wall_s": round(sample.wall_s, 3), "cpu_ms_each": cpu}

"""A benchmark of environments: from creation to the first command, bursts, forks, and beside other sandboxes.

Each latency is what a client sees through the API. The CPU time of a creation is that of all processes of the system
and covers the end of the environment as well.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_bench.sandboxes.environment_peers import e2b_command_ms, podman_run_ms, swerex_create_ms
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_tangram.environment_handles import AsyncEnvironment
from arl_wire.errors import TangramError, Unavailable

__all__ = ["EnvironmentBenchConfig", "run_environment_speed"]

TASK = "environments"
CONCURRENCY = 50
LIVE_BATCH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentBenchConfig:
    """Sizes of the measurements."""

    repeats: int = 3
    creations: int = 100
    """Environments of each repeat, one after the other and `CONCURRENCY` at a time."""
    burst: int = 1000
    """Environments that are created at once."""
    live: int = 2000
    """Environments that exist at the same time; 0 to leave this out."""
    forks: int = 64
    memory_mib: int = 8


def run_environment_speed(
    config: EnvironmentBenchConfig, peers: Path | None, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples. `peers` is a directory for the packages of peers; None to leave them out."""
    samples: dict[str, list[float]] = {}
    with bench_system() as system:
        figures = asyncio.run(_measure(system, config, samples, report_progress))
        if peers is not None:
            _add_peers(system, config, peers, samples, report_progress)
    for name, values in samples.items():
        figures[f"{name.removesuffix('_ms')}_p50_ms"] = round(median(values), 2)
        figures[f"{name.removesuffix('_ms')}_p99_ms"] = round(_p99(values), 2)
    # The concurrency ends the name, after the percentile.
    figures = {_with_concurrency_last(name): value for name, value in figures.items()}
    return figures, {name: [round(value, 3) for value in values] for name, values in samples.items()}


def _with_concurrency_last(name: str) -> str:
    for mark in ("_c1", f"_c{CONCURRENCY}"):
        if f"{mark}_" in name:
            return name.replace(f"{mark}_", "_") + mark
    return name


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98] if len(values) > 1 else values[0]


async def _measure(
    system: BenchSystem,
    config: EnvironmentBenchConfig,
    samples: dict[str, list[float]],
    report_progress: Callable[[str], None],
) -> dict[str, float]:
    figures: dict[str, float] = {}
    async with system.client() as client:
        await _first_commands(client, config, 10, 1)  # opens connections, fills the pool of prepared environments
        for repeat in range(config.repeats):
            report_progress(f"repeat {repeat + 1} of {config.repeats}: environments with their first command")
            for concurrency in (1, CONCURRENCY):
                took = await _first_commands(client, config, config.creations, concurrency)
                samples.setdefault(f"create_first_command_c{concurrency}_ms", []).extend(took)
        figures["create_cpu_ms"] = await _creation_cpu_ms(system, client, config)
        report_progress(f"{config.forks} forks of one environment")
        samples[f"fork_{config.forks}_ms"], figures[f"fork_{config.forks}_at_once_s"] = await _forks(client, config)
        report_progress(f"{config.burst} environments at once")
        figures |= await _burst(client, config, samples)
        if config.live:
            report_progress(f"{config.live} environments that exist together")
            figures["live"] = await _live(client, config)
    return figures


def _add_peers(
    system: BenchSystem,
    config: EnvironmentBenchConfig,
    directory: Path,
    samples: dict[str, list[float]],
    report_progress: Callable[[str], None],
) -> None:
    measurements: Mapping[str, Callable[[], list[float]]] = {
        "e2b_command_ms": lambda: e2b_command_ms(system, directory, config.creations),
        "swerex_create_first_command_ms": lambda: swerex_create_ms(directory, config.creations),
        "podman_run_ms": lambda: podman_run_ms(min(20, config.creations)),
    }
    for name, measure in measurements.items():
        report_progress(f"peer: {name.removesuffix('_ms')}")
        try:
            samples[name] = measure()
        except Unavailable as reason:
            report_progress(f"left out: {reason}")


async def _create(client: AsyncTangram, config: EnvironmentBenchConfig) -> AsyncEnvironment:
    return await client.environment(task=TASK, memory_mib=config.memory_mib, disk_mib=1)


async def _first_commands(
    client: AsyncTangram, config: EnvironmentBenchConfig, count: int, concurrency: int
) -> list[float]:
    """Return the milliseconds from the request for each environment to the end of its first command."""

    async def once() -> float:
        began = time.monotonic()
        environment = await _create(client, config)
        action = await environment.run(argv=["true"])
        took_ms = 1000 * (time.monotonic() - began)
        await environment.end()
        if action.outcome is not ActionOutcome.OK:
            raise TangramError(f"action {action.id} settled as {action.outcome} ({action.message})")
        return took_ms

    return await _in_lanes(once, count, concurrency)


async def _in_lanes(once: Callable[[], Awaitable[float]], count: int, concurrency: int) -> list[float]:
    left, found = iter(range(count)), []

    async def lane() -> None:
        for _ in left:
            found.append(await once())

    await asyncio.gather(*(lane() for _ in range(concurrency)))
    return found


async def _creation_cpu_ms(system: BenchSystem, client: AsyncTangram, config: EnvironmentBenchConfig) -> float:
    """Return the CPU milliseconds of all processes of the system for the creation and the end of an environment."""

    async def once() -> float:
        await (await _create(client, config)).end()
        return 0.0

    before = sum(system.cpu_s().values())
    await _in_lanes(once, config.creations, CONCURRENCY)
    return round(1000 * (sum(system.cpu_s().values()) - before) / config.creations, 3)


async def _forks(client: AsyncTangram, config: EnvironmentBenchConfig) -> tuple[list[float], float]:
    """Return the milliseconds of single forks, and the seconds of as many forks in one request."""
    took = []
    async with client.environment(task=TASK, memory_mib=config.memory_mib, files={"state": "x" * 4096}) as origin:
        forks = []
        for _ in range(config.forks):
            began = time.monotonic()
            forks += await origin.fork(1)
            took.append(1000 * (time.monotonic() - began))
        began = time.monotonic()
        forks += await origin.fork(config.forks)
        at_once_s = time.monotonic() - began
        await asyncio.gather(*(each.end() for each in forks))
    return took, round(at_once_s, 3)


async def _burst(
    client: AsyncTangram, config: EnvironmentBenchConfig, samples: dict[str, list[float]]
) -> dict[str, float]:
    created: list[AsyncEnvironment] = []
    took = samples.setdefault(f"burst_{config.burst}_ms", [])

    async def once() -> None:
        began = time.monotonic()
        created.append(await _create(client, config))
        took.append(1000 * (time.monotonic() - began))

    began = time.monotonic()
    ended = await asyncio.gather(*(once() for _ in range(config.burst)), return_exceptions=True)
    burst_s = time.monotonic() - began
    await asyncio.gather(*(each.end() for each in created))
    failed = sum(isinstance(each, BaseException) for each in ended)
    return {f"burst_{config.burst}_s": round(burst_s, 3), f"burst_{config.burst}_failed": float(failed)}


async def _live(client: AsyncTangram, config: EnvironmentBenchConfig) -> float:
    """Return how many of the environments answer a command while all of them exist."""
    created: list[AsyncEnvironment] = []
    for first in range(0, config.live, LIVE_BATCH):
        count = min(LIVE_BATCH, config.live - first)
        created += await asyncio.gather(*(_create(client, config) for _ in range(count)))
    answered = 0
    for first in range(0, len(created), LIVE_BATCH):
        actions = await asyncio.gather(*(each.run(argv=["true"]) for each in created[first : first + LIVE_BATCH]))
        answered += sum(action.outcome is ActionOutcome.OK for action in actions)
    for first in range(0, len(created), LIVE_BATCH):
        await asyncio.gather(*(each.end() for each in created[first : first + LIVE_BATCH]))
    return float(answered)

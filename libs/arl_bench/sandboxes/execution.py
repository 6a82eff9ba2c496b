"""A benchmark of execs compared with plain processes, and with other sandboxes if their addresses are given.

There are two levels. `tangram_*` are execs sent to the CPU manager's launcher. `api_*` are the same through the whole
product, durable and scheduled. The driver of the launcher also spawns the plain processes. The variants run
alternately.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import httpx

from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_bench.harness.process_usage import own_cpu_s
from arl_bench.sandboxes.launcher_driver import LauncherDriverClient, running_launcher_driver
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_tangram.options import ExecOptions, exec_action
from arl_wire.actions.action import SubmitActionRequest
from arl_wire.errors import TangramError

__all__ = ["ExecBenchConfig", "PeerSandbox", "run_exec"]

TASK = "exec"
PROGRAM = "print(1)"
PYTHON = shutil.which("python3", path=os.defpath) or "python3"
"""The interpreter, which plain processes use as well."""
MAIN_CONCURRENCY = 8
"""Concurrency whose figures have no suffix."""
LAUNCHER_VARIANTS = (
    ("plain", "true"),
    ("tangram", "true"),
    ("plain", "cold"),
    ("tangram", "cold"),
    ("tangram", "source"),
)
API_PROGRAMS = ("true", "cold", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSandbox:
    """An HTTP call of another sandbox that runs `print(1)` in a new Python process."""

    name: str
    url: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecBenchConfig:
    """Sizes of the measurements."""

    repeats: int = 3
    seconds: float = 3.0
    concurrencies: tuple[int, ...] = (1, 8, 64, 256)
    memory_mib: int = 32
    created: int = 200
    at_once: int = 1000
    """Number of concurrent execs through the whole product, to detect lost replies."""


@dataclass(frozen=True, slots=True)
class _ExecRate:
    done: int
    wall_s: float
    cpu_s: float

    def to_sample(self) -> dict[str, float]:
        per_s, cpu_ms = self.done / self.wall_s, 1000 * self.cpu_s / self.done
        return {"per_s": round(per_s, 2), "cpu_ms": round(cpu_ms, 3), "done": self.done}


Samples = dict[str, list[dict[str, float]]]


def run_exec(
    config: ExecBenchConfig, peers: list[PeerSandbox], report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples. CPU time covers all processes, including the caller."""
    samples: Samples = {}
    with bench_system() as system, running_launcher_driver() as launcher:
        created = _create_environments(launcher, config)
        for repeat in range(config.repeats):
            report_progress(f"repeat {repeat + 1} of {config.repeats}")
            for name, rate in _measure_row(launcher, system, config, peers):
                samples.setdefault(name, []).append(rate.to_sample())
        destroyed = launcher.request(op="destroy")
        report_progress(f"{config.at_once} at once")
        lost = asyncio.run(_count_lost(system, config.at_once))
    figures = {
        **_medians(samples),
        f"lost_at_{config.at_once}": lost,
        "create_per_s": round(created["done"] / created["wall_s"], 1),
        "destroy_per_s": round(destroyed["done"] / destroyed["wall_s"], 1),
        "left_after_destroy": len(launcher.orphans),
    }
    return figures, {**samples, "left": launcher.orphans}


def _create_environments(launcher: LauncherDriverClient, config: ExecBenchConfig) -> dict[str, Any]:
    """Create the environments for the rates, and more environments to measure their creation."""
    launcher.request(
        op="create", count=max(config.concurrencies), memory_mib=config.memory_mib, at_once=MAIN_CONCURRENCY
    )
    return launcher.request(op="create", count=config.created, memory_mib=config.memory_mib, at_once=MAIN_CONCURRENCY)


def _measure_row(
    launcher: LauncherDriverClient, system: BenchSystem, config: ExecBenchConfig, peers: list[PeerSandbox]
) -> Iterator[tuple[str, _ExecRate]]:
    for at_once in config.concurrencies:
        suffix = "" if at_once == MAIN_CONCURRENCY else f"_c{at_once}"
        for way, program in LAUNCHER_VARIANTS:
            yield f"{way}_{program}{suffix}", _launcher_rate(launcher, way, program, at_once, config.seconds)
    for program in API_PROGRAMS:
        yield f"api_{program}", asyncio.run(_api_rate(system, program, config))
    for peer in peers:
        yield peer.name, asyncio.run(_peer_rate(peer, config.seconds))


def _launcher_rate(
    launcher: LauncherDriverClient, variant: str, program: str, at_once: int, seconds: float
) -> _ExecRate:
    before = launcher.cpu_s()
    done = launcher.request(op="run", way=variant, program=program, at_once=at_once, seconds=seconds)
    return _ExecRate(done["done"], done["wall_s"], launcher.cpu_s() - before)


async def _api_rate(system: BenchSystem, program: str, config: ExecBenchConfig) -> _ExecRate:
    """Measure execs through the API with one client per environment. Each sends its next after its response."""
    async with system.client() as client:

        async def run(number: int) -> None:
            await _run_ok(client, _make_action(program, memory_mib=config.memory_mib, trajectory=f"api-{number}"))

        await asyncio.gather(*map(run, range(MAIN_CONCURRENCY)))
        before = sum(system.cpu_s().values()) + own_cpu_s()
        done, wall_s = await _run_clients(run, config.seconds)
        return _ExecRate(done, wall_s, sum(system.cpu_s().values()) + own_cpu_s() - before)


async def _peer_rate(peer: PeerSandbox, seconds: float) -> _ExecRate:
    """Measure another sandbox. Its CPU time is unknown, so only the caller's is counted."""
    async with httpx.AsyncClient(headers=peer.headers, timeout=60) as client:

        async def run(_: int) -> None:
            answer = (await client.post(peer.url, json=peer.body)).raise_for_status()
            if "1" not in answer.text:
                raise RuntimeError(f"{peer.name} answered {answer.text[:200]!r}")

        before = own_cpu_s()
        done, wall_s = await _run_clients(run, seconds)
        return _ExecRate(done, wall_s, own_cpu_s() - before)


async def _run_clients(run: Callable[[int], Awaitable[None]], seconds: float) -> tuple[int, float]:
    ends_at = time.monotonic() + seconds

    async def lane(number: int) -> int:
        done = 0
        while time.monotonic() < ends_at:
            await run(number)
            done += 1
        return done

    begun = time.monotonic()
    done = sum(await asyncio.gather(*map(lane, range(MAIN_CONCURRENCY))))
    return done, time.monotonic() - begun


async def _count_lost(system: BenchSystem, at_once: int) -> int:
    """Return how many of `at_once` concurrent actions get no response or a wrong one."""
    async with system.client() as client:
        actions = [_make_action("true", memory_mib=8) for _ in range(at_once)]
        settled = await asyncio.gather(*map(client.run, actions), return_exceptions=True)
    return sum(isinstance(each, BaseException) or each.outcome is not ActionOutcome.OK for each in settled)


async def _run_ok(client: AsyncTangram, action: SubmitActionRequest) -> None:
    settled = await client.run(action)
    if settled.outcome is not ActionOutcome.OK:
        raise TangramError(f"action {settled.id} settled as {settled.outcome} ({settled.reason}); nothing is measured")


def _make_action(program: str, *, memory_mib: int, trajectory: str | None = None) -> SubmitActionRequest:
    options = ExecOptions(task=TASK, memory_mib=memory_mib, disk_mib=4, cpu=0.2)
    if trajectory is not None:
        options["trajectory"] = trajectory
    if program == "source":
        options["source"] = PROGRAM
    else:
        options["argv"] = ["true"] if program == "true" else [PYTHON, "-c", PROGRAM]
    return exec_action(**options)


def _medians(samples: Samples) -> dict[str, float]:
    figures = {}
    for name, rates in samples.items():
        kind, _, at_once = name.rpartition("_c")
        kind, tail = (kind, f"_c{at_once}") if at_once.isdecimal() else (name, "")
        figures[f"{kind}_per_s{tail}"] = round(median(rate["per_s"] for rate in rates), 1)
        if kind.startswith(("plain", "tangram", "api")):
            figures[f"{kind}_cpu_ms{tail}"] = round(median(rate["cpu_ms"] for rate in rates), 3)
    if "tangram_cold_cpu_ms" in figures:
        figures["cold_cpu_ratio"] = round(figures["plain_cold_cpu_ms"] / figures["tangram_cold_cpu_ms"], 3)
    return figures

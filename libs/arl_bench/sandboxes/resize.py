"""A benchmark of the cost of resizing a running program, and of more workers than cores.

Real tools do the same work in four cases: one worker on one core, two on two, two on one, and two on two cores of
which one is taken away for a while. The cases run alternately, so that other load affects all of them.
"""

import asyncio
import contextlib
import importlib.util
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from arl_bench.harness.bench_system import EXCLUSIVE_CORES, BenchSystem, bench_system
from arl_bench.sandboxes.resizable_action import ResizeFailed, running_resizable_action
from arl_core.domain.states import ActionOutcome
from arl_tangram.async_client import AsyncTangram
from arl_tangram.options import exec_action
from arl_wire.actions.action import Action, SubmitActionRequest

__all__ = ["PARALLEL_TOOLS", "ResizeBenchConfig", "run_resize"]

TASK = "resizing"
FIXED_CASES = {"one": (1, 1), "two": (2, 2), "two_on_one": (2, 1)}
"""Workers and cores."""
SHRINK_AT, GROW_AT = 0.25, 0.65
"""Fractions of the run time with two workers on two cores at which one core is taken away and given back."""

POOL_PROGRAM = """
import sys, multiprocessing

def part(_):
    n = 0
    for i in range(400_000):
        n += i * i
    return n

with multiprocessing.Pool({workers}) as pool:
    pool.map(part, range({parts}), chunksize=1)
"""
THREADS_PROGRAM = """
import numpy as np
a = np.random.default_rng(0).random((512, 512))
for _ in range({parts}):
    a = a @ a
    a /= np.abs(a).max()
"""
C_MODULE = "long f{at}(long n) {{ long s = {at}; for (long i = 0; i < n; i++) s += (s * i) ^ (i + {at}); return s; }}\n"
TEST_SUITE = """
import pytest

@pytest.mark.parametrize("number", range({parts}))
def test_part(number):
    n = 0
    for i in range(400_000):
        n += i * i
"""


@dataclass(frozen=True, slots=True)
class ParallelTool:
    """A tool with workers: its command, its files and its requirement."""

    argv: Callable[[int, int], list[str]]
    """Command by number of workers and parts."""
    files: Callable[[int], Mapping[str, str]] = lambda parts: {}
    env: Callable[[int], Mapping[str, str]] = lambda workers: {}
    parts: int = 100
    """Number of parts, which take about four CPU seconds."""
    requirement: str | None = None
    """A Python module or a program."""

    @property
    def is_available(self) -> bool:
        found = self.requirement is None or shutil.which(self.requirement) or importlib.util.find_spec(self.requirement)
        return bool(found)


def _make_sources(parts: int) -> dict[str, str]:
    modules = {f"m{at}.c": "".join(C_MODULE.format(at=at * 1000 + each) for each in range(300)) for at in range(parts)}
    objects = " ".join(name.replace(".c", ".o") for name in modules)
    return modules | {"Makefile": f"all: {objects}\n%.o: %.c\n\tcc -O2 -c $< -o $@\n"}


def _thread_variables(workers: int) -> dict[str, str]:
    return {name: str(workers) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}


PARALLEL_TOOLS: Mapping[str, ParallelTool] = {
    "pool": ParallelTool(
        lambda workers, parts: [sys.executable, "-c", POOL_PROGRAM.format(workers=workers, parts=parts)]
    ),
    "make": ParallelTool(lambda workers, _: ["make", "-s", f"-j{workers}"], _make_sources, parts=16, requirement="cc"),
    "threads": ParallelTool(
        lambda _, parts: [sys.executable, "-c", THREADS_PROGRAM.format(parts=parts)],
        env=_thread_variables,
        parts=500,
        requirement="numpy",
    ),
    "xdist": ParallelTool(
        lambda workers, _: [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers)],
        lambda parts: {"test_parts.py": TEST_SUITE.format(parts=parts)},
        requirement="xdist",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeBenchConfig:
    repeats: int = 3
    work: float = 1.0
    """Factor for the work of each tool, which takes about four CPU seconds at 1."""
    tools: tuple[str, ...] = tuple(PARALLEL_TOOLS)


@dataclass(slots=True)
class _ResizeSamples:
    wall_s: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    shrunk_s: dict[str, list[float]] = field(default_factory=dict)
    """Seconds for which one of two cores was taken away."""

    def add(self, name: str, action: Action) -> float:
        if action.outcome is not ActionOutcome.OK or action.result is None or action.times.run_s is None:
            said = action.result.stderr.text[-300:] if action.result is not None else ""
            raise RuntimeError(f"{name} settled as {action.outcome} ({action.reason}); nothing is measured. {said}")
        self.wall_s.setdefault(name, []).append(action.times.run_s)
        self.cpu_s.setdefault(name, []).append(action.result.cpu_s)
        return action.times.run_s


def run_resize(
    config: ResizeBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return figures and samples by tool. A tool that is not installed is left out."""
    tools = {name: PARALLEL_TOOLS[name] for name in config.tools if PARALLEL_TOOLS[name].is_available}
    for missing in (name for name in config.tools if name not in tools):
        report_progress(f"{missing} is left out: {PARALLEL_TOOLS[missing].requirement} is not here")
    # No isolation is needed here, and the tools belong to this Python installation.
    with bench_system(driver="unsafe-local", cores=2, environment=EXCLUSIVE_CORES) as system:
        rows = asyncio.run(_measure(system, tools, config, report_progress))
    figures: dict[str, float] = {}
    for name in tools:
        figures |= _figures(name, rows)
    samples = {f"{kind}_{key}": values for kind in ("wall_s", "cpu_s") for key, values in getattr(rows, kind).items()}
    return figures, {key: [round(each, 4) for each in values] for key, values in samples.items()}


async def _measure(
    system: BenchSystem,
    tools: Mapping[str, ParallelTool],
    config: ResizeBenchConfig,
    report_progress: Callable[[str], None],
) -> _ResizeSamples:
    rows = _ResizeSamples()
    async with system.client() as client:
        for repeat in range(config.repeats):
            for name, tool in tools.items():
                report_progress(f"repeat {repeat + 1} of {config.repeats}: {name}")
                for case, (workers, cores) in FIXED_CASES.items():
                    action = await client.run(_make_action(tool, config, workers=workers, cores=cores))
                    rows.add(f"{name}_{case}", action)
                await _run_resized(system, client, name, _make_action(tool, config, workers=2, cores=2), rows)
    return rows


def _make_action(tool: ParallelTool, config: ResizeBenchConfig, *, workers: int, cores: int) -> SubmitActionRequest:
    parts = max(2, round(tool.parts * config.work))
    return exec_action(
        task=TASK,
        argv=tool.argv(workers, parts),
        files=tool.files(parts),
        env=tool.env(workers),
        cpu=cores,
        memory_mib=1024,
        disk_mib=256,
    )


async def _run_resized(
    system: BenchSystem, client: AsyncTangram, name: str, request: SubmitActionRequest, rows: _ResizeSamples
) -> None:
    """Run with two cores, one for a while, and two again."""
    usual_s = min(rows.wall_s[f"{name}_two"])
    async with running_resizable_action(system, client, request) as running:
        begun = time.monotonic()
        await asyncio.sleep(SHRINK_AT * usual_s)
        await running.resize(1000)
        taken = time.monotonic()
        await asyncio.sleep(begun + GROW_AT * usual_s - taken)
        with contextlib.suppress(ResizeFailed):  # it has ended with one core
            await running.resize(2000)
        rows.shrunk_s.setdefault(name, []).append(time.monotonic() - taken)
        rows.add(f"{name}_resized", await _wait_for_end(client, running.action))


async def _wait_for_end(client: AsyncTangram, action: UUID) -> Action:
    (ended,) = await client.wait([action])
    return ended


def _figures(name: str, rows: _ResizeSamples) -> dict[str, float]:
    """Return the best of the repeats, and the cost of excess workers and resizes.

    Other load on the machine can only add time to a repeat. The resized run is compared with the prediction of the
    fixed cases.
    """
    cases = (*FIXED_CASES, "resized")
    wall = {case: min(rows.wall_s[f"{name}_{case}"]) for case in cases}
    cpu = {case: min(rows.cpu_s[f"{name}_{case}"]) for case in cases}
    narrow_s = rows.shrunk_s[name][rows.wall_s[f"{name}_resized"].index(wall["resized"])]
    promised_s = narrow_s + (1.0 - narrow_s / wall["one"]) * wall["two"]
    figures = {f"{name}_{case}_wall_s": wall[case] for case in cases} | {
        f"{name}_{case}_cpu_s": cpu[case] for case in cases
    }
    figures |= {
        f"{name}_two_on_one_wall_over_one": wall["two_on_one"] / wall["one"],
        f"{name}_two_on_one_cpu_over_one": cpu["two_on_one"] / cpu["one"],
        f"{name}_two_on_one_cpu_over_two": cpu["two_on_one"] / cpu["two"],
        f"{name}_resized_wall_over_promised": wall["resized"] / promised_s,
        f"{name}_resized_cpu_over_two": cpu["resized"] / cpu["two"],
    }
    return {key: round(value, 4) for key, value in figures.items()}

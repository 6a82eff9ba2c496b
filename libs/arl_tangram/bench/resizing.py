"""What does it cost a program that its cores change while it runs, and that it has more workers than cores?

The same work, by real tools: with one worker on one core, with two on two, with two on one core all the time, and
with two on two cores of which one is taken for a while in the middle. In turn, so that whatever else the machine does
meets all of them.
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

from arl_core.states import Outcome
from arl_tangram.bench.own_system import OwnSystem, own_system
from arl_tangram.bench.resized import NotResized, resized
from arl_tangram.client import AsyncTangram
from arl_tangram.options import exec_action
from arl_wire.actions import Action, SubmitAction

__all__ = ["TOOLS", "Sizes", "run_resizing"]

TASK = "resizing"
FIXED = {"one": (1, 1), "two": (2, 2), "two_on_one": (2, 1)}
"""Workers and cores."""
NARROW_FROM, NARROW_TO = 0.25, 0.65
"""Of what two workers on two cores take: when one core is taken, and when it is given back."""

POOL = """
import sys, multiprocessing

def part(_):
    n = 0
    for i in range(400_000):
        n += i * i
    return n

with multiprocessing.Pool({workers}) as pool:
    pool.map(part, range({parts}), chunksize=1)
"""
THREADS = """
import numpy as np
a = np.random.default_rng(0).random((512, 512))
for _ in range({parts}):
    a = a @ a
    a /= np.abs(a).max()
"""
MODULE = "long f{at}(long n) {{ long s = {at}; for (long i = 0; i < n; i++) s += (s * i) ^ (i + {at}); return s; }}\n"
SUITE = """
import pytest

@pytest.mark.parametrize("number", range({parts}))
def test_part(number):
    n = 0
    for i in range(400_000):
        n += i * i
"""


@dataclass(frozen=True, slots=True)
class Tool:
    """What has workers: how it is run with so many, and what it needs."""

    argv: Callable[[int, int], list[str]]
    """By workers and parts."""
    files: Callable[[int], Mapping[str, str]] = lambda parts: {}
    env: Callable[[int], Mapping[str, str]] = lambda workers: {}
    parts: int = 100
    """That take about four CPU seconds."""
    needs: str | None = None
    """A module of Python, or a program."""

    @property
    def is_here(self) -> bool:
        found = self.needs is None or shutil.which(self.needs) or importlib.util.find_spec(self.needs)
        return bool(found)


def _sources(parts: int) -> dict[str, str]:
    modules = {f"m{at}.c": "".join(MODULE.format(at=at * 1000 + each) for each in range(300)) for at in range(parts)}
    objects = " ".join(name.replace(".c", ".o") for name in modules)
    return modules | {"Makefile": f"all: {objects}\n%.o: %.c\n\tcc -O2 -c $< -o $@\n"}


def _threads(workers: int) -> dict[str, str]:
    return {name: str(workers) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}


TOOLS: Mapping[str, Tool] = {
    "pool": Tool(lambda workers, parts: [sys.executable, "-c", POOL.format(workers=workers, parts=parts)]),
    "make": Tool(lambda workers, _: ["make", "-s", f"-j{workers}"], _sources, parts=16, needs="cc"),
    "threads": Tool(
        lambda _, parts: [sys.executable, "-c", THREADS.format(parts=parts)], env=_threads, parts=500, needs="numpy"
    ),
    "xdist": Tool(
        lambda workers, _: [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers)],
        lambda parts: {"test_parts.py": SUITE.format(parts=parts)},
        needs="xdist",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    repeats: int = 3
    work: float = 1.0
    """Of what each tool does, about four CPU seconds at 1."""
    tools: tuple[str, ...] = tuple(TOOLS)


@dataclass(slots=True)
class _Rows:
    wall_s: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    narrow_s: dict[str, list[float]] = field(default_factory=dict)
    """How long one of two cores was taken."""

    def add(self, name: str, action: Action) -> float:
        if action.outcome is not Outcome.OK or action.result is None or action.times.run_s is None:
            said = action.result.stderr.text[-300:] if action.result is not None else ""
            raise RuntimeError(f"{name} settled as {action.outcome} ({action.reason}); nothing is measured. {said}")
        self.wall_s.setdefault(name, []).append(action.times.run_s)
        self.cpu_s.setdefault(name, []).append(action.result.cpu_s)
        return action.times.run_s


def run_resizing(sizes: Sizes, say: Callable[[str], None]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Figures and samples, by tool; one that is not on this machine is left out."""
    tools = {name: TOOLS[name] for name in sizes.tools if TOOLS[name].is_here}
    for missing in (name for name in sizes.tools if name not in tools):
        say(f"{missing} is left out: {TOOLS[missing].needs} is not here")
    # Nothing is to be kept apart here; and the tools are those of this very Python.
    with own_system(driver="unsafe-local", cores=2) as system:
        rows = asyncio.run(_measure(system, tools, sizes, say))
    figures: dict[str, float] = {}
    for name in tools:
        figures |= _figures(name, rows)
    samples = {f"{kind}_{key}": values for kind in ("wall_s", "cpu_s") for key, values in getattr(rows, kind).items()}
    return figures, {key: [round(each, 4) for each in values] for key, values in samples.items()}


async def _measure(system: OwnSystem, tools: Mapping[str, Tool], sizes: Sizes, say: Callable[[str], None]) -> _Rows:
    rows = _Rows()
    async with system.client() as client:
        for repeat in range(sizes.repeats):
            for name, tool in tools.items():
                say(f"repeat {repeat + 1} of {sizes.repeats}: {name}")
                for case, (workers, cores) in FIXED.items():
                    action = await client.run(_action(tool, sizes, workers=workers, cores=cores))
                    rows.add(f"{name}_{case}", action)
                await _resized(system, client, name, _action(tool, sizes, workers=2, cores=2), rows)
    return rows


def _action(tool: Tool, sizes: Sizes, *, workers: int, cores: int) -> SubmitAction:
    parts = max(2, round(tool.parts * sizes.work))
    return exec_action(
        task=TASK,
        argv=tool.argv(workers, parts),
        files=tool.files(parts),
        env=tool.env(workers),
        cpu=cores,
        memory_mib=1024,
        disk_mib=256,
    )


async def _resized(system: OwnSystem, client: AsyncTangram, name: str, wanted: SubmitAction, rows: _Rows) -> None:
    """Two cores, one for a while, two again."""
    usual_s = min(rows.wall_s[f"{name}_two"])
    async with resized(system, client, wanted) as running:
        begun = time.monotonic()
        await asyncio.sleep(NARROW_FROM * usual_s)
        await running.resize(1000)
        taken = time.monotonic()
        await asyncio.sleep(begun + NARROW_TO * usual_s - taken)
        with contextlib.suppress(NotResized):  # it has ended, with one core
            await running.resize(2000)
        rows.narrow_s.setdefault(name, []).append(time.monotonic() - taken)
        rows.add(f"{name}_resized", await _ended(client, running.action))


async def _ended(client: AsyncTangram, action: UUID) -> Action:
    (ended,) = await client.wait([action])
    return ended


def _figures(name: str, rows: _Rows) -> dict[str, float]:
    """The best of the repeats, for whatever else the machine does can only add to one; and what more workers than
    cores and two resizes cost, beside what the fixed widths promise."""
    cases = (*FIXED, "resized")
    wall = {case: min(rows.wall_s[f"{name}_{case}"]) for case in cases}
    cpu = {case: min(rows.cpu_s[f"{name}_{case}"]) for case in cases}
    narrow_s = rows.narrow_s[name][rows.wall_s[f"{name}_resized"].index(wall["resized"])]
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

"""`tangram bench step`: the same steps under several policies, in turns, on real cores of this machine."""

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Any

from arl_bench.harness.bench_system import bench_system
from arl_bench.harness.process_usage import machine_cpu_s
from arl_bench.step.run import StepHints, StepResult, calibrate, run_step
from arl_bench.step.simulated import simulated_ratios
from arl_bench.step.workloads import StepWorkloadName, earlier_pass, floor_s, make_workload

__all__ = ["CONTENDERS", "StepBenchConfig", "comparison_table", "run_step_comparison"]


@dataclass(frozen=True, slots=True)
class _Contender:
    settings: Mapping[str, str]
    hints: StepHints = StepHints.NONE
    learns: bool = True
    """True if the policy depends on earlier runs."""


UNLIMITED, TANGRAM = "unlimited", "tangram"
_PODS = {"TANGRAM_POLICY": "unlimited", "TANGRAM_CPU_FORM": "exclusive"}
_SHARED = {"TANGRAM_POLICY": "spar_m", "TANGRAM_CPU_FORM": "shared"}
CONTENDERS: Mapping[str, _Contender] = {
    UNLIMITED: _Contender(_PODS, learns=False),
    "unlimited_again": _Contender(_PODS, learns=False),
    TANGRAM: _Contender(_SHARED),
    "tangram_history": _Contender(_SHARED, StepHints.PROMPT),
    "tangram_hints": _Contender(_SHARED, StepHints.TURNS),
    "exclusive": _Contender({"TANGRAM_POLICY": "spar_m", "TANGRAM_CPU_FORM": "exclusive"}),
}
"""Settings of each contender, and its hints. `unlimited_again` shows the noise of two runs of the same policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBenchConfig:
    """Sizes of the comparison."""

    seeds: int = 7
    first_seed: int = 101
    workloads: tuple[StepWorkloadName, ...] = tuple(StepWorkloadName)
    contenders: tuple[str, ...] = tuple(CONTENDERS)
    warm_up: bool = True
    """Run an earlier pass of the same prompts first. The scheduler learns the classes of commands from it, and with
    hints of prompts also the lengths of trajectories.
    """


@dataclass(frozen=True, slots=True)
class _StepRun:
    result: StepResult
    floor_s: float
    foreign_cores: float
    """Mean cores that other processes of the machine used meanwhile, the system's services included."""

    def values(self) -> dict[str, float]:
        acts = self.result.act_s
        return {
            "act_s": fmean(acts),
            "p99_s": quantiles(acts, n=100)[98],
            "step_s": self.result.step_s,
            "floor_s": self.floor_s,
        }


_Runs = dict[tuple[StepWorkloadName, str], dict[int, _StepRun]]
"""Runs by workload and contender, and by seed."""


def run_step_comparison(
    config: StepBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples. The contenders run each seed one after the other, in random order."""
    runs: _Runs = {}
    for workload in config.workloads:
        for seed in range(config.first_seed, config.first_seed + config.seeds):
            order = list(config.contenders)
            random.Random(f"{workload}/{seed}").shuffle(order)
            for contender in order:
                run = _run_one(workload, seed, contender, config)
                runs.setdefault((workload, contender), {})[seed] = run
                found = run.values()
                report_progress(
                    f"{workload} seed {seed} {contender}: ACT {found['act_s']:.3f} s, step {found['step_s']:.2f} s"
                    f" of at least {found['floor_s']:.2f} s"
                )
    return _figures(runs) | _simulated_figures(config), _samples(runs)


def _run_one(workload: StepWorkloadName, seed: int, contender: str, config: StepBenchConfig) -> _StepRun:
    cores = len(os.sched_getaffinity(0))
    step, hints = make_workload(workload, seed), CONTENDERS[contender].hints

    async def go() -> tuple[StepResult, float]:
        async with system.client() as client:
            loops_per_s = await calibrate(client)
            if config.warm_up and CONTENDERS[contender].learns:
                earlier = earlier_pass(workload, seed)
                await run_step(client, earlier, loops_per_s=loops_per_s, step=0, hints=hints)
            before = machine_cpu_s()
            result = await run_step(client, step, loops_per_s=loops_per_s, step=1, hints=hints)
            return result, (machine_cpu_s() - before - result.cpu_s) / result.step_s

    with bench_system(environment=CONTENDERS[contender].settings) as system:
        result, foreign = asyncio.run(go())
    if failed := result.masked + result.timed_out:
        raise RuntimeError(f"{failed} commands of {workload} under {contender} did not end as `ok`")
    return _StepRun(result, floor_s(step, cores=cores), foreign)


def _figures(runs: _Runs) -> dict[str, float]:
    figures: dict[str, float] = {}
    for (workload, contender), by_seed in runs.items():
        values = [run.values() for run in by_seed.values()]
        for name in ("act_s", "p99_s", "step_s"):
            figures[f"{workload}_{contender}_{name}"] = round(median(each[name] for each in values), 4)
        figures[f"{workload}_floor_s"] = round(median(each["floor_s"] for each in values), 3)
        base = runs.get((workload, UNLIMITED))
        if base is None or contender == UNLIMITED:
            continue
        for name in ("act", "p99", "step"):
            figures[f"{workload}_{contender}_{name}_ratio"] = round(median(_ratios(by_seed, base, f"{name}_s")), 3)
        closed = [
            (base[seed].result.step_s - run.result.step_s) / (base[seed].result.step_s - run.floor_s)
            for seed, run in by_seed.items()
            if base[seed].result.step_s > 1.02 * run.floor_s
        ]
        if closed:
            figures[f"{workload}_{contender}_gap_closed"] = round(median(closed), 3)
    return figures


def _simulated_figures(config: StepBenchConfig) -> dict[str, float]:
    """Return the ratios that the simulator gives for the same seeds."""
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    cores = len(os.sched_getaffinity(0))
    return {
        f"{workload}_{contender}_sim_{name}_ratio": round(ratio, 3)
        for workload in config.workloads
        for contender, ratios in simulated_ratios(workload, seeds, config.contenders, cores=cores).items()
        for name, ratio in ratios.items()
    }


def _ratios(by_seed: Mapping[int, _StepRun], base: Mapping[int, _StepRun], name: str) -> list[float]:
    """Return the ratio of each seed to the baseline's run of the same seed."""
    return [run.values()[name] / base[seed].values()[name] for seed, run in by_seed.items() if seed in base]


def _samples(runs: _Runs) -> dict[str, Any]:
    return {
        f"{workload}_{contender}": [
            {"seed": seed, **{name: round(value, 4) for name, value in run.values().items()}}
            | {"cpu_s": round(run.result.cpu_s, 3), "foreign_cores": round(run.foreign_cores, 3)}
            for seed, run in by_seed.items()
        ]
        for (workload, contender), by_seed in runs.items()
    }


def comparison_table(figures: Mapping[str, float], config: StepBenchConfig) -> Iterator[str]:
    """Yield the lines of a table of ratios to `unlimited`, measured and, where it is modelled, simulated."""
    columns = ("ACT", "p99", "step", "sim ACT", "sim p99", "sim step")
    yield f"{'workload':10} {'policy':16} {' '.join(f'{column:>8}' for column in columns)}   ratios to unlimited"
    for workload in config.workloads:
        for contender in config.contenders:
            if contender == UNLIMITED:
                continue
            names = [f"{kind}{name}_ratio" for kind in ("", "sim_") for name in ("act", "p99", "step")]
            ratios = [figures.get(f"{workload}_{contender}_{name}") for name in names]
            cells = " ".join(f"{ratio:8.2f}" if ratio is not None else " " * 8 for ratio in ratios)
            yield f"{workload:10} {contender:16} {cells}"

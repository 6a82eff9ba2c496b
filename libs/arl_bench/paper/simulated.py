"""The paper's comparison, simulated: mean ACT and step time of policies and static provisioning on shrinking hardware.

The simulation runs the scheduler's own policies. Durations are synthetic. The simulator models no interference, no
failures and no start time of pods, which benefits static provisioning. At the lower levels static provisioning has
more devices than the others (`gpus` of the samples), because each service needs its own devices.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from arl_sim.paper import CORES, GPUS, LEVELS, STEPS, VALIDATION_SEEDS, ComparedPolicy, PaperHardware, create_cluster
from arl_sim.study import BoundCase, Figures, HardwareSaving, SimCase, mean_figures, run_bound_case, run_case, savings

__all__ = ["PaperBenchConfig", "comparison_table", "level_name", "run_simulated_paper"]

OUR_POLICY = ComparedPolicy.SPAR_M
SIMPLER_POLICIES = (ComparedPolicy.FCFS, ComparedPolicy.OVERCOMMITTED, ComparedPolicy.UNLIMITED)
"""Simpler policies. Their savings show which part is due to sharing in general and which part to the policy."""
REPORTED_FIGURES = {"act": "act", "step": "step", "p99": "p99"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperBenchConfig:
    seeds: tuple[int, ...] = VALIDATION_SEEDS
    steps: int = STEPS
    """Number of steps per seed."""
    levels: tuple[float, ...] = LEVELS
    bound_seeds: tuple[int, ...] = (10, 11, 12, 13)

    @classmethod
    def short(cls) -> "PaperBenchConfig":
        return cls(seeds=VALIDATION_SEEDS[:1], steps=1, bound_seeds=(10,))


@dataclass(slots=True)
class _SimulationRuns:
    """The results of simulations in other processes. Each simulation runs once."""

    config: PaperBenchConfig
    pool: Executor
    report_progress: Callable[[str], None]
    steps: dict[tuple[ComparedPolicy, PaperHardware], list[Figures]] = field(default_factory=dict)

    def run_missing(self, cases: list[tuple[ComparedPolicy, PaperHardware]]) -> None:
        new = [each for each in cases if each not in self.steps]
        futures = {
            each: [self.pool.submit(run_case, SimCase(*each, seed, self.config.steps)) for seed in self.config.seeds]
            for each in new
        }
        for (contender, hardware), parts in futures.items():
            self.steps[contender, hardware] = [step for part in parts for step in part.result()]
            mean = mean_figures(self.steps[contender, hardware])
            self.report_progress(
                f"{hardware.cores:5} cores {hardware.gpus:3} devices  {contender:14}"
                f" ACT {mean['act']:6.2f} s  p99 {mean['p99']:6.1f} s  step {mean['step']:5.0f} s"
            )

    def mean_of(self, contender: ComparedPolicy, hardware: PaperHardware) -> Figures:
        self.run_missing([(contender, hardware)])
        return mean_figures(self.steps[contender, hardware])


def run_simulated_paper(
    config: PaperBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures, and the figures of every step for each policy and level."""
    # A fork of a process with threads may hang; spawned processes import only this module.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        runs = _SimulationRuns(config, pool, report_progress)
        # The longest simulations start first, so that no single process finishes much later than the others.
        everything = [
            (contender, PaperHardware(level, level)) for level in config.levels[::-1] for contender in ComparedPolicy
        ]
        runs.run_missing(everything)
        figures = _level_figures(config, runs)
        tried = {}
        for contender in (OUR_POLICY, *SIMPLER_POLICIES):
            saving, tried[contender] = savings(contender, **_static_targets(runs), mean_of=runs.mean_of)
            figures |= _saving_figures(saving, "" if contender is OUR_POLICY else f"_{contender}")
        bounds = list(pool.map(run_bound_case, [BoundCase(OUR_POLICY, seed) for seed in config.bound_seeds]))
    figures["sim_bound_ratio"] = sum(each["act"] / each["bound"] for each in bounds) / len(bounds)
    samples = {
        "gpus": {
            f"{level_name(hw.cpu)}_{contender}": create_cluster(contender, hw).gpus for contender, hw in everything
        },
        "steps": {f"{level_name(hw.cpu)}_{contender}": runs.steps[contender, hw] for contender, hw in everything},
        "savings_tried": {
            contender: [{"cores": hw.cores, "gpus": hw.gpus, **found} for hw, found in each]
            for contender, each in tried.items()
        },
        "bounds": bounds,
    }
    return figures, samples


def comparison_table(figures: Mapping[str, float], levels: Sequence[float]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"{'level':>6} {'policy':14} {'ACT s':>8} {'p99 s':>8} {'step s':>8}"
    for level in levels:
        for contender in ComparedPolicy:
            name = f"sim_{level_name(level)}_{contender}"
            act, p99, step = (figures[f"{name}_{key}_s"] for key in ("act", "p99", "step"))
            yield f"{level:6g} {contender:14} {act:8.2f} {p99:8.1f} {step:8.0f}"
    acts = [value for name, value in figures.items() if name.endswith("_act_gain")]
    steps = [value for name, value in figures.items() if name.endswith("_step_gain")]
    yield f"{OUR_POLICY} against pods of 4 cores: ACT {_format_range(acts)}, step {_format_range(steps)}"
    for contender in (OUR_POLICY, *SIMPLER_POLICIES):
        suffix = "" if contender is OUR_POLICY else f"_{contender}"
        cores, gpus = figures[f"sim_saving_cores{suffix}"], figures[f"sim_saving_gpus{suffix}"]
        yield f"{contender}: {cores:.0%} of cores and {gpus:.0%} of devices saved at ACT and step of static pods on all"
    yield f"{figures['sim_bound_ratio']:.3f} of a clairvoyant bound without resizing, on one node in bursts"


def _format_range(values: list[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}x"


def _static_targets(runs: _SimulationRuns) -> dict[str, float]:
    static = runs.mean_of(ComparedPolicy.STATIC, PaperHardware(1.0, 1.0))
    return {"act_s": static["act"], "step_s": static["step"]}


def _level_figures(config: PaperBenchConfig, runs: _SimulationRuns) -> dict[str, float]:
    figures: dict[str, float] = {}
    for level in config.levels:
        hardware = PaperHardware(level, level)
        means = {contender: runs.mean_of(contender, hardware) for contender in ComparedPolicy}
        for contender, mean in means.items():
            figures |= {
                f"sim_{level_name(level)}_{contender}_{name}_s": mean[key] for name, key in REPORTED_FIGURES.items()
            }
        for name in ("act", "step"):
            figures[f"sim_{level_name(level)}_{name}_gain"] = (
                means[ComparedPolicy.STATIC][name] / means[OUR_POLICY][name]
            )
    return figures


def _saving_figures(saving: HardwareSaving | None, suffix: str) -> dict[str, float]:
    hardware = saving.hardware if saving is not None else PaperHardware(1.0, 1.0)
    return {
        f"sim_saving_cores{suffix}": 1.0 - hardware.cores / CORES,
        f"sim_saving_gpus{suffix}": 1.0 - hardware.gpus / GPUS,
    }


def level_name(level: float) -> str:
    """Format a level as r100, r050, r025 or r0125: its digits after r, at least three."""
    return "r" + f"{level:.3f}".replace(".", "").removesuffix("0")

"""The paper's comparison, simulated: mean ACT and step of static provisioning and of policies, on ever less hardware.

What is simulated is what runs: the policies are those of the scheduler. Durations are synthetic, and the simulator
knows no interference, no failures and no start of pods, which static provisioning gets for nothing. At the lower levels
static provisioning has more devices than the others (`gpus` of the samples): each service needs some of its own.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from arl_sim.paper import CORES, GPUS, HELD_OUT, LEVELS, STEPS, Contender, Hardware, site_of
from arl_sim.study import BoundCase, Case, Figures, Saving, mean_figures, run_bound_case, run_case, savings

__all__ = ["Sizes", "level_name", "run_paper", "table"]

OURS = Contender.SPAR_M
SIMPLER = (Contender.FCFS, Contender.OVERCOMMITTED)
"""What they save says how much of it is owed to sharing at all, and how much to the policy."""
REPORTED = {"act": "act", "step": "step", "p99": "p99"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    seeds: tuple[int, ...] = HELD_OUT
    steps: int = STEPS
    """Of each seed."""
    levels: tuple[float, ...] = LEVELS
    bound_seeds: tuple[int, ...] = (10, 11, 12, 13)

    @classmethod
    def short(cls) -> "Sizes":
        return cls(seeds=HELD_OUT[:1], steps=1, bound_seeds=(10,))


@dataclass(slots=True)
class _Runs:
    """Simulations in other processes, each once."""

    sizes: Sizes
    pool: Executor
    say: Callable[[str], None]
    steps: dict[tuple[Contender, Hardware], list[Figures]] = field(default_factory=dict)

    def of(self, wanted: list[tuple[Contender, Hardware]]) -> None:
        new = [each for each in wanted if each not in self.steps]
        futures = {
            each: [self.pool.submit(run_case, Case(*each, seed, self.sizes.steps)) for seed in self.sizes.seeds]
            for each in new
        }
        for (contender, hardware), parts in futures.items():
            self.steps[contender, hardware] = [step for part in parts for step in part.result()]
            mean = mean_figures(self.steps[contender, hardware])
            self.say(
                f"{hardware.cores:5} cores {hardware.gpus:3} devices  {contender:14}"
                f" ACT {mean['act']:6.2f} s  p99 {mean['p99']:6.1f} s  step {mean['step']:5.0f} s"
            )

    def mean_of(self, contender: Contender, hardware: Hardware) -> Figures:
        self.of([(contender, hardware)])
        return mean_figures(self.steps[contender, hardware])


def run_paper(sizes: Sizes, say: Callable[[str], None]) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures, and for each contender and level those of every step."""
    # A fork of a process with threads may hang; spawned ones import this module and nothing else.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        runs = _Runs(sizes, pool, say)
        # The longest first, so that no process is left alone with one at the end.
        everything = [(contender, Hardware(level, level)) for level in sizes.levels[::-1] for contender in Contender]
        runs.of(everything)
        figures = _level_figures(sizes, runs)
        tried = {}
        for contender in (OURS, *SIMPLER):
            saving, tried[contender] = savings(contender, **_to_keep(runs), mean_of=runs.mean_of)
            figures |= _saving_figures(saving, "" if contender is OURS else f"_{contender}")
        bounds = list(pool.map(run_bound_case, [BoundCase(OURS, seed) for seed in sizes.bound_seeds]))
    figures["sim_bound_ratio"] = sum(each["act"] / each["bound"] for each in bounds) / len(bounds)
    samples = {
        "gpus": {f"{level_name(hw.cpu)}_{contender}": site_of(contender, hw).gpus for contender, hw in everything},
        "steps": {f"{level_name(hw.cpu)}_{contender}": runs.steps[contender, hw] for contender, hw in everything},
        "savings_tried": {
            contender: [{"cores": hw.cores, "gpus": hw.gpus, **found} for hw, found in each]
            for contender, each in tried.items()
        },
        "bounds": bounds,
    }
    return figures, samples


def table(figures: Mapping[str, float], levels: Sequence[float]) -> Iterator[str]:
    """For people."""
    yield f"{'level':>6} {'policy':14} {'ACT s':>8} {'p99 s':>8} {'step s':>8}"
    for level in levels:
        for contender in Contender:
            name = f"sim_{level_name(level)}_{contender}"
            act, p99, step = (figures[f"{name}_{key}_s"] for key in ("act", "p99", "step"))
            yield f"{level:6g} {contender:14} {act:8.2f} {p99:8.1f} {step:8.0f}"
    acts = [value for name, value in figures.items() if name.endswith("_act_gain")]
    steps = [value for name, value in figures.items() if name.endswith("_step_gain")]
    yield f"{OURS} against pods of 4 cores: ACT {_range(acts)}, step {_range(steps)}"
    for contender in (OURS, *SIMPLER):
        suffix = "" if contender is OURS else f"_{contender}"
        cores, gpus = figures[f"sim_saving_cores{suffix}"], figures[f"sim_saving_gpus{suffix}"]
        yield f"{contender}: {cores:.0%} of cores and {gpus:.0%} of devices saved at ACT and step of static pods on all"
    yield f"{figures['sim_bound_ratio']:.3f} of a clairvoyant bound without resizing, on one node in bursts"


def _range(values: list[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}x"


def _to_keep(runs: _Runs) -> dict[str, float]:
    static = runs.mean_of(Contender.STATIC, Hardware(1.0, 1.0))
    return {"act_s": static["act"], "step_s": static["step"]}


def _level_figures(sizes: Sizes, runs: _Runs) -> dict[str, float]:
    figures: dict[str, float] = {}
    for level in sizes.levels:
        hardware = Hardware(level, level)
        means = {contender: runs.mean_of(contender, hardware) for contender in Contender}
        for contender, mean in means.items():
            figures |= {f"sim_{level_name(level)}_{contender}_{name}_s": mean[key] for name, key in REPORTED.items()}
        for name in ("act", "step"):
            figures[f"sim_{level_name(level)}_{name}_gain"] = means[Contender.STATIC][name] / means[OURS][name]
    return figures


def _saving_figures(saving: Saving | None, suffix: str) -> dict[str, float]:
    hardware = saving.hardware if saving is not None else Hardware(1.0, 1.0)
    return {
        f"sim_saving_cores{suffix}": 1.0 - hardware.cores / CORES,
        f"sim_saving_gpus{suffix}": 1.0 - hardware.gpus / GPUS,
    }


def level_name(level: float) -> str:
    """r1, r05, r025, r0125."""
    return "r" + f"{level:g}".replace(".", "")

"""The paper's comparison on this machine's cores: real programs in real sandboxes under increasing load.

The rollouts are those of `tangram demo`, with a separate system for each policy. Pods of static provisioning have as
many cores as their tests can use. All policies do the same work. If the machine was busier under one of them
(`machine_cpu_s` of the samples, including start and end of the system), other processes used part of it.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arl_bench.demo.attempts import plan_trajectories
from arl_bench.demo.policies import (
    FCFS,
    OVERCOMMITTED,
    STATIC,
    TANGRAM,
    UNLIMITED,
    PolicyRun,
    policy_figures,
    policy_samples,
    run_policy,
)
from arl_bench.demo.problems import bundled_problems
from arl_bench.harness.process_usage import machine_cpu_s

__all__ = ["PAPER_RESULTS", "RealCoresBenchConfig", "comparison_table", "paper_result_lines", "run_real_cores"]

CONTENDERS = {
    "static": STATIC,
    "overcommitted": OVERCOMMITTED,
    "unlimited": UNLIMITED,
    "fcfs": FCFS,
    "spar_m": TANGRAM,
}
REPORTED_FIGURES = {"act": "act_mean_s", "step": "step_s", "p99": "act_p99_s"}
PER_PROBLEM = 2

PAPER_RESULTS = {
    "act_gain": 4.3,
    "step_gain": 1.5,
    "saved": 0.712,
    "conditions": "arXiv 2603.13019: «up to», against static provisioning, on its authors' clusters and workloads",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealCoresBenchConfig:
    cores: int
    problems: int = 4
    """Number of problems at load x1. Each has two trajectories; all run concurrently."""
    loads: tuple[int, ...] = (1, 2, 4)
    contenders: tuple[str, ...] = tuple(CONTENDERS)
    seed: int = 0

    @classmethod
    def for_this_machine(cls, *, short: bool) -> "RealCoresBenchConfig":
        cores = len(os.sched_getaffinity(0))
        if short:
            return cls(cores=cores, problems=1, loads=(1,), contenders=("static", "spar_m"))
        return cls(cores=cores)


def run_real_cores(
    config: RealCoresBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures, and the times of each action and trajectory. Raises `Unavailable` if no sandbox works."""
    figures: dict[str, float] = {}
    samples: dict[str, Any] = {}
    for load in config.loads:
        runs: dict[str, PolicyRun] = {}
        busy: dict[str, float] = {}
        for contender in config.contenders:
            before = machine_cpu_s()
            runs[contender] = _run_contender(config, contender, load, report_progress)
            busy[contender] = round(machine_cpu_s() - before, 1)
        found = policy_figures(list(runs.values()))
        for contender in runs:
            name = CONTENDERS[contender]
            figures |= {
                f"real_x{load}_{contender}_{ours}_s": found[f"{name}_{key}"] for ours, key in REPORTED_FIGURES.items()
            }
        figures |= _gains(figures, f"real_x{load}")
        wrong = sum(not rollout.is_correct for rollout in runs["spar_m"].rollouts)
        figures["real_wrong_rewards"] = figures.get("real_wrong_rewards", 0) + wrong
        samples[f"x{load}"] = policy_samples(list(runs.values())) | {"figures": found, "machine_cpu_s": busy}
    return figures, samples


def _run_contender(
    config: RealCoresBenchConfig, contender: str, load: int, report_progress: Callable[[str], None]
) -> PolicyRun:
    plans = plan_trajectories(bundled_problems()[: load * config.problems], trajectories=PER_PROBLEM, seed=config.seed)
    run = run_policy(
        CONTENDERS[contender],
        plans,
        cores=config.cores,
        driver="auto",
        on_action=lambda action: None,
        on_rollout=lambda rollout: None,
    )
    report_progress(f"x{load} {contender:14} {len(plans)} trajectories, {len(run.actions)} actions, {run.wall_s:.1f} s")
    return run


def _gains(figures: Mapping[str, float], level: str) -> dict[str, float]:
    """Return the gains of our policy over static provisioning."""
    return {
        f"{level}_{name}_gain": figures[f"{level}_static_{name}_s"] / figures[f"{level}_spar_m_{name}_s"]
        for name in ("act", "step")
    }


def comparison_table(figures: Mapping[str, float], config: RealCoresBenchConfig) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"{'load':>6} {'policy':14} {'ACT s':>8} {'p99 s':>8} {'step s':>8}"
    for load in config.loads:
        for contender in config.contenders:
            act, p99, step = (figures[f"real_x{load}_{contender}_{key}_s"] for key in ("act", "p99", "step"))
            yield f"{'x' + str(load):>6} {contender:14} {act:8.3f} {p99:8.2f} {step:8.1f}"
    gains = [(figures[f"real_x{load}_act_gain"], figures[f"real_x{load}_step_gain"]) for load in config.loads]
    for load, (act, step) in zip(config.loads, gains, strict=True):
        yield f"x{load}: spar_m against pods of the tests' cores: ACT {act:.2f}x, step {step:.2f}x"


def paper_result_lines() -> Iterator[str]:
    """Yield the results that the paper reports."""
    act, step, saved = (PAPER_RESULTS[name] for name in ("act_gain", "step_gain", "saved"))
    yield f"the paper: ACT {act}x, step {step}x, {saved:.1%} saved"
    yield f"({PAPER_RESULTS['conditions']})"

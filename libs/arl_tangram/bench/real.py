"""The paper's comparison on this machine's cores: real programs in real sandboxes, ever more trajectories at once.

The rollouts are those of `tangram demo`, each policy with a system of its own. Static provisioning has pods of as many
cores as their tests can use. All do the same work: where the whole machine was busier under one than under another
(`machine_cpu_s` of the samples, with the system's start and end), something else had a part of it.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arl_tangram.bench.cpu_time import machine_cpu_s
from arl_tangram.demo.attempts import plans_for
from arl_tangram.demo.policies import (
    FCFS,
    OVERCOMMITTED,
    STATIC,
    TANGRAM,
    PolicyRun,
    figures_of_policies,
    run_policy,
    samples_of_policies,
)
from arl_tangram.demo.problems import bundled_problems

__all__ = ["Sizes", "run_real", "table"]

CONTENDERS = {"static": STATIC, "overcommitted": OVERCOMMITTED, "fcfs": FCFS, "spar_m": TANGRAM}
REPORTED = {"act": "act_mean_s", "step": "step_s", "p99": "act_p99_s"}
PER_PROBLEM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    cores: int
    problems: int = 4
    """At load x1; two trajectories of each, all at once."""
    loads: tuple[int, ...] = (1, 2, 4)
    contenders: tuple[str, ...] = tuple(CONTENDERS)
    seed: int = 0

    @classmethod
    def of_this_machine(cls, *, short: bool) -> "Sizes":
        cores = len(os.sched_getaffinity(0))
        if short:
            return cls(cores=cores, problems=1, loads=(1,), contenders=("static", "spar_m"))
        return cls(cores=cores)


def run_real(sizes: Sizes, say: Callable[[str], None]) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures, and the times of each action and trajectory. Raises `Unavailable` where no sandbox works."""
    figures: dict[str, float] = {}
    samples: dict[str, Any] = {}
    for load in sizes.loads:
        runs: dict[str, PolicyRun] = {}
        busy: dict[str, float] = {}
        for contender in sizes.contenders:
            before = machine_cpu_s()
            runs[contender] = _run(sizes, contender, load, say)
            busy[contender] = round(machine_cpu_s() - before, 1)
        found = figures_of_policies(list(runs.values()))
        for contender in runs:
            name = CONTENDERS[contender]
            figures |= {f"real_x{load}_{contender}_{ours}_s": found[f"{name}_{key}"] for ours, key in REPORTED.items()}
        figures |= _gains(figures, f"real_x{load}")
        wrong = sum(not rollout.right for rollout in runs["spar_m"].rollouts)
        figures["real_wrong_rewards"] = figures.get("real_wrong_rewards", 0) + wrong
        samples[f"x{load}"] = samples_of_policies(list(runs.values())) | {"figures": found, "machine_cpu_s": busy}
    return figures, samples


def _run(sizes: Sizes, contender: str, load: int, say: Callable[[str], None]) -> PolicyRun:
    plans = plans_for(bundled_problems()[: load * sizes.problems], trajectories=PER_PROBLEM, seed=sizes.seed)
    run = run_policy(
        CONTENDERS[contender],
        plans,
        cores=sizes.cores,
        driver="auto",
        on_action=lambda action: None,
        on_rollout=lambda rollout: None,
    )
    say(f"x{load} {contender:14} {len(plans)} trajectories, {len(run.actions)} actions, {run.wall_s:.1f} s")
    return run


def _gains(figures: Mapping[str, float], level: str) -> dict[str, float]:
    """Of ours against static provisioning."""
    return {
        f"{level}_{name}_gain": figures[f"{level}_static_{name}_s"] / figures[f"{level}_spar_m_{name}_s"]
        for name in ("act", "step")
    }


def table(figures: Mapping[str, float], sizes: Sizes) -> Iterator[str]:
    """For people."""
    yield f"{'load':>6} {'policy':14} {'ACT s':>8} {'p99 s':>8} {'step s':>8}"
    for load in sizes.loads:
        for contender in sizes.contenders:
            act, p99, step = (figures[f"real_x{load}_{contender}_{key}_s"] for key in ("act", "p99", "step"))
            yield f"{'x' + str(load):>6} {contender:14} {act:8.3f} {p99:8.2f} {step:8.1f}"
    gains = [(figures[f"real_x{load}_act_gain"], figures[f"real_x{load}_step_gain"]) for load in sizes.loads]
    for load, (act, step) in zip(sizes.loads, gains, strict=True):
        yield f"x{load}: spar_m against pods of the tests' cores: ACT {act:.2f}x, step {step:.2f}x"

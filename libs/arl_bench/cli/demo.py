"""`demo`: the same rollouts with one pod per rollout, with pods without limits, and under Tangram."""

from pathlib import Path
from typing import Annotated, Any

import typer

from arl_bench.cli.demo_runs import (
    CoresOption,
    PictureOption,
    ProblemsOption,
    SeedOption,
    TrajectoriesOption,
    UnsafeLocalOption,
    choose_problems,
    draw_picture,
    exit_if_wrong,
    run_policies,
    stop_on_signals,
    usable_cores,
)
from arl_bench.demo.attempts import THINK_SCALE, plan_trajectories
from arl_bench.demo.policies import STATIC, TANGRAM, UNLIMITED, PolicyRun, policy_figures, policy_samples
from arl_bench.demo.report import comparison_claim, demo_figures, print_comparison, wrong_rewards
from arl_bench.harness.report import build_report
from arl_tangram.cli.output import JsonOption, print_json, stdout

__all__ = ["register"]

PROBLEMS, QUICK_PROBLEMS = 10, 4
PER_PROBLEM = 3
"""Rollouts per problem. Two of three submit a reward hack, so that ten problems suffice for each kind."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(demo)


def demo(
    problems: ProblemsOption = None,
    trajectories: TrajectoriesOption = PER_PROBLEM,
    quick: Annotated[bool, typer.Option("--quick", help=f"The first {QUICK_PROBLEMS} problems only.")] = False,
    cores: CoresOption = 2,
    picture: PictureOption = Path("tangram-demo"),
    seed: SeedOption = 0,
    unsafe_local: UnsafeLocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare Tangram with pods: same rollouts, same cores.

    Each rollout writes, tests and submits code with thinking time in between. Only correct code deserves a reward.
    One baseline is a pod with reserved cores for each rollout. The other is pods without CPU limits, whose cores the
    kernel shares. Each policy runs on a temporary system. The exit code is 1 if Tangram gave a wrong reward.
    `tangram bench demo` compares six policies.
    """
    chosen = choose_problems(problems, unsafe_local=unsafe_local)
    chosen = chosen[: QUICK_PROBLEMS if quick else PROBLEMS]
    plans = plan_trajectories(chosen, trajectories=trajectories, seed=seed, sandboxed=not unsafe_local)
    cores = usable_cores(cores)
    with stop_on_signals():
        runs = run_policies([STATIC, UNLIMITED, TANGRAM], plans, cores=cores, unsafe_local=unsafe_local)
    load = {"problems": len(chosen), "per_problem": trajectories, "seed": seed, "think_scale": THINK_SCALE}
    _show_results(runs, load | {"cores": cores}, picture, as_json=as_json)


def _show_results(runs: list[PolicyRun], load: dict[str, Any], picture: Path, *, as_json: bool) -> None:
    static, unlimited, ours = runs
    wrongs = wrong_rewards(ours.rollouts)
    paths = draw_picture(runs, picture)
    if as_json:
        figures = demo_figures(ours.rollouts, wall_s=ours.wall_s) | policy_figures(runs)
        samples = {"wrong": wrongs, "pictures": [str(path) for path in paths]} | policy_samples(runs)
        print_json(build_report("demo", load=load, figures=figures, samples=samples))
    else:
        stdout.print()
        print_comparison(stdout, runs)
        if paths:
            stdout.print(f"Picture: {', '.join(str(path) for path in paths)}", markup=False)
        stdout.print()
        style = "bold red" if wrongs else "bold green"
        stdout.print(comparison_claim(static, ours, unlimited), style=style, markup=False, soft_wrap=False)
    exit_if_wrong(wrongs)

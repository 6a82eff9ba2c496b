"""`bench step`: the length of a training step under several policies."""

from dataclasses import asdict
from typing import Annotated

import typer

from arl_bench.harness.bench_system import NoSandbox
from arl_bench.harness.report import print_report
from arl_bench.step.comparison import CONTENDERS, StepBenchConfig, comparison_table, run_step_comparison
from arl_bench.step.workloads import StepWorkloadName
from arl_tangram.cli.output import EXIT_NO_SANDBOX, EXIT_USAGE, JsonOption, fail, print_progress, stdout
from arl_wire.errors import TangramError

__all__ = ["register"]


def register(group: typer.Typer) -> None:
    """Add the command of this module."""
    group.command()(step)


def step(
    as_json: JsonOption = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of steps of each workload.")] = 7,
    first_seed: Annotated[int, typer.Option(min=0, help="Seed of the first step.")] = 101,
    workload: Annotated[list[StepWorkloadName] | None, typer.Option(help="Workload; may be repeated.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(CONTENDERS)}; may be repeated. Default: all.")
    ] = None,
) -> None:
    """Compare the length of training steps with pods without CPU limits, on all cores of this machine."""
    if unknown := set(policy or ()) - set(CONTENDERS):
        fail(f"--policy {min(unknown)}: unknown policy. Available: {', '.join(CONTENDERS)}", EXIT_USAGE)
    config = StepBenchConfig(
        seeds=seeds,
        first_seed=first_seed,
        workloads=tuple(workload or StepWorkloadName),
        contenders=tuple(policy or CONTENDERS),
    )
    try:
        figures, samples = run_step_comparison(config, print_progress)
    except NoSandbox as error:
        fail(str(error), EXIT_NO_SANDBOX)
    except (TangramError, RuntimeError) as error:
        fail(str(error))
    if not as_json:
        for line in comparison_table(figures, config):
            stdout.print(line, markup=False)
    print_report("step", as_json=as_json, load=asdict(config), figures=figures, samples=samples, repeats=seeds)

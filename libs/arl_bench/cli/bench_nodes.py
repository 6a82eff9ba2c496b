"""Benchmarks of several nodes: the control plane, and pools that scale."""

from dataclasses import asdict
from typing import Annotated

import typer

from arl_bench.control_plane.autoscale import AutoscaleBenchConfig, run_autoscale
from arl_bench.control_plane.scale import RAY_PACKAGE, SIMULATED_CORES, ScaleBenchConfig, run_scale
from arl_bench.harness.report import print_report
from arl_bench.rewards.peer_servers import peers_directory
from arl_tangram.cli.output import JsonOption, fail, print_progress
from arl_wire.errors import TangramError

__all__ = ["register"]


def register(group: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (scale, autoscale):
        group.command()(command)


def scale(
    as_json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of all measurements.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of each measurement of throughput.")] = 8.0,
    starts: Annotated[int, typer.Option(min=10, help="Single actions per repeat, for the latency.")] = 100,
    with_ray: Annotated[
        bool, typer.Option("--ray/--no-ray", help="Also measure Ray tasks, installed on demand.")
    ] = True,
) -> None:
    """Measure the control plane with 1, 2, 4 and 8 simulated nodes and 3 real ones, beside Ray tasks."""
    sizes = ScaleBenchConfig(repeats=repeats, seconds=seconds, starts=starts)
    try:
        figures, samples = run_scale(sizes, peers_directory() if with_ray else None, print_progress)
    except (TangramError, RuntimeError) as error:
        fail(str(error))
    load = {**asdict(sizes), "simulated_cores_per_node": SIMULATED_CORES, "peers": [RAY_PACKAGE] if with_ray else []}
    print_report("scale", as_json=as_json, load=load, figures=figures, samples=samples, repeats=repeats)


def autoscale(
    as_json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of both pools.")] = 1,
    trajectories: Annotated[int, typer.Option(min=1, help="Trajectories that start together.")] = 48,
    bursts: Annotated[int, typer.Option(min=1, help="Number of bursts.")] = 2,
    gap_s: Annotated[float, typer.Option(min=0, help="Recorded seconds between two bursts.")] = 240.0,
    speed: Annotated[float, typer.Option(min=1, help="Factor by which the recorded times are shortened.")] = 2.0,
) -> None:
    """Measure a pool that scales beside a fixed pool of the peak size, under bursts of recorded agent runs."""
    sizes = AutoscaleBenchConfig(repeats=repeats, trajectories=trajectories, bursts=bursts, gap_s=gap_s, speed=speed)
    try:
        figures, samples = run_autoscale(sizes, print_progress)
    except (TangramError, RuntimeError) as error:
        fail(str(error))
    print_report("autoscale", as_json=as_json, load=asdict(sizes), figures=figures, samples=samples, repeats=repeats)

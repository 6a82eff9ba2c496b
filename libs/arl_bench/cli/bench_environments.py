"""`bench environments`: creation, first command, bursts and forks of environments."""

from dataclasses import asdict
from typing import Annotated

import typer

from arl_bench.harness.bench_system import NoSandbox
from arl_bench.harness.report import print_report
from arl_bench.rewards.peer_servers import peers_directory
from arl_bench.sandboxes.environment_speed import EnvironmentBenchConfig, run_environment_speed
from arl_tangram.cli.output import EXIT_NO_SANDBOX, JsonOption, fail, print_progress
from arl_wire.errors import TangramError

__all__ = ["register"]


def register(group: typer.Typer) -> None:
    """Add the command of this module."""
    group.command()(environments)


def environments(
    as_json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of the creations with a first command.")] = 3,
    creations: Annotated[int, typer.Option(min=2, help="Environments of each repeat.")] = 100,
    burst: Annotated[int, typer.Option(min=2, help="Environments that are created at once.")] = 1000,
    live: Annotated[int, typer.Option(min=0, help="Environments that exist together; 0 to leave this out.")] = 2000,
    forks: Annotated[int, typer.Option(min=2, help="Forks of one environment.")] = 64,
    with_peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Also measure E2B's client, SWE-ReX and podman.")
    ] = True,
) -> None:
    """Measure environments from creation to the first command, beside other sandboxes. Uses its own system."""
    config = EnvironmentBenchConfig(repeats=repeats, creations=creations, burst=burst, live=live, forks=forks)
    try:
        figures, samples = run_environment_speed(config, peers_directory() if with_peers else None, print_progress)
    except NoSandbox as error:
        fail(str(error), EXIT_NO_SANDBOX)
    except (TangramError, RuntimeError) as error:
        fail(str(error))
    load = asdict(config)
    print_report("environments", as_json=as_json, load=load, figures=figures, samples=samples, repeats=repeats)

"""`replay`: run recorded trajectories as one training step, simulated or with real processes."""

import asyncio
import gzip
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arl_bench.simulation.real_replay import run_real_replay
from arl_tangram.async_client import AsyncTangram
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_USAGE, JsonOption, fail, print_json, stdout
from arl_tangram.transport.connection import resolve_connection
from arl_wire.errors import TangramError

if TYPE_CHECKING:
    from arl_sim.replay import ReplayPolicy
    from arl_sim.workload import SimWorkload

__all__ = ["register"]

POLICIES = "unlimited,tangram"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(replay)


def replay(
    directory: DirOption,
    file: Annotated[
        Path | None,
        typer.Argument(help="Trace of `tangram record`, or JSON lines with `turns`: thinking and run time of each."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Recorded runs of this agent, instead of a file.")] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Simulate nodes instead of using this system.")] = False,
    policy: Annotated[str, typer.Option(help="Policies of the simulation, separated by commas.")] = POLICIES,
    nodes: Annotated[int, typer.Option(min=1, help="Simulated nodes.")] = 1,
    cores: Annotated[int, typer.Option(min=1, help="Cores of each simulated node.")] = 64,
    trajectories: Annotated[
        int | None,
        typer.Option(min=1, help="Number of runs drawn at random from JSON lines or --agent. Default: all."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0,
    cpu_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="Fraction of its run time in which a command uses a core.")
    ] = 0.35,
    speed: Annotated[float, typer.Option(min=1, help="Factor by which real processes are faster than the trace.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Replay recorded trajectories as one training step: completion times and step time.

    With --simulate, compare policies on simulated nodes. Otherwise, run the trajectories on the running system.
    """
    try:
        workload = _load(file, agent, trajectories, seed, cpu_share)
        found = (
            _simulate(workload, _policies(policy), nodes, cores)
            if simulate
            else asyncio.run(_run(workload, directory, speed))
        )
    except ModuleNotFoundError as missing:
        fail(f"{missing.name} is not installed; `pip install 'arl-tangram-server'` brings it")
    except TangramError as error:
        fail(str(error))
    if as_json:
        hardware = {"nodes": nodes, "cores": cores} if simulate else {"speed": speed}
        print_json({"trajectories": len(workload.trajectories), **hardware, "policies": found})
    else:
        _print_table(found)


def _load(file: Path | None, agent: str | None, count: int | None, seed: int, cpu_share: float) -> "SimWorkload":
    from arl_sim.workloads.agent_runs import agent_workload, load_agent_runs, read_agent_runs, sample_runs
    from arl_sim.workloads.trace import FORMAT, TraceError, read_trace, to_workload

    if (file is None) == (agent is None):
        fail("give a file or --agent, and not both", EXIT_USAGE)
    try:
        if file is None:
            assert agent is not None
            runs = list(load_agent_runs(agent))
        else:
            lines = _read_lines(file)
            if lines and FORMAT in lines[0]:
                return to_workload(read_trace(lines))
            runs = read_agent_runs(lines)
            if not runs:
                raise TraceError("no trajectory in it has thinking and run times")
    except (OSError, EOFError, UnicodeDecodeError, TraceError) as error:
        fail(f"{file}: {error}", EXIT_USAGE)
    except ValueError as error:
        fail(f"--agent: {error}", EXIT_USAGE)
    chosen = sample_runs(runs, count, seed) if count is not None else runs
    return agent_workload(chosen, cpu_share=cpu_share)


def _read_lines(file: Path) -> list[str]:
    data = file.read_bytes()
    return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode().splitlines()


def _policies(names: str) -> "Sequence[ReplayPolicy]":
    from arl_sim.replay import ReplayPolicy

    try:
        return [ReplayPolicy(name.strip()) for name in names.split(",")]
    except ValueError:
        available = ", ".join(ReplayPolicy)
        fail(f"--policy {names}: unknown policy. Available: {available}", EXIT_USAGE)


def _simulate(
    workload: "SimWorkload", policies: "Sequence[ReplayPolicy]", nodes: int, cores: int
) -> dict[str, dict[str, float]]:
    from arl_sim.replay import replay as simulate_policy
    from arl_sim.results import compute_statistics

    found = {}
    for name in policies:
        statistics = asdict(compute_statistics(simulate_policy(workload, name, nodes=nodes, cores=cores)))
        found[str(name)] = {key: statistics[key] for key in ("act", "p50", "p99", "queue", "step", "cpu_busy")}
    return found


async def _run(workload: "SimWorkload", directory: Path, speed: float) -> dict[str, dict[str, float]]:
    connection = resolve_connection(directory=directory)
    async with AsyncTangram(connection.url, connection.api_key) as client:
        return {"this system": await run_real_replay(client, workload, speed=speed)}


def _print_table(found: dict[str, dict[str, float]]) -> None:
    first = next(iter(found.values()))
    stdout.print(f"{'policy':14} {'ACT s':>9} {'p99 s':>9} {'step s':>9}   ratios to the first", markup=False)
    for name, figures in found.items():
        values = " ".join(f"{figures[key]:9.2f}" for key in ("act", "p99", "step"))
        ratios = " ".join(f"{figures[key] / first[key] if first[key] else 1.0:5.2f}" for key in ("act", "p99", "step"))
        stdout.print(f"{name:14} {values}   {ratios}", markup=False)

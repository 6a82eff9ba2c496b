"""Benchmarks of cores that actions share: false timeouts, and exclusive actions beside shared ones."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from arl_bench.cli.running_system import ensure_system_up
from arl_bench.harness.bench_system import NoSandbox
from arl_bench.harness.report import print_report
from arl_bench.sandboxes.core_sharing import CoreSharingBenchConfig, run_core_sharing
from arl_bench.sandboxes.false_timeouts import CLIENTS, CPU_S, MANY_CLIENTS, TIMEOUT_S, run_false_timeouts
from arl_bench.step.workloads import StepWorkloadName
from arl_tangram.async_client import AsyncTangram
from arl_tangram.cli.local_state import DirOption, LocalState
from arl_tangram.cli.output import EXIT_FAILED, EXIT_NO_SANDBOX, JsonOption, fail, print_progress
from arl_tangram.transport.connection import resolve_connection
from arl_wire.errors import TangramError

__all__ = ["register"]


def register(group: typer.Typer) -> None:
    """Add the commands of this module."""
    group.command("false-timeouts")(false_timeouts)
    group.command("core-sharing")(core_sharing)


def false_timeouts(directory: DirOption, as_json: JsonOption = False) -> None:
    """Run 64 and 256 programs of 1 CPU-second with a 10 s limit, each submitted at once by its own client."""
    with ensure_system_up(LocalState(directory)):
        print_progress(
            f"{CLIENTS} programs of 1 CPU-second at once with exclusive and with shared cores, then {MANY_CLIENTS};"
            " this takes about 200 s on 2 cores"
        )
        try:
            figures, samples, cores = asyncio.run(_run_false_timeouts(directory))
        except TangramError as error:
            fail(str(error))
    clients = [CLIENTS, CLIENTS, MANY_CLIENTS]
    load = {"clients": clients, "cpu_s": CPU_S, "limit_s": TIMEOUT_S, "cores": cores, "probe_priority": 1}
    print_report("false-timeouts", as_json=as_json, load=load, figures=figures, samples=samples)
    ended = [figures[f"ok_of_{CLIENTS}"], figures[f"shared_ok_of_{CLIENTS}"], figures[f"ok_of_{MANY_CLIENTS}"]]
    if ended != clients:
        raise typer.Exit(EXIT_FAILED)


async def _run_false_timeouts(directory: Path) -> tuple[dict[str, float], dict[str, Any], int]:
    connection = resolve_connection(directory=directory)
    async with AsyncTangram(connection.url, connection.api_key) as client:
        nodes = (await client.nodes()).items
        cores = sum(node.capacity.get("cpu_milli", 0) for node in nodes if node.alive) // 1000
        if not cores:
            fail("no node is alive; `tangram status` says more")
        figures, samples = await run_false_timeouts(client, cores=cores)
    return figures, samples, cores


def core_sharing(
    as_json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of the exclusive program.")] = 5,
    shared: Annotated[int, typer.Option(min=1, help="Shared programs that run meanwhile.")] = 40,
    seeds: Annotated[int, typer.Option(min=0, help="Steps of each workload whose commands have limits.")] = 1,
    workload: Annotated[list[StepWorkloadName] | None, typer.Option(help="Workload; may be repeated.")] = None,
) -> None:
    """Measure exclusive actions beside shared ones, and count commands that tight limits end without reason."""
    config = CoreSharingBenchConfig(
        repeats=repeats, shared=shared, seeds=seeds, workloads=tuple(workload or StepWorkloadName)
    )
    try:
        figures, samples = run_core_sharing(config, print_progress)
    except NoSandbox as error:
        fail(str(error), EXIT_NO_SANDBOX)
    except (TangramError, RuntimeError) as error:
        fail(str(error))
    print_report(
        "core-sharing", as_json=as_json, load=asdict(config), figures=figures, samples=samples, repeats=repeats
    )

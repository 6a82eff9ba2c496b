"""`record` and `simulate`: record a trace of actions, and simulate a trace on other hardware."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from arl_tangram.cli.client import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_USAGE, FormatOption, OutputFormat, fail, print_json, stderr, stdout
from arl_tangram.client import Tangram
from arl_wire.admin.queues import Queue
from arl_wire.errors import Forbidden

if TYPE_CHECKING:
    from arl_sim.results import SimResult
    from arl_sim.workload import SimWorkload

__all__ = ["register"]


class PolicyChoice(StrEnum):
    """The policies, named as in `TANGRAM_POLICY`."""

    SPAR = "spar"
    SPAR_M = "spar_m"
    REFERENCE = "reference"
    FCFS = "fcfs"
    STATIC = "static"
    OVERCOMMITTED = "overcommitted"
    UNLIMITED = "unlimited"


class WorkloadChoice(StrEnum):
    """Generated workloads, which need no recording."""

    PROTOTYPE = "prototype"
    CODING = "coding"
    DEEPSEARCH = "deepsearch"
    MOPD = "mopd"
    MIXED = "mixed"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(record)
    app.command()(simulate)


def record(
    directory: DirOption,
    file: Annotated[Path, typer.Argument(help="Trace file to write.")],
    task: Annotated[str | None, typer.Option(help="Only actions of this task.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of actions, newest first.")] = 100_000,
) -> None:
    """Record the settled actions as a trace for `tangram simulate`."""
    try:
        from arl_bench.simulation.action_recording import record_actions, record_tasks
        from arl_sim.workloads.trace import RecordedTrace, trace_lines
    except ModuleNotFoundError as missing:
        _fail_missing_package(missing)
    with connected_client(directory) as tangram:
        settled = tangram.list(task=task, state="settled")
        actions = list(record_actions(action for _, action in zip(range(limit), settled, strict=False)))
        tasks = record_tasks(_read_queues(tangram))
    actions.sort(key=lambda action: action.submitted_s)
    try:
        file.write_text("".join(line + "\n" for line in trace_lines(RecordedTrace(actions, tasks))))
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    stdout.print(f"{len(actions)} actions in {file}", markup=False)


def _read_queues(tangram: Tangram) -> list[Queue]:
    """Return the queues of the project, or none with a warning if the key may not read them."""
    try:
        return tangram.queues()
    except Forbidden:
        stderr.print("weights and quotas are not recorded: they need a key with the scope admin:read", markup=False)
        return []


def simulate(
    file: Annotated[Path | None, typer.Argument(help="Trace file of `tangram record`.")] = None,
    workload: Annotated[WorkloadChoice | None, typer.Option(help="Generated workload instead of a trace.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated workload.")] = 0,
    policy: Annotated[list[PolicyChoice] | None, typer.Option(help="Scheduling policy; repeatable.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of CPU nodes.")] = 1,
    cores: Annotated[int, typer.Option(min=1, help="Cores per node.")] = 64,
    memory_mib: Annotated[
        int | None, typer.Option(min=1, help="Memory per node in MiB. Absent: memory does not limit.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, help="Number of GPUs, on nodes of 8.")] = 48,
    calls: Annotated[int, typer.Option(min=1, help="Concurrent calls and scores.")] = 48,
    pod_cores: Annotated[int, typer.Option(min=1, help="Cores per pod, for policies with pods.")] = 4,
    shared: Annotated[bool, typer.Option("--shared", help="Let reward services share devices and batch.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Path of the plot, without .svg and .png.")] = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Simulate a workload on these nodes: completion times, step time and utilization."""
    try:
        from arl_sim import sizing
        from arl_sim.results import compute_statistics
    except ModuleNotFoundError as missing:
        _fail_missing_package(missing)
    hardware = sizing.SimHardware(
        nodes=nodes,
        cores=cores,
        memory_mib=memory_mib,
        gpus=gpus,
        calls=calls,
        pod_cores=pod_cores,
        shared=shared,
    )
    load = _load_workload(file, workload, seed)
    results: dict[str, SimResult] = {}
    for name in policy or [PolicyChoice.SPAR_M]:
        try:
            results[name] = sizing.simulate(load, name, hardware)
        except sizing.DoesNotFitError as error:
            fail(str(error), EXIT_USAGE)
    found = {name: asdict(compute_statistics(result)) for name, result in results.items()}
    if output is OutputFormat.JSON:
        print_json({"hardware": asdict(hardware), "policies": found})
    else:
        _print_table(found)
    if plot is not None:
        _draw_plot(results, plot)


def _load_workload(file: Path | None, generated: WorkloadChoice | None, seed: int) -> "SimWorkload":
    from arl_sim.sizing import generate_workload
    from arl_sim.workloads.trace import TraceError, read_trace, to_workload

    if (file is None) == (generated is None):
        fail("give a trace or --workload, and not both", EXIT_USAGE)
    if generated is not None:
        return generate_workload(generated, seed)
    assert file is not None
    try:
        with file.open() as lines:
            return to_workload(read_trace(lines))
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file}: {error}", EXIT_USAGE)
    except TraceError as error:
        fail(f"{file}: {error}", EXIT_USAGE)


def _print_table(statistics: dict[str, dict[str, float]]) -> None:
    shown = ("act", "p50", "p99", "queue", "step")
    heading = "".join(f"{name + ' s':>9}" for name in shown)
    stdout.print(f"{'policy':14}{heading}  cores  devices busy  missed", markup=False)
    for policy, figures in statistics.items():
        times = "".join(f"{figures[name]:9.2f}" for name in shown)
        busy = f"{figures['cpu_busy']:5.0%}  {figures['gpu_busy']:12.0%}"
        stdout.print(f"{policy:14}{times}  {busy}  {figures['missed']:6.0f}", markup=False)


def _draw_plot(results: "dict[str, SimResult]", plot: Path) -> None:
    try:
        from arl_bench.simulation.plots import draw_simulation
    except ModuleNotFoundError:
        stderr.print("no picture: matplotlib is not installed (pip install 'arl-tangram-server[bench]')", markup=False)
        return
    try:
        for path in draw_simulation(results, plot):
            stderr.print(f"drawn in {path}", markup=False)
    except OSError as error:
        fail(f"{plot}: {error.strerror}")


def _fail_missing_package(missing: ModuleNotFoundError) -> NoReturn:
    fail(f"{missing.name} is not installed; `pip install 'arl-tangram-server'` brings it")

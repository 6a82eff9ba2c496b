"""`bench`: measurements that print one JSON document."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

import httpx
import typer

from arl_bench.cli import bench_demo, bench_environments, bench_nodes, bench_rewards, bench_sharing, bench_step
from arl_bench.control_plane import scheduling_rounds as rounds_
from arl_bench.control_plane.attacks import AttackBenchConfig, run_attacks
from arl_bench.control_plane.overhead import OverheadBenchConfig, run_overhead
from arl_bench.control_plane.soak import BATCH, CONCURRENT_BATCHES, RETENTION_SETTINGS, run_soak
from arl_bench.control_plane.trace_export import run_trace_export
from arl_bench.demo.attempts import THINK_SCALE
from arl_bench.harness.bench_system import NoSandbox
from arl_bench.harness.report import print_report
from arl_bench.paper import real_cores
from arl_bench.paper.real_cores import PAPER_RESULTS, paper_result_lines
from arl_bench.sandboxes import cpu_allocation as cpu_allocation_
from arl_bench.sandboxes import density as density_
from arl_bench.sandboxes import execution
from arl_bench.sandboxes import resize as resizing_
from arl_bench.sandboxes.execution import PeerSandbox, run_exec
from arl_tangram.cli.output import EXIT_FAILED, EXIT_NO_SANDBOX, EXIT_USAGE, JsonOption, fail, print_progress, stderr
from arl_wire.errors import TangramError

__all__ = ["register"]

group = typer.Typer(
    name="bench", no_args_is_help=True, help="Run benchmarks. Each prints JSON with hardware, versions and raw samples."
)


bench_rewards.register(group)
bench_nodes.register(group)
bench_demo.register(group)
bench_environments.register(group)
bench_sharing.register(group)
bench_step.register(group)


def register(app: typer.Typer) -> None:
    """Add the command group `bench`."""
    app.add_typer(group)


@group.callback()
def bench() -> None:
    """Run benchmarks. Each prints one JSON document."""


@group.command("cpu-allocation")
def cpu_allocation(
    as_json: JsonOption = False,
    repeats: Annotated[
        int, typer.Option(min=1, help="Measurements of each amount, with Tangram and with plain programs.")
    ] = 5,
    seconds: Annotated[float, typer.Option(min=0.5, help="Seconds of each CPU-bound program.")] = 2,
    resizes: Annotated[int, typer.Option(min=1, help="Number of timed resizes.")] = 50,
    steps: Annotated[int, typer.Option(min=1, help="Number of resizes after which the CPU usage is measured.")] = 12,
) -> None:
    """Measure the cores of actions compared with plain programs, and the delay of a resize. Uses its own system."""
    sizes = cpu_allocation_.CpuAllocationBenchConfig(repeats=repeats, seconds=seconds, resizes=resizes, steps=steps)
    try:
        figures, samples, limits = cpu_allocation_.run_cpu_allocation(
            sizes, lambda line: stderr.print(line, markup=False)
        )
    except TangramError as error:
        fail(str(error))
    load = asdict(sizes) | {"processes": 2, "plain_has": limits}
    print_report("cpu-allocation", as_json=as_json, load=load, figures=figures, samples=samples, repeats=repeats)


@group.command()
def resize(
    as_json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each tool and mode.")] = 3,
    work: Annotated[float, typer.Option(min=0.05, help="Work of each tool; 1 is about four CPU-seconds.")] = 1,
    tool: Annotated[
        list[str] | None, typer.Option(help=f"Tool to run; repeatable. Default: {', '.join(resizing_.PARALLEL_TOOLS)}.")
    ] = None,
) -> None:
    """Run real tools with more workers than cores while their cores change. Uses its own system."""
    tools = tuple(tool or resizing_.PARALLEL_TOOLS)
    if unknown := [name for name in tools if name not in resizing_.PARALLEL_TOOLS]:
        fail(f"there is no tool {unknown[0]!r}", EXIT_USAGE)
    sizes = resizing_.ResizeBenchConfig(repeats=repeats, work=work, tools=tools)
    try:
        figures, samples = resizing_.run_resize(sizes, lambda line: stderr.print(line, markup=False))
    except TangramError as error:
        fail(str(error))
    print_report("resize", as_json=as_json, load=asdict(sizes), figures=figures, samples=samples, repeats=repeats)


@group.command()
def tracing(
    as_json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each system.")] = 5,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of no-ops per measurement.")] = 10,
) -> None:
    """Measure no-ops per second with all spans exported and with none, alternating. Uses two separate systems."""
    sizes = OverheadBenchConfig(repeats=repeats, seconds=seconds)
    try:
        figures, samples = run_trace_export(sizes, lambda line: stderr.print(line, markup=False))
    except (TangramError, RuntimeError) as error:
        fail(str(error))
    load = {"seconds": seconds, "batch": sizes.batch, "batches": sizes.batches, "sampler": "always_on"}
    print_report("tracing", as_json=as_json, load=load, figures=figures, samples=samples, repeats=repeats)


@group.command()
def calls(
    as_json: JsonOption = False,
    short: Annotated[bool, typer.Option("--short", help="Run two shorter phases once.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each policy.")] = 3,
    retry_after: Annotated[bool, typer.Option(help="Let the API send Retry-After with a 429.")] = True,
) -> None:
    """Compare an API quota that one broker shares among all jobs with jobs that limit themselves."""
    from arl_bench.endpoints import quota_sharing as calls_

    sizes = calls_.EndpointBenchConfig.short() if short else calls_.EndpointBenchConfig(repeats=repeats)
    if not retry_after:
        sizes = replace(sizes, retry_after_s=None)
    try:
        figures, samples = calls_.run_calls(sizes, print_progress)
    except TangramError as error:
        fail(str(error))
    print_report("calls", as_json=as_json, load=asdict(sizes), figures=figures, samples=samples, repeats=sizes.repeats)
    if any(figures[f"failed_{way}"] for way in calls_.OUR_STRATEGIES):
        raise typer.Exit(EXIT_FAILED)


@group.command()
def overhead(
    as_json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="Number of measurements.")] = 3,
    seconds: Annotated[
        float, typer.Option(min=1, help="Seconds of no-ops per measurement; other rates take a quarter.")
    ] = 20,
    starts: Annotated[int, typer.Option(min=2, help="Starts on the idle system per measurement.")] = 100,
) -> None:
    """Measure actions per second and CPU time per action compared with plain processes. Uses two separate systems."""
    sizes = OverheadBenchConfig(repeats=repeats, seconds=seconds, starts=starts)
    try:
        figures, samples = run_overhead(sizes, lambda line: stderr.print(line, markup=False))
    except TangramError as error:
        fail(str(error))
    print_report("overhead", as_json=as_json, load=asdict(sizes), figures=figures, samples=samples, repeats=repeats)


@group.command("exec")
def exec_(
    as_json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="Number of measurements.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.5, help="Seconds of each rate.")] = 3,
    concurrency: Annotated[list[int] | None, typer.Option(min=1, help="Concurrent execs; repeatable.")] = None,
    sandboxfusion: Annotated[str | None, typer.Option(help="URL of a SandboxFusion server.")] = None,
    swerex: Annotated[str | None, typer.Option(help="URL of a SWE-ReX server.")] = None,
    swerex_token: Annotated[str, typer.Option(envvar="SWEREX_TOKEN", help="Token of the SWE-ReX server.")] = "",
) -> None:
    """Measure execs per second and CPU time per exec compared with plain processes and other sandboxes."""
    sizes = execution.ExecBenchConfig(repeats=repeats, seconds=seconds)
    if concurrency:
        sizes = replace(sizes, concurrencies=tuple(concurrency))
    peers = [*_sandboxfusion_peers(sandboxfusion), *_swerex_peers(swerex, swerex_token)]
    try:
        figures, samples = run_exec(sizes, peers, lambda line: stderr.print(line, markup=False))
    except (TangramError, httpx.HTTPError) as error:
        fail(str(error))
    print_report("exec", as_json=as_json, load=asdict(sizes), figures=figures, samples=samples, repeats=repeats)


@group.command()
def density(
    as_json: JsonOption = False,
    environments: Annotated[int, typer.Option(min=1, help="Number of idle environments.")] = 2000,
    samples: Annotated[int, typer.Option(min=2, help="Execs on the empty and on the full node.")] = 300,
    idle_s: Annotated[float, typer.Option(min=1, help="Seconds for which the full node is observed.")] = 20,
) -> None:
    """Measure memory and CPU of many idle environments on one node, and the latency of an exec next to them."""
    sizes = density_.DensityBenchConfig(environments=environments, samples=samples, idle_s=idle_s)
    try:
        figures, found = density_.run_density(sizes, lambda line: stderr.print(line, markup=False))
    except TangramError as error:
        fail(str(error))
    print_report("density", as_json=as_json, load=asdict(sizes), figures=figures, samples=found)


class PaperMode(StrEnum):
    SIM = "sim"  # the scheduler's policies on simulated nodes
    SITE = "site"  # the paper's own site, simulated
    CONTROL = "control"  # the whole control plane, nodes simulated, time compressed
    REAL = "real"  # this machine's cores


@dataclass(frozen=True, slots=True)
class _PaperOptions:
    short: bool
    levels: tuple[float, ...]
    compression: float | None


@dataclass(frozen=True, slots=True)
class _ComparisonResult:
    load: Mapping[str, Any]
    figures: dict[str, float]
    samples: dict[str, Any]
    lines: Sequence[str]
    repeats: int = 1


@group.command()
def paper(
    as_json: JsonOption = False,
    mode: Annotated[
        PaperMode,
        typer.Option(
            help="`sim`: simulated nodes, the scheduler's own policies. `site`: the same for the paper's own site and"
            " workloads. `control`: the real control plane, nodes simulated, time compressed. `real`: programs in"
            " sandboxes on this machine's cores."
        ),
    ] = PaperMode.SIM,
    short: Annotated[bool, typer.Option("--short", help="Run a shorter version.")] = False,
    level: Annotated[
        list[float] | None, typer.Option(min=0.01, max=1, help="Fraction of the hardware, not for `real`; repeatable.")
    ] = None,
    compression: Annotated[float | None, typer.Option(min=1, max=10, help="Speed-up of the time of `control`.")] = None,
) -> None:
    """Reproduce the paper's comparison of policies and static provisioning: simulated, control plane, or real cores."""
    if level and mode in (PaperMode.REAL, PaperMode.SITE):
        fail(f"--level: `{mode}` has a fixed number of cores", EXIT_USAGE)
    if compression and mode is not PaperMode.CONTROL:
        fail("--compression: only `control` compresses time", EXIT_USAGE)
    compare = {
        PaperMode.SIM: _run_simulated_paper,
        PaperMode.SITE: _run_paper_site,
        PaperMode.CONTROL: _run_control_plane_paper,
        PaperMode.REAL: _run_real_cores_paper,
    }[mode]
    try:
        found = compare(_PaperOptions(short, tuple(level or ()), compression))
    except ModuleNotFoundError as missing:
        # The simulator needs NumPy, which API clients do not need.
        fail(f"{missing.name} is not installed; `pip install 'arl-tangram-server'` brings it")
    except NoSandbox as error:
        fail(str(error), EXIT_NO_SANDBOX)
    except (TangramError, RuntimeError) as error:
        fail(str(error))
    load = {"mode": mode, **found.load, "paper": PAPER_RESULTS}
    lines = None if as_json else (*found.lines, *paper_result_lines())
    samples, repeats = found.samples, found.repeats
    print_report(
        "paper", as_json=as_json, load=load, figures=found.figures, samples=samples, repeats=repeats, lines=lines
    )


def _run_simulated_paper(options: _PaperOptions) -> _ComparisonResult:
    from arl_bench.paper import simulated as paper_

    sizes = paper_.PaperBenchConfig.short() if options.short else paper_.PaperBenchConfig()
    sizes = replace(sizes, levels=options.levels or sizes.levels)
    figures, samples = paper_.run_simulated_paper(sizes, print_progress)
    load = {"workload": "prototype", **asdict(sizes)}
    lines = list(paper_.comparison_table(figures, sizes.levels))
    return _ComparisonResult(load, figures, samples, lines, len(sizes.seeds) * sizes.steps)


def _run_paper_site(options: _PaperOptions) -> _ComparisonResult:
    from arl_bench.paper import site

    config = site.SiteBenchConfig.short() if options.short else site.SiteBenchConfig.full()
    figures, samples = site.run_paper_site(config, print_progress)
    return _ComparisonResult(
        asdict(config), figures, samples, list(site.site_table(figures, config)), len(config.seeds)
    )


def _run_control_plane_paper(options: _PaperOptions) -> _ComparisonResult:
    from arl_bench.paper import compressed_time

    sizes = (
        compressed_time.ControlPlaneBenchConfig.short() if options.short else compressed_time.ControlPlaneBenchConfig()
    )
    compression = options.compression or sizes.compression
    sizes = replace(sizes, levels=options.levels or sizes.levels, compression=compression)
    figures, samples = compressed_time.run_control_plane(sizes, print_progress)
    load = {"workload": "prototype, its coding task", **asdict(sizes)}
    return _ComparisonResult(load, figures, samples, list(compressed_time.comparison_table(samples["runs"])))


def _run_real_cores_paper(options: _PaperOptions) -> _ComparisonResult:
    sizes = real_cores.RealCoresBenchConfig.for_this_machine(short=options.short)
    figures, samples = real_cores.run_real_cores(sizes, print_progress)
    load = {"workload": "the demo's rollouts", **asdict(sizes), "think_scale": THINK_SCALE}
    return _ComparisonResult(load, figures, samples, list(real_cores.comparison_table(figures, sizes)))


@group.command()
def rounds(
    as_json: JsonOption = False,
    short: Annotated[bool, typer.Option("--short", help="Use fewer queued actions and rounds.")] = False,
    classes: Annotated[int, typer.Option(min=1, help="Number of classes of the queued actions, over 8 tasks.")] = 256,
) -> None:
    """Measure scheduling rounds with a very long queue without Postgres, and the time to read it from Postgres."""
    sizes = replace(
        rounds_.SchedulingRoundBenchConfig.short() if short else rounds_.SchedulingRoundBenchConfig(), classes=classes
    )
    try:
        figures, samples = rounds_.run_scheduling_rounds(sizes, print_progress)
    except (TangramError, RuntimeError, TimeoutError) as error:
        fail(str(error) or type(error).__name__)
    load = {**asdict(sizes), "policy": "spar_m"}
    print_report("rounds", as_json=as_json, load=load, figures=figures, samples=samples, repeats=sizes.repeats)


@group.command()
def attacks(
    as_json: JsonOption = False,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of all measurements.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds of each measurement.")] = 15.0,
) -> None:
    """Measure a client's latency while others send large bodies, half requests and archives that are slow to read."""
    sizes = AttackBenchConfig(repeats=repeats, seconds=seconds)
    try:
        figures, samples = run_attacks(sizes, print_progress)
    except TangramError as error:
        fail(str(error))
    print_report("attacks", as_json=as_json, load=asdict(sizes), figures=figures, samples=samples, repeats=repeats)


@group.command()
def soak(
    as_json: JsonOption = False,
    actions: Annotated[int, typer.Option(min=1000, help="Number of actions.")] = 300_000,
) -> None:
    """Run very many no-op actions on a separate system: memory, table sizes and latency over time."""
    try:
        figures, samples = run_soak(actions, lambda line: stderr.print(line, markup=False))
    except TangramError as error:
        fail(str(error))
    load = {"actions": actions, "batch": BATCH, "batches_at_once": CONCURRENT_BATCHES, **RETENTION_SETTINGS}
    print_report("soak", as_json=as_json, load=load, figures=figures, samples=samples)


def _sandboxfusion_peers(url: str | None) -> Iterator[PeerSandbox]:
    if url is not None:
        body = {"code": execution.PROGRAM, "language": "python"}
        yield PeerSandbox(name="sandboxfusion", url=f"{url.rstrip('/')}/run_code", body=body)


def _swerex_peers(url: str | None, token: str) -> Iterator[PeerSandbox]:
    if url is not None:
        body = {"command": ["python3", "-c", execution.PROGRAM]}
        yield PeerSandbox(name="swerex", url=f"{url.rstrip('/')}/execute", body=body, headers={"X-API-Key": token})

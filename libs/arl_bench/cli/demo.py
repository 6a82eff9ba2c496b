"""`demo`: real rollouts on this machine. It starts the system if necessary."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from arl_bench.demo.attempts import THINK_SCALE, TrajectoryPlan, plan_trajectories
from arl_bench.demo.policies import (
    OVERCOMMITTED,
    POLICIES,
    STATIC,
    TANGRAM,
    PolicyRun,
    policy_figures,
    policy_samples,
    run_policy,
)
from arl_bench.demo.problems import bundled_problems, read_problems
from arl_bench.demo.report import ISOLATION_CHECKS, demo_figures, print_policies, print_results, wrong_rewards
from arl_bench.demo.rollout import DemoRollout
from arl_bench.demo.run import run_demo
from arl_bench.harness.bench_system import NoSandbox
from arl_bench.harness.report import build_report
from arl_tangram.async_client import AsyncTangram
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.local_state import DirOption, LocalState
from arl_tangram.cli.output import EXIT_FAILED, EXIT_NO_SANDBOX, EXIT_USAGE, fail, print_json, stderr, stdout
from arl_tangram.transport.connection import resolve_connection
from arl_wire.actions.action import Action
from arl_wire.errors import TangramError, ValidationFailed

__all__ = ["ensure_system_up", "register"]

PER_PROBLEM = 2
QUICK_PROBLEMS = 8
QUICK_POLICIES = (TANGRAM, STATIC, OVERCOMMITTED)


class ProgressCallbacks(TypedDict):
    """Callbacks that receive the progress of the demo."""

    on_action: Callable[[Action], None]
    on_rollout: Callable[[DemoRollout], None]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(demo)


def demo(
    directory: DirOption,
    problems: Annotated[
        Path | None, typer.Option(help="A file in the HumanEval JSONL format, plain or gzipped.")
    ] = None,
    trajectories: Annotated[int | None, typer.Option(min=2, max=64, help="Trajectories per problem.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer problems and three policies, for a first look.")
    ] = False,
    policy: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(POLICIES)}; may be repeated.")] = None,
    cores: Annotated[int, typer.Option(min=1, help="Cores that actions may use, under every policy.")] = 2,
    picture: Annotated[Path, typer.Option(help="Where the picture goes: the name without .svg and .png.")] = Path(
        "tangram-demo"
    ),
    seed: Annotated[int, typer.Option(help="Of what is attempted and of the thinking times.")] = 0,
    unsafe_local: Annotated[
        bool, typer.Option(help="Where no sandbox works: bundled problems, without isolation.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Roll out trajectories that write, test, think and submit code. Only correct code is rewarded.

    The same rollouts run under Tangram's policy, FCFS and three forms of static provisioning, one after the other.
    Each run has its own system with the same cores. If a system is already up and no policy is given, they run there,
    once. Exit code 1 if any trajectory under Tangram's policy got a reward that its code does not deserve.
    """
    if unsafe_local and problems is not None:
        fail("--unsafe-local runs the bundled problems only: code from a file is not run without a sandbox", EXIT_USAGE)
    if unknown := set(policy or ()) - set(POLICIES):
        fail(f"--policy {min(unknown)}: there is {', '.join(POLICIES)}", EXIT_USAGE)
    try:
        chosen = read_problems(problems) if problems is not None else bundled_problems()
    except ValidationFailed as error:
        fail(str(error), EXIT_USAGE)
    chosen = chosen[:QUICK_PROBLEMS] if quick else chosen
    per_problem = trajectories or PER_PROBLEM
    cores = min(cores, len(os.sched_getaffinity(0)))
    plans_of = partial(plan_trajectories, chosen, trajectories=per_problem, seed=seed)
    load = {"problems": len(chosen), "per_problem": per_problem, "seed": seed, "think_scale": THINK_SCALE}
    if not policy and _is_running(LocalState(directory)):
        _run_on_running_system(directory, plans_of(sandboxed=_is_sandboxed(directory)), load, as_json=as_json)
        return
    policies = policy or list(QUICK_POLICIES if quick else POLICIES)
    runs = _run_policies(policies, plans_of(sandboxed=not unsafe_local), cores=cores, unsafe_local=unsafe_local)
    _show_policies(runs, load | {"cores": cores}, picture, as_json=as_json)


def _run_on_running_system(
    directory: Path, plans: tuple[TrajectoryPlan, ...], load: dict[str, Any], *, as_json: bool
) -> None:
    rollouts, wall_s = _run_rollouts(directory, plans)
    figures = demo_figures(rollouts, wall_s=wall_s)
    wrongs = wrong_rewards(rollouts)
    if as_json:
        samples = {"wrong": wrongs}
        print_json(build_report("demo", load=load | {"trajectories": len(plans)}, figures=figures, samples=samples))
    else:
        print_results(stdout, rollouts, figures)
        _print_verdict(figures)
    _exit_if_wrong(wrongs)


def _run_policies(
    policies: list[str], plans: tuple[TrajectoryPlan, ...], *, cores: int, unsafe_local: bool
) -> list[PolicyRun]:
    if unsafe_local:
        stderr.print("[bold red]NO SANDBOX: code runs with the rights of this user (--unsafe-local)[/bold red]")
    stderr.print(
        f"{len(plans)} trajectories on {cores} cores under {', '.join(policies)};"
        f" thinking times are {THINK_SCALE:g} of those measured on real agents"
    )
    driver = "unsafe-local" if unsafe_local else "auto"
    runs = []
    for each in policies:
        with _progress_bar(each, len(plans)) as told:
            try:
                runs.append(run_policy(each, plans, cores=cores, driver=driver, **told))
            except NoSandbox as error:
                fail(str(error), EXIT_NO_SANDBOX)
            except TangramError as error:
                fail(str(error))
    return runs


def _show_policies(runs: list[PolicyRun], load: dict[str, Any], picture: Path, *, as_json: bool) -> None:
    ours = next((run for run in runs if run.policy == TANGRAM), None)
    rollouts = ours.rollouts if ours is not None else ()
    figures = demo_figures(rollouts, wall_s=ours.wall_s) if ours is not None else {}
    wrongs = wrong_rewards(rollouts)
    paths = _draw_plot(runs, picture)
    if as_json:
        samples = {"wrong": wrongs, "pictures": [str(path) for path in paths]} | policy_samples(runs)
        print_json(build_report("demo", load=load, figures=figures | policy_figures(runs), samples=samples))
    else:
        if ours is not None:
            print_results(stdout, rollouts, figures)
            _print_verdict(figures)
        print_policies(stdout, runs)
        stdout.print("".join(f"drawn in {path}\n" for path in paths), end="", markup=False)
    _exit_if_wrong(wrongs)


def _draw_plot(runs: list[PolicyRun], picture: Path) -> list[Path]:
    try:
        from arl_bench.demo.plot import draw_policies
    except ImportError:
        stderr.print("no picture: matplotlib is not installed (pip install 'arl-tangram-server[bench]')", markup=False)
        return []
    try:
        return draw_policies(runs, picture)
    except OSError as error:
        stderr.print(f"no picture: {error}", markup=False)
        return []


def _exit_if_wrong(wrongs: list[dict[str, Any]]) -> None:
    for wrong in wrongs:
        stderr.print(f"[red]wrong[/red] {wrong}")
    if wrongs:
        raise typer.Exit(EXIT_FAILED)


def _is_running(state: LocalState) -> bool:
    return bool(os.environ.get("TANGRAM_URL")) or state.supervisor_pid() is not None


@contextmanager
def ensure_system_up(state: LocalState, *, unsafe_local: bool = False) -> Iterator[None]:
    """Use the system of TANGRAM_URL or of the state directory. If it is down, start it and stop it at the end."""
    if _is_running(state):
        yield
        return
    command = [sys.executable, "-m", "arl_tangram.cli"]
    where = ["--dir", str(state.directory)]
    flags = ["--unsafe-local"] if unsafe_local else []
    if unsafe_local:
        stderr.print("[bold red]NO SANDBOX: code runs with the rights of this user (--unsafe-local)[/bold red]")
    started = subprocess.run([*command, "up", "-d", *where, *flags], stdout=subprocess.DEVNULL, check=False)
    if started.returncode:
        raise typer.Exit(EXIT_NO_SANDBOX if started.returncode == EXIT_NO_SANDBOX else EXIT_FAILED)
    try:
        yield
    finally:
        subprocess.run([*command, "down", *where], stdout=subprocess.DEVNULL, check=False)


def _is_sandboxed(directory: Path) -> bool:
    """Return True if every node enforces isolation. Another user may have started the system."""
    with connected_client(directory) as tangram:
        nodes = tangram.nodes().items
    held = [{entry.name for entry in node.enforced if entry.level == "enforced"} for node in nodes]
    return bool(held) and all(set(ISOLATION_CHECKS) <= enforced for enforced in held)


def _run_rollouts(directory: Path, plans: tuple[TrajectoryPlan, ...]) -> tuple[list[DemoRollout], float]:
    stderr.print(f"{len(plans)} trajectories; thinking times are {THINK_SCALE:g} of those measured on real agents")

    async def go(told: ProgressCallbacks) -> tuple[list[DemoRollout], float]:
        connection = resolve_connection(directory=directory)
        async with AsyncTangram(connection.url, connection.api_key) as client:
            return await run_demo(client, plans, **told)

    with _progress_bar("trajectories", len(plans)) as told:
        try:
            return asyncio.run(go(told))
        except TangramError as error:
            fail(str(error))


@contextmanager
def _progress_bar(name: str, total: int) -> Iterator[ProgressCallbacks]:
    """Show a progress bar and yield the callbacks that advance it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as progress:
        bar = progress.add_task(name, total=total)
        settled = 0

        def on_action(action: Action) -> None:
            nonlocal settled
            settled += 1
            progress.update(bar, description=f"{name}, {settled} actions settled")

        def on_rollout(rollout: DemoRollout) -> None:
            progress.advance(bar)

        yield ProgressCallbacks(on_action=on_action, on_rollout=on_rollout)


def _print_verdict(figures: dict[str, float]) -> None:
    wrong = figures["wrong_rewarded"] + figures["right_unrewarded"]
    colour = "red" if wrong else "green"
    stdout.print(
        f"[{colour}]{figures['rewarded']:g} of {figures['trajectories']:g} trajectories rewarded;"
        f" wrong rewarded {figures['wrong_rewarded']:g}, right unrewarded {figures['right_unrewarded']:g},"
        f" hacks tried {figures['hacks_tried']:g}, hacks rewarded {figures['hacks_rewarded']:g},"
        f" sandbox enforced {figures['sandbox_enforced']:g}[/{colour}]  ({figures['wall_s']:.1f} s)"
    )

"""`demo`: real rollouts on this machine, the system brought up for them if it is not up."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from arl_tangram.bench.report import document
from arl_tangram.cli.actions import connected
from arl_tangram.cli.output import EXIT_FAILED, EXIT_NO_SANDBOX, EXIT_USAGE, fail, print_json, stderr, stdout
from arl_tangram.cli.state import DirOption, LocalState
from arl_tangram.client import AsyncTangram
from arl_tangram.connection import resolve
from arl_tangram.demo.attempts import THINK_SCALE, Plan, plans_for
from arl_tangram.demo.problems import bundled_problems, read_problems
from arl_tangram.demo.report import WALLS, figures_of, print_table, wrongs_of
from arl_tangram.demo.rollout import Rollout
from arl_tangram.demo.run import run_demo
from arl_wire.actions import Action
from arl_wire.errors import TangramError, ValidationFailed

__all__ = ["register", "system_up"]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(demo)


def demo(
    directory: DirOption,
    problems: Annotated[
        Path | None, typer.Option(help="A file in the HumanEval JSONL format, plain or gzipped.")
    ] = None,
    trajectories: Annotated[int, typer.Option(min=2, max=64, help="Trajectories per problem.")] = 4,
    seed: Annotated[int, typer.Option(help="Of what is attempted and of the thinking times.")] = 0,
    unsafe_local: Annotated[
        bool, typer.Option(help="Where no sandbox works: bundled problems, without isolation.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Roll out trajectories that write, test, think and hand in code; reward what works, and nothing else.

    Exit code 1 if any trajectory got another reward than its code deserves.
    """
    if unsafe_local and problems is not None:
        fail("--unsafe-local runs the bundled problems only: code from a file is not run without a sandbox", EXIT_USAGE)
    try:
        chosen = read_problems(problems) if problems is not None else bundled_problems()
    except ValidationFailed as error:
        fail(str(error), EXIT_USAGE)
    with system_up(LocalState(directory), unsafe_local=unsafe_local):
        plans = plans_for(chosen, trajectories=trajectories, seed=seed, sandboxed=_is_sandboxed(directory))
        rollouts, wall_s = _rolled_out(directory, plans)
    figures = figures_of(rollouts, wall_s=wall_s)
    wrongs = wrongs_of(rollouts)
    if as_json:
        load = {"problems": len(chosen), "trajectories": len(plans), "seed": seed, "think_scale": THINK_SCALE}
        print_json(document("demo", load=load, figures=figures, samples={"wrong": wrongs}))
    else:
        print_table(stdout, rollouts, figures)
        _print_verdict(figures)
    for wrong in wrongs:
        stderr.print(f"[red]wrong[/red] {wrong}")
    if wrongs:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def system_up(state: LocalState, *, unsafe_local: bool = False) -> Iterator[None]:
    """The system of TANGRAM_URL or of the state directory; one that is not up is brought up and taken down again."""
    if os.environ.get("TANGRAM_URL") or state.supervisor() is not None:
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
    """Whether every node holds what runs on it; the system may be up already, started by somebody else."""
    with connected(directory) as tangram:
        nodes = tangram.nodes().items
    held = [{entry.name for entry in node.enforced if entry.level == "enforced"} for node in nodes]
    return bool(held) and all(set(WALLS) <= enforced for enforced in held)


def _rolled_out(directory: Path, plans: tuple[Plan, ...]) -> tuple[list[Rollout], float]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    stderr.print(f"{len(plans)} trajectories; thinking times are {THINK_SCALE:g} of those measured on real agents")
    with Progress(*columns, console=stderr, transient=True) as progress:
        bar = progress.add_task("trajectories", total=len(plans))
        settled = 0

        def on_action(action: Action) -> None:
            nonlocal settled
            settled += 1
            progress.update(bar, description=f"trajectories, {settled} actions settled")

        def on_rollout(rollout: Rollout) -> None:
            progress.advance(bar)

        async def go() -> tuple[list[Rollout], float]:
            connection = resolve(directory=directory)
            async with AsyncTangram(connection.url, connection.api_key) as client:
                return await run_demo(client, plans, on_action=on_action, on_rollout=on_rollout)

        try:
            return asyncio.run(go())
        except TangramError as error:
            fail(str(error))


def _print_verdict(figures: dict[str, float]) -> None:
    wrong = figures["wrong_rewarded"] + figures["right_unrewarded"]
    colour = "red" if wrong else "green"
    stdout.print(
        f"[{colour}]{figures['rewarded']:g} of {figures['trajectories']:g} trajectories rewarded;"
        f" wrong rewarded {figures['wrong_rewarded']:g}, right unrewarded {figures['right_unrewarded']:g},"
        f" hacks tried {figures['hacks_tried']:g}, hacks rewarded {figures['hacks_rewarded']:g},"
        f" sandbox enforced {figures['sandbox_enforced']:g}[/{colour}]  ({figures['wall_s']:.1f} s)"
    )

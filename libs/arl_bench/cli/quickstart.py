"""`quickstart`: three programs and 16 agents on a temporary system, with what happens printed as it happens."""

import asyncio
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from arl_bench.cli.demo_runs import CoresOption, UnsafeLocalOption, no_sandbox, stop_on_signals, usable_cores
from arl_bench.cli.running_system import warn_no_isolation
from arl_bench.demo.attempts import TrajectoryPlan
from arl_bench.demo.progress import can_animate
from arl_bench.demo.rollout import DemoRollout
from arl_bench.harness.bench_system import BenchSystem, bench_system
from arl_bench.quickstart.agents import agents_claim, plan_agents, run_agents
from arl_bench.quickstart.agents_view import AgentsView
from arl_bench.quickstart.programs import explain_run, run_programs
from arl_tangram.async_client import AsyncTangram
from arl_tangram.cli.output import EXIT_FAILED, stdout

__all__ = ["register"]

AGENTS = 16
REDRAW_INTERVAL_S, LINE_INTERVAL_S = 0.25, 2.0


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(rich_help_panel="Start")(quickstart)


def quickstart(
    agents: Annotated[int, typer.Option(min=2, max=64, help="Agents that run at once.")] = AGENTS,
    cores: CoresOption = 2,
    unsafe_local: UnsafeLocalOption = False,
) -> None:
    """Start a temporary system, run three programs and 16 agents on it, and show their rewards.

    It takes about 20 seconds. The system has its own directory and is removed at the end, also after Ctrl-C.
    The exit code is 1 if an outcome or a reward is wrong.
    """
    plans = plan_agents(agents, sandboxed=not unsafe_local)
    cores = usable_cores(cores)
    with stop_on_signals(), no_sandbox():
        claim, is_correct = _run(plans, cores, unsafe_local=unsafe_local)
    stdout.print()
    stdout.print(claim, style="bold green" if is_correct else "bold red", markup=False, soft_wrap=False)
    _print_next_commands()
    if not is_correct:
        raise typer.Exit(EXIT_FAILED)


def _run(plans: tuple[TrajectoryPlan, ...], cores: int, *, unsafe_local: bool) -> tuple[str, bool]:
    """Run everything on a temporary system. Return the claim, and True if every outcome and reward is right."""
    begun = time.monotonic()
    _print_step("1. Start a temporary system: Postgres, the services, the sandboxes")
    if unsafe_local:
        warn_no_isolation()
    with bench_system(driver="unsafe-local" if unsafe_local else "auto", cores=cores) as system:
        stdout.print(f"   ready after {time.monotonic() - begun:.1f} s", markup=False)
        are_expected, rollouts, wall_s = asyncio.run(_use(system, plans, cores))
        stdout.print("   stopping and removing the temporary system", markup=False)
    is_correct = are_expected and all(rollout.is_correct for rollout in rollouts)
    return agents_claim(rollouts, wall_s=wall_s, cores=cores), is_correct


async def _use(
    system: BenchSystem, plans: tuple[TrajectoryPlan, ...], cores: int
) -> tuple[bool, list[DemoRollout], float]:
    async with system.client() as client:
        _print_step("2. Run a right, a wrong and an endless program")
        are_expected = await _show_programs(client)
        _print_step(f"3. Run {len(plans)} agents at once on {cores} cores: they write code, test it and think")
        rollouts, wall_s = await _show_agents(client, plans, cores)
    return are_expected, rollouts, wall_s


async def _show_programs(client: AsyncTangram) -> bool:
    are_expected = True
    async for run in run_programs(client):
        stdout.print(f"   {run.program.name:8} {run.program.source}", markup=False)
        stdout.print(f"            # {explain_run(run)}", style="green", markup=False)
        are_expected = are_expected and run.is_expected
    stdout.print("   # A lost node is an infra_error: the sample is masked, its reward is never 0.", style="dim")
    return are_expected


async def _show_agents(
    client: AsyncTangram, plans: tuple[TrajectoryPlan, ...], cores: int
) -> tuple[list[DemoRollout], float]:
    view = AgentsView(plans, cores)
    if not can_animate(stdout):

        def print_line(elapsed_s: float) -> None:
            stdout.print(f"   {view.line(elapsed_s)}", markup=False)

        rollouts, wall_s = await run_agents(client, plans, view, show=print_line, interval_s=LINE_INTERVAL_S)
        print_line(wall_s)
        return rollouts, wall_s
    with Live(view.render(), console=stdout, auto_refresh=False) as live:
        rollouts, wall_s = await run_agents(
            client,
            plans,
            view,
            show=lambda elapsed_s: live.update(view.render(), refresh=True),
            interval_s=REDRAW_INTERVAL_S,
        )
        live.update(view.render(), refresh=True)
    return rollouts, wall_s


def _print_step(title: str) -> None:
    stdout.print()
    stdout.print(title, style="bold", markup=False)


def _print_next_commands() -> None:
    command = _command_name()
    next_commands = {
        "start a system": "up -d",
        "run a program": "submit -- python3 -c 'print(6 * 7)'",
        "compare with pods": "demo",
    }
    stdout.print("\nNext:", markup=False)
    for what, arguments in next_commands.items():
        stdout.print(f"   {what:17}  {command} {arguments}", markup=False)


def _command_name() -> str:
    """Return `tangram`, or the path of the command if it is not on the PATH."""
    if shutil.which("tangram"):
        return "tangram"
    installed = Path(sys.executable).parent / "tangram"
    return str(installed.relative_to(Path.cwd()) if installed.is_relative_to(Path.cwd()) else installed)

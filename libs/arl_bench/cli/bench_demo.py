"""`bench demo`: the demo's rollouts under six policies, or once on the running system."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from arl_bench.cli.demo_runs import (
    CoresOption,
    PictureOption,
    ProblemsOption,
    SeedOption,
    TrajectoriesOption,
    UnsafeLocalOption,
    choose_problems,
    draw_picture,
    exit_if_wrong,
    run_policies,
    stop_on_signals,
    usable_cores,
)
from arl_bench.cli.running_system import is_system_up
from arl_bench.demo.attempts import THINK_SCALE, TrajectoryPlan, plan_trajectories
from arl_bench.demo.policies import (
    POLICIES,
    STATIC,
    TANGRAM,
    UNLIMITED,
    PolicyRun,
    policy_figures,
    policy_samples,
)
from arl_bench.demo.progress import RolloutProgress
from arl_bench.demo.report import (
    ISOLATION_CHECKS,
    comparison_claim,
    demo_figures,
    print_comparison,
    print_policy_times,
    print_results,
    wrong_rewards,
)
from arl_bench.demo.rollout import DemoRollout
from arl_bench.demo.run import run_demo
from arl_bench.harness.report import build_report
from arl_tangram.async_client import AsyncTangram
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.local_state import DirOption, LocalState
from arl_tangram.cli.output import EXIT_NOT_RUNNING, EXIT_USAGE, JsonOption, fail, print_json, stderr, stdout
from arl_tangram.transport.connection import resolve_connection
from arl_wire.errors import TangramError

__all__ = ["register"]

PER_PROBLEM = 2
QUICK_PROBLEMS = 8
QUICK_POLICIES = (TANGRAM, STATIC, UNLIMITED)


def register(group: typer.Typer) -> None:
    """Add the command of this module."""
    group.command()(demo)


def demo(
    directory: DirOption,
    problems: ProblemsOption = None,
    trajectories: TrajectoriesOption = PER_PROBLEM,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"The first {QUICK_PROBLEMS} problems and three policies only.")
    ] = False,
    policy: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(POLICIES)}; may be repeated. Default: all.")
    ] = None,
    running: Annotated[
        bool, typer.Option("--running", help="Run the rollouts once on the running system, without a comparison.")
    ] = False,
    cores: CoresOption = 2,
    picture: PictureOption = Path("tangram-demo"),
    seed: SeedOption = 0,
    unsafe_local: UnsafeLocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare six policies with the demo's rollouts: Tangram, FCFS and four kinds of pods.

    The same rollouts run under each policy, one after the other, on temporary systems with the same cores.
    The exit code is 1 if Tangram gave a wrong reward.
    """
    if unknown := set(policy or ()) - set(POLICIES):
        fail(f"--policy {min(unknown)}: this policy does not exist. Available: {', '.join(POLICIES)}.", EXIT_USAGE)
    if running and policy:
        fail("--running and --policy exclude each other: the running system has a policy.", EXIT_USAGE)
    chosen = choose_problems(problems, unsafe_local=unsafe_local)
    chosen = chosen[:QUICK_PROBLEMS] if quick else chosen
    load = {"problems": len(chosen), "per_problem": trajectories, "seed": seed, "think_scale": THINK_SCALE}
    if running:
        if not is_system_up(LocalState(directory)):
            fail(f"not running in {directory}. Start a system with `tangram up -d`.", EXIT_NOT_RUNNING)
        sandboxed = _is_isolated(directory)
        plans = plan_trajectories(chosen, trajectories=trajectories, seed=seed, sandboxed=sandboxed)
        with stop_on_signals("The environments of the rollouts are ended."):
            rollouts, wall_s = _run_rollouts(directory, plans)
        _show_rollouts(rollouts, wall_s, load, as_json=as_json)
        return
    plans = plan_trajectories(chosen, trajectories=trajectories, seed=seed, sandboxed=not unsafe_local)
    cores = usable_cores(cores)
    with stop_on_signals():
        runs = run_policies(
            policy or (QUICK_POLICIES if quick else POLICIES), plans, cores=cores, unsafe_local=unsafe_local
        )
    _show_policies(runs, load | {"cores": cores}, picture, as_json=as_json)


def _is_isolated(directory: Path) -> bool:
    """Return True if every node enforces isolation. Another user may have started the system."""
    with connected_client(directory) as tangram:
        nodes = tangram.nodes().items
    enforced = [{entry.name for entry in node.enforced if entry.level == "enforced"} for node in nodes]
    return bool(enforced) and all(set(ISOLATION_CHECKS) <= names for names in enforced)


def _run_rollouts(directory: Path, plans: tuple[TrajectoryPlan, ...]) -> tuple[list[DemoRollout], float]:
    async def go(progress: RolloutProgress) -> tuple[list[DemoRollout], float]:
        connection = resolve_connection(directory=directory)
        async with AsyncTangram(connection.url, connection.api_key) as client:
            return await run_demo(client, plans, on_action=progress.on_action, on_rollout=progress.on_rollout)

    try:
        with RolloutProgress("running system", len(plans), stderr, phase="submitting") as progress:
            return asyncio.run(go(progress))
    except TangramError as error:
        fail(str(error))


def _show_rollouts(rollouts: list[DemoRollout], wall_s: float, load: dict[str, Any], *, as_json: bool) -> None:
    figures = demo_figures(rollouts, wall_s=wall_s)
    wrongs = wrong_rewards(rollouts)
    if as_json:
        load = load | {"trajectories": len(rollouts)}
        print_json(build_report("demo", load=load, figures=figures, samples={"wrong": wrongs}))
    else:
        print_results(stdout, rollouts, figures)
        _print_verdict(figures)
    exit_if_wrong(wrongs)


def _show_policies(runs: list[PolicyRun], load: dict[str, Any], picture: Path, *, as_json: bool) -> None:
    by_policy = {run.policy: run for run in runs}
    ours, static, unlimited = (by_policy.get(name) for name in (TANGRAM, STATIC, UNLIMITED))
    rollouts = ours.rollouts if ours is not None else ()
    figures = demo_figures(rollouts, wall_s=ours.wall_s) if ours is not None else {}
    wrongs = wrong_rewards(rollouts)
    paths = draw_picture(runs, picture)
    if as_json:
        samples = {"wrong": wrongs, "pictures": [str(path) for path in paths]} | policy_samples(runs)
        print_json(build_report("demo", load=load, figures=figures | policy_figures(runs), samples=samples))
    else:
        if ours is not None:
            print_results(stdout, rollouts, figures)
            _print_verdict(figures)
            stdout.print()
        print_comparison(stdout, runs)
        stdout.print()
        print_policy_times(stdout, runs)
        if paths:
            stdout.print(f"Picture: {', '.join(str(path) for path in paths)}\n", markup=False)
        if ours is not None and static is not None:
            stdout.print(comparison_claim(static, ours, unlimited), style="bold", markup=False, soft_wrap=False)
    exit_if_wrong(wrongs)


def _print_verdict(figures: dict[str, float]) -> None:
    wrong = figures["wrong_rewarded"] + figures["right_unrewarded"]
    stdout.print(
        f"{figures['rewarded']:g} of {figures['trajectories']:g} rollouts rewarded;"
        f" wrong solutions rewarded: {figures['wrong_rewarded']:g};"
        f" right solutions not rewarded: {figures['right_unrewarded']:g};"
        f" kinds of reward hack: {figures['hacks_tried']:g}, rewarded: {figures['hacks_rewarded']:g}",
        style="red" if wrong else "green",
        markup=False,
        soft_wrap=False,
    )

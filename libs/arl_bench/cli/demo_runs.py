"""Options, runs and results that `tangram demo` and `tangram bench demo` share."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from arl_bench.cli.running_system import warn_no_isolation
from arl_bench.demo.attempts import THINK_SCALE, TrajectoryPlan
from arl_bench.demo.policies import PLAIN_NAMES, PolicyRun, run_policy
from arl_bench.demo.problems import CodingProblem, bundled_problems, read_problems
from arl_bench.demo.progress import RolloutProgress
from arl_bench.harness.bench_system import NoSandbox
from arl_tangram.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NO_SANDBOX, EXIT_USAGE, fail, stderr
from arl_wire.errors import TangramError, ValidationFailed

__all__ = [
    "CoresOption",
    "PictureOption",
    "ProblemsOption",
    "SeedOption",
    "TrajectoriesOption",
    "UnsafeLocalOption",
    "choose_problems",
    "draw_picture",
    "exit_if_wrong",
    "no_sandbox",
    "run_policies",
    "stop_on_signals",
    "usable_cores",
]

ProblemsOption = Annotated[
    Path | None, typer.Option(help="File in the HumanEval JSONL format, plain or gzipped. Default: bundled problems.")
]
TrajectoriesOption = Annotated[int, typer.Option(min=2, max=64, help="Rollouts per problem.")]
CoresOption = Annotated[int, typer.Option(min=1, help="Cores that actions may use, at most those of this machine.")]
PictureOption = Annotated[Path, typer.Option(help="Path of the picture without the suffixes .svg and .png.")]
SeedOption = Annotated[int, typer.Option(help="Seed of the attempted solutions and of the thinking times.")]
UnsafeLocalOption = Annotated[
    bool, typer.Option("--unsafe-local", help="Run bundled programs without isolation, if no sandbox works here.")
]


def choose_problems(path: Path | None, *, unsafe_local: bool) -> tuple[CodingProblem, ...]:
    """Return the problems of the file or the bundled ones. An invalid choice ends the command with a usage error."""
    if unsafe_local and path is not None:
        fail("--unsafe-local runs bundled problems only. Omit --problems, or use a machine with isolation.", EXIT_USAGE)
    try:
        return read_problems(path) if path is not None else bundled_problems()
    except ValidationFailed as error:
        fail(str(error), EXIT_USAGE)


def usable_cores(wanted: int) -> int:
    return min(wanted, len(os.sched_getaffinity(0)))


def run_policies(
    policies: Sequence[str], plans: Sequence[TrajectoryPlan], *, cores: int, unsafe_local: bool
) -> list[PolicyRun]:
    """Run the plans under each policy, one after the other, each on a system of its own. Prints the progress."""
    if unsafe_local:
        warn_no_isolation()
    stderr.print(f"{len(plans)} rollouts on {cores} cores, once under each of {len(policies)} policies", markup=False)
    stderr.print(f"(the model's thinking times are {THINK_SCALE:g} of those of real agents)", markup=False)
    runs = []
    for policy in policies:
        with no_sandbox(), RolloutProgress(PLAIN_NAMES[policy], len(plans), stderr) as progress:
            runs.append(
                run_policy(
                    policy,
                    plans,
                    cores=cores,
                    driver="unsafe-local" if unsafe_local else "auto",
                    on_action=progress.on_action,
                    on_rollout=progress.on_rollout,
                )
            )
    return runs


@contextmanager
def no_sandbox() -> Iterator[None]:
    """End the command with a message and its own exit code if no sandbox works on this machine."""
    try:
        yield
    except NoSandbox as error:
        fail(f"{error}\nThe same command with --unsafe-local runs without isolation.", EXIT_NO_SANDBOX)
    except TangramError as error:
        fail(str(error))


@contextmanager
def stop_on_signals(ended: str = "The temporary system is stopped and removed.") -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that temporary systems are stopped and removed. Exit code 130.

    `ended` says what the command has ended.
    """
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        fail(f"interrupted. {ended}", EXIT_INTERRUPTED)
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def draw_picture(runs: Sequence[PolicyRun], stem: Path) -> list[Path]:
    """Draw the runs and return the paths. A picture that cannot be drawn is no error of the comparison."""
    try:
        from arl_bench.demo.plot import draw_policies
    except ImportError:
        stderr.print("No picture: matplotlib is missing. `pip install 'arl-tangram-server[bench]'` adds it.")
        return []
    try:
        return draw_policies(runs, stem)
    except OSError as error:
        stderr.print(f"No picture: {error}", markup=False)
        return []


def exit_if_wrong(wrongs: Sequence[dict[str, Any]]) -> None:
    """Print each wrong reward and exit with code 1 if there is any."""
    for wrong in wrongs:
        stderr.print(f"wrong reward: {wrong}", style="red", markup=False)
    if wrongs:
        raise typer.Exit(EXIT_FAILED)

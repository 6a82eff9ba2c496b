"""`steps`: the progress of training steps, and what they wait for."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import typer

from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_task
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, print_model, print_rows
from arl_tangram.cli.terminal_text import write_text
from arl_wire.steps import StepReport, StepTrajectoryStatus

__all__ = ["register", "report_lines"]

TaskArgument = Annotated[str, typer.Argument(help="Name of a task.", autocompletion=complete_task)]
StepArgument = Annotated[int, typer.Argument(min=0, help="Number of the training step.")]
HEADINGS = ("trajectory", "state", "turns", "think", "queue", "run", "core wait", "overhead", "rule")
LISTED = 20
UNITS = {"cpu": "core"}
group = typer.Typer(no_args_is_help=True, help="Show and end the training steps of tasks.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="steps", rich_help_panel="Inspect")


@group.command("show")
def show_step(
    directory: DirOption, task: TaskArgument, step: StepArgument, output: FormatOption = OutputFormat.TEXT
) -> None:
    """Show the trajectories of a step, its projected end, and what its slowest trajectory waited for."""
    with connected_client(directory) as tangram:
        report = tangram.get_step(task, step)
    if output is OutputFormat.JSON:
        print_model(report)
        return
    for line in report_lines(report):
        write_text(f"{line}\n")
    print_rows(HEADINGS, map(_row, report.trajectories[:LISTED]), empty="The step has no trajectories.")


@group.command("end")
def end_step(directory: DirOption, task: TaskArgument, step: StepArgument) -> None:
    """End a step: its open trajectories count as ended. Queued and running actions continue."""
    with connected_client(directory) as tangram:
        tangram.end_step(task, step)


def report_lines(report: StepReport) -> Iterable[str]:
    """Yield sentences about a step."""
    yield f"Step {report.step} of {report.task}: {report.open} open, {report.ended} ended, {report.critical} critical."
    if report.ended_at is not None and report.started_at is not None:
        yield f"It took {_seconds((report.ended_at - report.started_at).total_seconds())}."
    elif report.projected_end_at is not None:
        yield f"Projected end: {_time(report.projected_end_at)}."
    elif report.open:
        yield "No projected end: give `expected_turns`, `progress` or `prompt` with the actions."
    if report.unpredicted and report.projected_end_at is not None:
        yield f"{report.unpredicted} open trajectories have no prediction."
    if (slowest := report.slowest) is not None:
        times = slowest.times
        yield (
            f"Slowest trajectory {slowest.trajectory}: think {_seconds(times.think_s)}, queue"
            f" {_seconds(times.queue_s)}, run {_seconds(times.run_s)}, waiting for cores"
            f" {_seconds(times.core_wait_s)}, overhead {_seconds(times.overhead_s)}."
        )
    for saving in report.savings:
        unit = UNITS.get(saving.resource, f"unit of {saving.resource}")
        yield (
            f"It waited {_seconds(saving.waited_s)} for {saving.resource}. One more {unit} would have saved up to"
            f" {_seconds(saving.saved_s)}."
        )


def _row(trajectory: StepTrajectoryStatus) -> tuple[str, ...]:
    times = trajectory.times
    expected = f"/{trajectory.expected_turns}" if trajectory.expected_turns is not None else ""
    parts = (times.think_s, times.queue_s, times.run_s, times.core_wait_s, times.overhead_s)
    state = "open" if trajectory.ended_at is None else "ended"
    return (trajectory.trajectory, state, f"{trajectory.turns}{expected}", *map(_seconds, parts), trajectory.rule)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"


def _time(at: datetime) -> str:
    return at.astimezone().strftime("%H:%M:%S")

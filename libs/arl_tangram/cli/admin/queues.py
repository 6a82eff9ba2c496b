"""`queues`: limits, counts and shares of the queue of each task."""

from typing import Annotated

import typer

from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_task
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_USAGE, FormatOption, OutputFormat, fail, print_model, print_rows
from arl_tangram.cli.pairs import parse_amounts
from arl_wire.admin.queues import Queue, QueueListResponse, QueueQuota

__all__ = ["register"]

TaskArgument = Annotated[str, typer.Argument(help="Name of a task.", autocompletion=complete_task)]
HEADINGS = ("task", "state", "queued", "running", "max queued", "weight", "quota")
group = typer.Typer(no_args_is_help=True, help="List, limit, weight and pause the queues of tasks.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="queues", rich_help_panel="Operate")


@group.command("list")
def list_queues(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the queues of this project with their actions."""
    with connected_client(directory) as tangram:
        queues = tangram.queues()
    if output is OutputFormat.JSON:
        print_model(QueueListResponse(items=queues))
        return
    empty = "No queue exists. The first action of a task creates one: tangram submit --task TASK -- echo hello"
    print_rows(HEADINGS, map(_row, queues), empty=empty)


@group.command("set")
def set_queue(
    directory: DirOption,
    task: TaskArgument,
    max_queued: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Maximum number of queued actions.")
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Restore the default of the installation.")] = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Limit the queued actions of a task. Further submissions are refused with `queue_full`."""
    if (max_queued is None) != default:
        fail("give one of --max-queued N and --default", EXIT_USAGE)
    with connected_client(directory) as tangram:
        _print_queue(tangram.set_queue_limit(task, max_queued), output)


@group.command("weight")
def set_queue_weight(
    directory: DirOption,
    task: TaskArgument,
    weight: Annotated[float, typer.Argument(min=0.01, max=100, help="Weight; twice the weight means twice the share.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Set the share of a task relative to the other tasks of this project. It applies when demand exceeds capacity."""
    with connected_client(directory) as tangram:
        _print_queue(tangram.set_queue_weight(task, weight), output)


@group.command("quota")
def set_queue_quota(
    directory: DirOption,
    task: TaskArgument,
    running: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Maximum number of running actions.")
    ] = None,
    reward_service: Annotated[
        list[str] | None, typer.Option(metavar="NAME=N", help="Maximum running scores of a reward service; repeatable.")
    ] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(metavar="NAME=N", help="Maximum running calls of an endpoint; repeatable.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove the quota.")] = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Limit the running actions of a task, even if resources are free. Replaces the existing quota."""
    if (running is None and not reward_service and not endpoint) != none:
        fail("give --running N, --reward-service NAME=N or --endpoint NAME=N, or --none", EXIT_USAGE)
    reward_services = parse_amounts("--reward-service", reward_service, example="judge=8")
    endpoints = parse_amounts("--endpoint", endpoint, example="search=8")
    with connected_client(directory) as tangram:
        _print_queue(tangram.set_queue_quota(task, running, reward_services, endpoints), output)


@group.command("pause")
def pause_queue(
    directory: DirOption,
    task: TaskArgument,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Pause a task: its queued actions do not start. Granted actions continue."""
    with connected_client(directory) as tangram:
        _print_queue(tangram.pause_queue(task), output)


@group.command("resume")
def resume_queue(
    directory: DirOption,
    task: TaskArgument,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Resume a paused task."""
    with connected_client(directory) as tangram:
        _print_queue(tangram.resume_queue(task), output)


def _print_queue(queue: Queue, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_model(queue)
    else:
        print_rows(HEADINGS, [_row(queue)], empty="")


def _row(queue: Queue) -> tuple[str, ...]:
    limit = str(queue.max_queued) if queue.max_queued is not None else "default"
    counts = (str(queue.queued), str(queue.running))
    state = "paused" if queue.paused else "active"
    return (queue.task, state, *counts, limit, f"{queue.weight:g}", _format_quota(queue.quota))


def _format_quota(quota: QueueQuota | None) -> str:
    if quota is None:
        return "-"
    running = [] if quota.running is None else [str(quota.running)]
    named = [*sorted(quota.reward_services.items()), *sorted(quota.endpoints.items())]
    return " ".join([*running, *(f"{name}={most}" for name, most in named)])

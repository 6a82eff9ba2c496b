"""`queues`: limits, counts and shares of the queue of each task."""

import sys
from typing import Annotated

import typer
from pydantic import BaseModel, ValidationError

from arl_tangram.cli.actions import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_USAGE, FormatOption, OutputFormat, fail, stdout
from arl_tangram.options import to_validation_failed
from arl_wire.admin.queues import Queue, QueueListResponse, QueueQuota

__all__ = ["register"]

group = typer.Typer(no_args_is_help=True, help="Queues of a project: one per task.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="queues")


@group.command("list")
def list_queues(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the queues of this project with their actions."""
    with connected_client(directory) as tangram:
        queues = tangram.queues()
    if output is OutputFormat.JSON:
        _print_json(QueueListResponse(items=queues))
        return
    for queue in queues:
        stdout.print(_format_queue(queue), markup=False)


@group.command("set")
def set_queue(
    directory: DirOption,
    task: Annotated[str, typer.Argument(help="As `queues list` shows it.")],
    max_queued: Annotated[int | None, typer.Option(min=1, max=2**31 - 1, help="Actions that may wait.")] = None,
    default: Annotated[bool, typer.Option("--default", help="As many as this installation allows.")] = False,
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
    task: Annotated[str, typer.Argument(help="As `queues list` shows it.")],
    weight: Annotated[float, typer.Argument(min=0.01, max=100, help="Twice the weight, twice the share.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Set the share of a task relative to the other tasks of this project. It applies when demand exceeds capacity."""
    with connected_client(directory) as tangram:
        _print_queue(tangram.set_queue_weight(task, weight), output)


@group.command("quota")
def set_queue_quota(
    directory: DirOption,
    task: Annotated[str, typer.Argument(help="As `queues list` shows it.")],
    running: Annotated[int | None, typer.Option(min=1, max=2**31 - 1, help="Actions that may run at once.")] = None,
    reward_service: Annotated[
        list[str] | None, typer.Option(metavar="NAME=N", help="Of these, that a reward service scores; repeatable.")
    ] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(metavar="NAME=N", help="Of these, calls of an endpoint; repeatable.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="As many as find room.")] = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Limit the running actions of a task, even if resources are free. Replaces the existing quota."""
    if (running is None and not reward_service and not endpoint) != none:
        fail("give --running N, --reward-service NAME=N or --endpoint NAME=N, or --none", EXIT_USAGE)
    reward_services, endpoints = _parse_limits(reward_service or []), _parse_limits(endpoint or [])
    with connected_client(directory) as tangram:
        try:
            changed = tangram.set_queue_quota(task, running, reward_services, endpoints)
        except ValidationError as error:
            raise to_validation_failed(error) from None
        _print_queue(changed, output)


@group.command("pause")
def pause_queue(
    directory: DirOption,
    task: Annotated[str, typer.Argument(help="As `queues list` shows it.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Pause a task: nothing of it starts until it is resumed. Granted actions continue."""
    with connected_client(directory) as tangram:
        _print_queue(tangram.pause_queue(task), output)


@group.command("resume")
def resume_queue(
    directory: DirOption,
    task: Annotated[str, typer.Argument(help="As `queues list` shows it.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Resume a paused task immediately."""
    with connected_client(directory) as tangram:
        _print_queue(tangram.resume_queue(task), output)


def _parse_limits(limits: list[str]) -> dict[str, int]:
    pairs = [each.rpartition("=") for each in limits]
    if wrong := [each for each, (_, _, most) in zip(limits, pairs, strict=True) if not most.isdecimal()]:
        fail(f"{', '.join(wrong)}: write NAME=N, as in judge=8", EXIT_USAGE)
    return {name: int(most) for name, _, most in pairs}


def _print_queue(queue: Queue, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        _print_json(queue)
    else:
        stdout.print(_format_queue(queue), markup=False)


def _format_queue(queue: Queue) -> str:
    limit = queue.max_queued if queue.max_queued is not None else "default"
    paused = "  paused" if queue.paused else ""
    counts = f"queued {queue.queued}  running {queue.running}"
    return f"{queue.task}  {counts}  max-queued {limit}  weight {queue.weight:g}{_format_quota(queue.quota)}{paused}"


def _format_quota(quota: QueueQuota | None) -> str:
    if quota is None:
        return ""
    running = [] if quota.running is None else [str(quota.running)]
    named = [*sorted(quota.reward_services.items()), *sorted(quota.endpoints.items())]
    return "  quota " + " ".join([*running, *(f"{name}={most}" for name, most in named)])


def _print_json(value: BaseModel) -> None:
    sys.stdout.write(value.model_dump_json(indent=1, exclude_none=True) + "\n")

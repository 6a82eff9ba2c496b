"""`score` and `reward-services`: reward services from a terminal."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from arl_tangram.cli.actions.output import format_score
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_reward_service, complete_task
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    FormatOption,
    OutputFormat,
    call_after,
    fail,
    print_json,
    print_model,
    print_progress,
    print_rows,
    stdout,
)
from arl_tangram.operations import ActionFailed
from arl_wire.reward_services.service import (
    RewardService,
    RewardServiceListResponse,
    ServiceOperation,
    ServiceReplica,
)

__all__ = ["register", "report_long_wait"]

WAIT_NOTICE_S = 5.0
HEADINGS = ("service", "kind", "flags", "node", "device", "state", "in flight", "scores", "health")
RewardServiceArgument = Annotated[
    str, typer.Argument(help="Name of a reward service.", autocompletion=complete_reward_service)
]
group = typer.Typer(no_args_is_help=True, help="Register and manage models that score items.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(rich_help_panel="Run")(score)
    app.add_typer(group, name="reward-services", rich_help_panel="Operate")


def score(
    directory: DirOption,
    service: RewardServiceArgument,
    text: Annotated[str, typer.Argument(help="Text to score.")],
    reference: Annotated[str | None, typer.Argument(help="Reference, if the kind of the service compares.")] = None,
    task: Annotated[str, typer.Option(help="RL workload of the score.", autocompletion=complete_task)] = "cli",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Score one text. Exit code 1 if there is no score."""
    with connected_client(directory) as tangram, report_long_wait(service):
        try:
            [entry] = tangram.score(service, [text if reference is None else (text, reference)], task=task)
        except ActionFailed as failed:
            fail(str(failed))
    if output is OutputFormat.JSON:
        print_model(entry)
    else:
        stdout.print(format_score(entry), markup=False)
    if entry.score is None:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def report_long_wait(service: str, *, after_s: float = WAIT_NOTICE_S) -> Iterator[None]:
    """Print one notice if the wait takes longer than `after_s`."""
    line = f"waiting for reward service {service}; its state: tangram reward-services list"
    with call_after(after_s, lambda: print_progress(line)):
        yield


@group.command("list")
def list_reward_services(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the reward services with their nodes, state and health."""
    with connected_client(directory) as tangram:
        services = tangram.reward_services()
    if output is OutputFormat.JSON:
        print_model(RewardServiceListResponse(items=services))
        return
    rows = (row for service in services for row in _rows(service))
    print_rows(HEADINGS, rows, empty="No reward service exists. Register one: tangram reward-services register --help")


@group.command("register")
def register_reward_service(
    directory: DirOption,
    name: RewardServiceArgument,
    kind: Annotated[str, typer.Argument(help="Kind, such as sequence-classifier, reranker, logprobs or judge.")],
    source: Annotated[
        str,
        typer.Argument(help="Directory of the model below TANGRAM_MODELS; for a judge, the name of its engine."),
    ],
    activation: Annotated[bool | None, typer.Option(help="Return probabilities, or raw logits.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens after which an item is cut.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16.", show_default="as in the files")
    ] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, max=8, help="Number of devices of a node that share the weights.")
    ] = None,
    judge: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="JSON file with the prompt of a judge."),
    ] = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Register a model or a judge. Every node that has its files or its engine serves it."""
    options: dict[str, Any] = {"activation": activation, "max_tokens": max_tokens, "dtype": dtype}
    options["tensor_parallel"] = tensor_parallel
    if judge is not None:
        options["judge"] = _read_json(judge)
    options = {option: value for option, value in options.items() if value is not None}
    with connected_client(directory) as tangram:
        service = tangram.register_reward_service(name, kind=kind, source=source, options=options)
        _print_service(service, output)


@group.command()
def load(directory: DirOption, name: RewardServiceArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Load the weights of a service onto a device now."""
    _change_service(directory, name, ServiceOperation.LOAD, output)


@group.command()
def pin(directory: DirOption, name: RewardServiceArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Keep a service on its device, so that no other service evicts it."""
    _change_service(directory, name, ServiceOperation.PIN, output)


@group.command()
def unpin(directory: DirOption, name: RewardServiceArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Allow the eviction of a service again."""
    _change_service(directory, name, ServiceOperation.UNPIN, output)


@group.command()
def drain(directory: DirOption, name: RewardServiceArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Stop a service and free its device. New actions wait."""
    _change_service(directory, name, ServiceOperation.DRAIN, output)


@group.command()
def resume(directory: DirOption, name: RewardServiceArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Resume a drained service."""
    _change_service(directory, name, ServiceOperation.RESUME, output)


@group.command()
def unregister(directory: DirOption, name: RewardServiceArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Unregister a service. Refused while actions of it are queued or running."""
    with connected_client(directory) as tangram:
        tangram.unregister_reward_service(name)
    if output is OutputFormat.JSON:
        print_json({"unregistered": name})


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        fail(f"{path} is not JSON: {error}", EXIT_USAGE)


def _change_service(directory: Path, name: str, verb: ServiceOperation, output: OutputFormat) -> None:
    with connected_client(directory) as tangram:
        _print_service(tangram.change_reward_service(name, verb), output)


def _print_service(service: RewardService, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_model(service)
    else:
        print_rows(HEADINGS, _rows(service), empty="")


def _rows(service: RewardService) -> list[tuple[str, ...]]:
    flags = ", ".join(name for name, is_set in (("pinned", service.pinned), ("drained", service.drained)) if is_set)
    head = (service.name, service.kind, flags or "-")
    elsewhere = service.problem or ("runs in sandboxes" if service.available else "no node has it")
    return [(*head, *_replica_cells(node)) for node in service.nodes] or [(*head, *"-----", elsewhere)]


def _replica_cells(node: ServiceReplica) -> tuple[str, ...]:
    # A node without slots cannot offer the service; its health says why.
    health = node.health if node.available or not node.slots else "not available"
    return (node.node, node.device, str(node.state), f"{node.in_flight}/{node.slots}", str(node.scores), health)

"""`score` and `reward-services`: reward services from a terminal."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ValidationError

from arl_tangram.cli.actions import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_FAILED, EXIT_USAGE, FormatOption, OutputFormat, fail, print_progress, stdout
from arl_tangram.operations import ActionFailed
from arl_tangram.options import to_validation_failed
from arl_wire.reward_services.service import (
    RegisterRewardServiceRequest,
    RewardService,
    RewardServiceListResponse,
    ServiceOperation,
    ServiceReplica,
)
from arl_wire.scores import Score

__all__ = ["register", "report_long_wait"]

WAIT_NOTICE_S = 5.0
RewardServiceArgument = Annotated[str, typer.Argument(help="As `reward-services list` shows it.")]
group = typer.Typer(no_args_is_help=True, help="Reward services: models that score items.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(score)
    app.add_typer(group, name="reward-services")


def score(
    directory: DirOption,
    service: Annotated[str, typer.Argument(help="As `reward-services list` shows it.")],
    text: Annotated[str, typer.Argument(help="What is scored.")],
    reference: Annotated[str | None, typer.Argument(help="What it is compared with, where its kind compares.")] = None,
    task: Annotated[str, typer.Option(help="The RL workload it belongs to.")] = "cli",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Score one text. Exit code 1 if there is no score."""
    with connected_client(directory) as tangram, report_long_wait(service):
        try:
            [entry] = tangram.score(service, [text if reference is None else (text, reference)], task=task)
        except ActionFailed as failed:
            fail(str(failed))
    if output is OutputFormat.JSON:
        _print_json(entry)
    else:
        stdout.print(_format_score(entry), markup=False)
    if entry.score is None:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def report_long_wait(service: str, *, after_s: float = WAIT_NOTICE_S) -> Iterator[None]:
    """Print one notice if the wait takes longer than `after_s`."""
    line = f"waiting for {service}; `tangram reward-services list` says where it is"
    timer = Timer(after_s, print_progress, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@group.command("list")
def list_reward_services(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the reward services with their nodes, state and health."""
    with connected_client(directory) as tangram:
        services = tangram.reward_services()
    if output is OutputFormat.JSON:
        _print_json(RewardServiceListResponse(items=services))
        return
    for service in services:
        _print_service(service, output)


@group.command("register")
def register_reward_service(
    directory: DirOption,
    name: RewardServiceArgument,
    kind: Annotated[str, typer.Argument(help="sequence-classifier, reranker, logprobs, similarity, judge, ...")],
    source: Annotated[
        str,
        typer.Argument(help="Directory of the model, below the nodes' TANGRAM_MODELS; of a judge, its engine's name."),
    ],
    activation: Annotated[bool | None, typer.Option(help="Probabilities, or raw logits.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="An item is cut there.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; else as the files have it.")] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, max=8, help="Devices of a node that have a part of its weights each.")
    ] = None,
    judge: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="JSON file with what a judge is asked; without it, it only chats."
        ),
    ] = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Offer a model on every node that has its files or its engine."""
    options: dict[str, Any] = {"activation": activation, "max_tokens": max_tokens, "dtype": dtype}
    options["tensor_parallel"] = tensor_parallel
    if judge is not None:
        options["judge"] = _read_json(judge)
    options = {option: value for option, value in options.items() if value is not None}
    given = {"name": name, "kind": kind, "source": source, "options": options}
    with connected_client(directory) as tangram:
        try:
            wanted = RegisterRewardServiceRequest.model_validate(given)
        except ValidationError as error:
            raise to_validation_failed(error) from None
        _print_service(tangram.register_reward_service(wanted), output)


@group.command()
def load(directory: DirOption, name: RewardServiceArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Load the weights of a service onto a device now."""
    _change_service(directory, name, ServiceOperation.LOAD, output)


@group.command()
def pin(directory: DirOption, name: RewardServiceArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Keep a service on its device: no other service may displace it."""
    _change_service(directory, name, ServiceOperation.PIN, output)


@group.command()
def unpin(directory: DirOption, name: RewardServiceArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Allow other services to displace a service from its device again."""
    _change_service(directory, name, ServiceOperation.UNPIN, output)


@group.command()
def drain(directory: DirOption, name: RewardServiceArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Stop a service: it starts no more batches and leaves the device. New actions wait."""
    _change_service(directory, name, ServiceOperation.DRAIN, output)


@group.command()
def resume(directory: DirOption, name: RewardServiceArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Let a drained service score again."""
    _change_service(directory, name, ServiceOperation.RESUME, output)


@group.command()
def unregister(directory: DirOption, name: RewardServiceArgument) -> None:
    """Unregister a service. Refused while actions of it are queued or running."""
    with connected_client(directory) as tangram:
        tangram.unregister_reward_service(name)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        fail(f"{path} is no JSON: {error}", EXIT_USAGE)


def _change_service(directory: Path, name: str, verb: ServiceOperation, output: OutputFormat) -> None:
    with connected_client(directory) as tangram:
        _print_service(tangram.change_reward_service(name, verb), output)


def _print_service(service: RewardService, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        _print_json(service)
        return
    for line in _format_service(service):
        stdout.print(line, markup=False)


def _format_score(entry: Score) -> str:
    if entry.error is not None:
        return f"{entry.error.code}: {entry.error.message}"
    return f"{entry.score:.6f}" + ("  (only the beginning was read)" if entry.truncated else "")


def _format_service(service: RewardService) -> list[str]:
    head = f"{service.name}  {service.kind}" + (f"  {service.model}" if service.model is not None else "")
    head += f"  up to {service.max_tokens} tokens of a text" if service.max_tokens is not None else ""
    head += "" if service.nodes or service.available else "  on no node yet"
    head += ("  pinned" if service.pinned else "") + ("  drained" if service.drained else "")
    nodes = [
        f"  {node.node}  {node.state} on {node.device}  in flight {node.in_flight} of {node.slots}"
        f"  batches {node.batches}  scores {node.scores}  {_node_health(node)}"
        for node in service.nodes
    ]
    return [head, *nodes]


def _node_health(node: ServiceReplica) -> str:
    """Return the health of a replica, or "not available" if the node cannot offer the service."""
    return node.health if node.available or not node.slots else "not available"


def _print_json(value: BaseModel) -> None:
    sys.stdout.write(value.model_dump_json(indent=1, exclude_none=True) + "\n")

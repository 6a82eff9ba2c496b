"""`score` and `services`: reward services from a terminal."""

import sys
from typing import Annotated

import typer
from pydantic import BaseModel

from arl_tangram.cli.actions import connected
from arl_tangram.cli.output import EXIT_FAILED, Format, FormatOption, fail, stdout
from arl_tangram.cli.state import DirOption
from arl_tangram.operations import ActionFailed
from arl_wire.scores import Score
from arl_wire.services import RewardService, RewardServiceList

__all__ = ["register"]

group = typer.Typer(no_args_is_help=True, help="Reward services: models that score items.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(score)
    app.add_typer(group, name="services")


def score(
    directory: DirOption,
    service: Annotated[str, typer.Argument(help="As `services list` shows it.")],
    text: Annotated[str, typer.Argument(help="What is scored.")],
    reference: Annotated[str, typer.Argument(help="What it is compared with.")],
    task: Annotated[str, typer.Option(help="The RL workload it belongs to.")] = "cli",
    output: FormatOption = Format.TEXT,
) -> None:
    """Score one text. Exit code 1 where there is no score."""
    with connected(directory) as tangram:
        try:
            [entry] = tangram.score(service, [(text, reference)], task=task)
        except ActionFailed as failed:
            fail(str(failed))
    if output is Format.JSON:
        _print_json(entry)
    else:
        stdout.print(_shown(entry), markup=False)
    if entry.score is None:
        raise typer.Exit(EXIT_FAILED)


@group.command("list")
def list_services(directory: DirOption, output: FormatOption = Format.TEXT) -> None:
    """Show the services, where their weights are, and what they do."""
    with connected(directory) as tangram:
        services = tangram.services()
    if output is Format.JSON:
        _print_json(RewardServiceList(items=services))
        return
    for service in services:
        for line in _lines(service):
            stdout.print(line, markup=False)


def _shown(entry: Score) -> str:
    if entry.error is not None:
        return f"{entry.error.code}: {entry.error.message}"
    return f"{entry.score:.6f}" + ("  (only the beginning was read)" if entry.truncated else "")


def _lines(service: RewardService) -> list[str]:
    head = f"{service.name}  {service.kind}  {service.model}  up to {service.max_tokens} tokens of a text"
    nodes = [
        f"  {node.node}  {node.state} on {node.device}  in flight {node.in_flight} of {node.slots}"
        f"  batches {node.batches}  scores {node.scores}  {node.health if node.available else 'not available'}"
        for node in service.nodes
    ]
    return [head, *nodes]


def _print_json(value: BaseModel) -> None:
    sys.stdout.write(value.model_dump_json(indent=1, exclude_none=True) + "\n")

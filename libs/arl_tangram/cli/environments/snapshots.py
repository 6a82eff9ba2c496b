"""`snapshots`: list and delete saved files of environments."""

from typing import Annotated
from uuid import UUID

import typer

from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_task
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, print_json, print_model, print_rows
from arl_wire.environments.environment import SnapshotInfo, SnapshotListResponse

__all__ = ["register"]

group = typer.Typer(no_args_is_help=True, help="List and delete snapshots of environments.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="snapshots", rich_help_panel="Run")


@group.command("list")
def list_snapshots(
    directory: DirOption,
    task: Annotated[str | None, typer.Option(help="Only this task.", autocompletion=complete_task)] = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """List snapshots, newest first."""
    with connected_client(directory) as tangram:
        found = tangram.snapshots(task=task)
    if output is OutputFormat.JSON:
        print_model(SnapshotListResponse(items=found))
        return
    empty = "No snapshot exists. Save one: tangram environments snapshot ID"
    print_rows(("id", "task", "template", "node", "MiB", "created"), map(_row, found), empty=empty)


@group.command()
def delete(
    directory: DirOption,
    id: Annotated[UUID, typer.Argument(help="Id of a snapshot.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Delete a snapshot. Environments that started from it continue."""
    with connected_client(directory) as tangram:
        tangram.delete_snapshot(id)
    if output is OutputFormat.JSON:
        print_json({"deleted": str(id)})


def _row(each: SnapshotInfo) -> tuple[str, ...]:
    created = f"{each.created_at:%Y-%m-%d %H:%M:%S}"
    return (str(each.id), each.task, each.template, each.node, f"{each.bytes / (1 << 20):.1f}", created)

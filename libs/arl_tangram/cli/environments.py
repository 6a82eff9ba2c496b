"""`environments`: the kept environments of our project, where they live, and their end."""

import sys
from typing import Annotated
from uuid import UUID

import typer

from arl_tangram.cli.actions import connected
from arl_tangram.cli.output import Format, FormatOption, stdout
from arl_tangram.cli.state import DirOption
from arl_wire.environments import Environment, EnvironmentPage, EnvironmentState

__all__ = ["register"]

group = typer.Typer(no_args_is_help=True, help="Environments that outlive their actions.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="environments")


@group.command("list")
def list_environments(
    directory: DirOption,
    task: Annotated[str | None, typer.Option(help="Of this task only.")] = None,
    state: Annotated[EnvironmentState, typer.Option(help="Which ones.")] = EnvironmentState.LIVE,
    output: FormatOption = Format.TEXT,
) -> None:
    """Show environments, newest first."""
    with connected(directory) as tangram:
        found = tangram.environments(task=task, state=state)
    if output is Format.JSON:
        sys.stdout.write(EnvironmentPage(items=found).model_dump_json(indent=1, exclude_none=True) + "\n")
        return
    for environment in found:
        stdout.print(_line(environment), markup=False)


@group.command("end")
def end(
    directory: DirOption, ids: Annotated[list[UUID], typer.Argument(help="As `environments list` shows them.")]
) -> None:
    """End environments with all that is in them, and cancel what waits for them."""
    with connected(directory) as tangram:
        for id in ids:
            tangram.end_environment(id)


def _line(each: Environment) -> str:
    where = f"{each.task} {each.trajectory}  on {each.node}"
    size = f"{each.memory_mib} MiB memory  {each.disk_mib} MiB disk"
    reason = f" ({each.end_reason})" if each.end_reason else ""
    return f"{each.id}  {each.state}{reason}  {where}  {size}  last used {each.last_used_at:%Y-%m-%d %H:%M:%S}"

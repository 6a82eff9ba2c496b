"""`environments`: list and end the persistent environments of this project, and copy their files."""

import sys
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from arl_tangram.cli.actions import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, stdout
from arl_wire.environments.environment import EnvironmentInfo, EnvironmentListResponse, EnvironmentState

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
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """List environments, newest first."""
    with connected_client(directory) as tangram:
        found = tangram.environments(task=task, state=state)
    if output is OutputFormat.JSON:
        sys.stdout.write(EnvironmentListResponse(items=found).model_dump_json(indent=1, exclude_none=True) + "\n")
        return
    for environment in found:
        stdout.print(_format_environment(environment), markup=False)


@group.command("end")
def end(
    directory: DirOption, ids: Annotated[list[UUID], typer.Argument(help="As `environments list` shows them.")]
) -> None:
    """End environments with all their files, and cancel the actions that wait for them."""
    with connected_client(directory) as tangram:
        for id in ids:
            tangram.end_environment(id)


@group.command("files")
def files(
    directory: DirOption,
    id: Annotated[UUID, typer.Argument(help="As `environments list` shows it.")],
    path: Annotated[str, typer.Argument(help="Below the working directory.")] = "",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="With all below.")] = False,
) -> None:
    """List the files in a directory of an environment."""
    with connected_client(directory) as tangram:
        for entry in tangram.list_files(id, path, recursive=recursive):
            leads = f" -> {_escape_name(entry.target)}" if entry.target is not None else ""
            line = f"{entry.type.value:9}  {entry.mode:04o}  {entry.size:>12}  {_escape_name(entry.path)}{leads}"
            stdout.print(line, markup=False, soft_wrap=True)


@group.command("pull")
def pull(
    directory: DirOption,
    id: Annotated[UUID, typer.Argument(help="As `environments list` shows it.")],
    target: Annotated[Path, typer.Argument(help="A directory here; it is made if there is none.")],
    path: Annotated[str, typer.Argument(help="Below the working directory.")] = "",
) -> None:
    """Copy a directory or a file of an environment to this machine."""
    with connected_client(directory) as tangram:
        tangram.download_directory(id, target, path)


@group.command("push")
def push(
    directory: DirOption,
    id: Annotated[UUID, typer.Argument(help="As `environments list` shows it.")],
    source: Annotated[Path, typer.Argument(help="A directory here, or a tar archive.", exists=True)],
    path: Annotated[str, typer.Argument(help="Below the working directory.")] = "",
) -> None:
    """Copy the content of a local directory or archive into a directory of an environment."""
    with connected_client(directory) as tangram:
        upload = tangram.upload_directory if source.is_dir() else tangram.upload_archive
        taken = upload(id, source, path)
    stdout.print(f"{taken.members} members, {taken.bytes} bytes")


def _format_environment(each: EnvironmentInfo) -> str:
    where = f"{each.task} {each.trajectory}  on {each.node}"
    size = f"{each.memory_mib} MiB memory  {each.disk_mib} MiB disk"
    reason = f" ({each.end_reason})" if each.end_reason else ""
    return f"{each.id}  {each.state}{reason}  {where}  {size}  last used {each.last_used_at:%Y-%m-%d %H:%M:%S}"


def _escape_name(name: str) -> str:
    """Escape unprintable characters. An action may have chosen file names that control the terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in name)

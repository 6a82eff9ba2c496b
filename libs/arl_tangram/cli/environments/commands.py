"""`environments`: create, use, list and end persistent environments, and copy their files."""

import sys
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from arl_tangram.cli.actions import options
from arl_tangram.cli.actions.submit import run_action
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_environment, complete_task, complete_template
from arl_tangram.cli.environments.shell import run_shell
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import (
    FormatOption,
    OutputFormat,
    print_json,
    print_model,
    print_rows,
    stderr,
    stdout,
)
from arl_tangram.cli.pairs import parse_pairs
from arl_tangram.options import EnvironmentOptions, ForkOptions
from arl_wire.environments.environment import (
    EnvironmentInfo,
    EnvironmentListResponse,
    EnvironmentState,
)
from arl_wire.environments.files import FileListResponse
from arl_wire.environments.forks import MAX_FORKS

__all__ = ["register"]

EnvironmentArgument = Annotated[UUID, typer.Argument(help="Id of an environment.", autocompletion=complete_environment)]
PathArgument = Annotated[str, typer.Argument(help="Path below the working directory; empty means all of it.")]

group = typer.Typer(no_args_is_help=True, help="Create and use persistent environments.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="environments", rich_help_panel="Run")


@group.command()
def create(
    directory: DirOption,
    task: Annotated[str, typer.Option(help="RL workload of the environment.", autocompletion=complete_task)] = "cli",
    trajectory: Annotated[str | None, typer.Option(help="Name of its trajectory; generated if absent.")] = None,
    template: Annotated[
        str | None, typer.Option(help="Initial content.", autocompletion=complete_template, show_default="host")
    ] = None,
    snapshot: Annotated[UUID | None, typer.Option(help="Start from this snapshot.")] = None,
    memory_mib: Annotated[int | None, typer.Option(help="Memory in MiB.", show_default="512")] = None,
    disk_mib: Annotated[int | None, typer.Option(help="Disk in MiB.", show_default="128")] = None,
    pids: Annotated[int | None, typer.Option(help="Maximum processes and threads.", show_default="256")] = None,
    idle_ttl_s: Annotated[
        int | None, typer.Option(help="Seconds without use after which it ends.", show_default="3600")
    ] = None,
    env: options.EnvOption = None,
    network: options.NetworkOption = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Create an environment and print its id."""
    given = {
        "task": task,
        "trajectory": trajectory,
        "template": template,
        "snapshot": snapshot,
        "memory_mib": memory_mib,
        "disk_mib": disk_mib,
        "pids": pids,
        "idle_ttl_s": idle_ttl_s,
        "env": dict(parse_pairs("--env", env)) or None,
        "network": options.parse_network(network),
    }
    wanted: EnvironmentOptions = {name: value for name, value in given.items() if value is not None}  # type: ignore[assignment]
    with connected_client(directory) as tangram:
        environment = tangram.environment(**wanted)
    if output is OutputFormat.JSON:
        print_model(environment.info)
    else:
        sys.stdout.write(f"{environment.id}\n")


@group.command("list")
def list_environments(
    directory: DirOption,
    task: Annotated[str | None, typer.Option(help="Only this task.", autocompletion=complete_task)] = None,
    state: Annotated[EnvironmentState, typer.Option(help="Only this state.")] = EnvironmentState.LIVE,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """List environments, newest first."""
    with connected_client(directory) as tangram:
        found = tangram.environments(task=task, state=state)
    if output is OutputFormat.JSON:
        print_model(EnvironmentListResponse(items=found))
        return
    headings = ("id", "task", "trajectory", "state", "node", "template", "memory MiB", "disk MiB", "last used")
    empty = f"No environment is {state}. Create one: tangram environments create"
    print_rows(headings, map(_row, found), empty=empty)


@group.command()
def run(
    ctx: typer.Context,
    directory: DirOption,
    id: EnvironmentArgument,
    argv: options.ProgramArgument = None,
    source: options.SourceOption = None,
    cpu: options.CpuOption = None,
    timeout_s: options.TimeoutOption = 300.0,
    file: options.FileOption = None,
    env: options.EnvOption = None,
    follow: options.FollowOption = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Run a program in an environment. Exit codes as of `tangram submit`."""
    with connected_client(directory) as tangram:
        task = tangram.get_environment(id).info.task
        wanted = options.build_request({**ctx.params, "task": task, "environment": id})
        run_action(tangram, wanted, no_wait=False, follow=follow, output=output)


@group.command()
def shell(
    directory: DirOption,
    id: EnvironmentArgument,
    session: Annotated[str, typer.Option(help="Name of the shell. A shell of this name is resumed.")] = "main",
) -> None:
    """Open a shell in an environment. Each line is one action; `exit` or Ctrl-D leaves."""
    with connected_client(directory) as tangram:
        raise typer.Exit(run_shell(tangram, tangram.get_environment(id), session))


@group.command()
def files(
    directory: DirOption,
    id: EnvironmentArgument,
    path: PathArgument = "",
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Include all subdirectories.")] = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """List the files in a directory of an environment."""
    with connected_client(directory) as tangram:
        found = tangram.list_files(id, path, recursive=recursive)
    if output is OutputFormat.JSON:
        print_model(FileListResponse(items=found))
        return
    for entry in found:
        target = f" -> {_escape_name(entry.target)}" if entry.target is not None else ""
        line = f"{entry.type.value:9}  {entry.mode:04o}  {entry.size:>12}  {_escape_name(entry.path)}{target}"
        stdout.print(line, markup=False, soft_wrap=True)


@group.command()
def pull(
    directory: DirOption,
    id: EnvironmentArgument,
    path: Annotated[str, typer.Argument(help="File or directory in the environment; '' means all of it.")],
    target: Annotated[Path, typer.Argument(help="Local directory; created if absent.")],
) -> None:
    """Copy files from an environment to this machine."""
    with connected_client(directory) as tangram:
        tangram.download_directory(id, target, path)


@group.command()
def push(
    directory: DirOption,
    id: EnvironmentArgument,
    source: Annotated[Path, typer.Argument(help="Local directory or tar archive.", exists=True)],
    path: PathArgument = "",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Copy a local directory or archive into a directory of an environment."""
    with connected_client(directory) as tangram:
        taken = tangram.get_environment(id).upload(source, path)
    if output is OutputFormat.JSON:
        print_model(taken)
    else:
        stdout.print(f"{taken.members} files and directories, {taken.bytes} bytes")


@group.command()
def snapshot(directory: DirOption, id: EnvironmentArgument, output: FormatOption = OutputFormat.TEXT) -> None:
    """Save the files of an environment and print the id of the snapshot."""
    with connected_client(directory) as tangram:
        saved = tangram.snapshot(id)
    if output is OutputFormat.JSON:
        print_model(saved)
    else:
        sys.stdout.write(f"{saved.id}\n")


@group.command()
def fork(
    directory: DirOption,
    id: EnvironmentArgument,
    count: Annotated[int, typer.Option(help="Number of new environments.", min=1, max=MAX_FORKS)] = 1,
    idle_ttl_s: Annotated[
        int | None, typer.Option(help="Seconds without use after which a fork ends.", show_default="as in the source")
    ] = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Create environments with the files of another and print their ids. Processes are not copied."""
    wanted: ForkOptions = {} if idle_ttl_s is None else {"idle_ttl_s": idle_ttl_s}
    with connected_client(directory) as tangram:
        forks = tangram.fork_environment(id, count, **wanted)
    if output is OutputFormat.JSON:
        print_model(forks)
        return
    sys.stdout.write("".join(f"{each.id}\n" for each in forks.items))
    if forks.leftover_processes:
        stderr.print(f"running processes of the source were not copied: {forks.leftover_processes}")


@group.command()
def end(
    directory: DirOption,
    ids: Annotated[list[UUID], typer.Argument(help="Ids of environments.", autocompletion=complete_environment)],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """End environments and delete their files. Queued actions of them are cancelled."""
    with connected_client(directory) as tangram:
        for id in ids:
            tangram.end_environment(id)
    if output is OutputFormat.JSON:
        print_json({"ended": [str(id) for id in ids]})


def _row(each: EnvironmentInfo) -> tuple[str, ...]:
    state = f"{each.state} ({each.end_reason})" if each.end_reason else str(each.state)
    used = f"{each.last_used_at:%Y-%m-%d %H:%M:%S}"
    sizes = (str(each.memory_mib), str(each.disk_mib))
    return (str(each.id), each.task, each.trajectory, state, each.node, each.template, *sizes, used)


def _escape_name(name: str) -> str:
    """Escape unprintable characters. An action may have chosen file names that control the terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in name)

"""`submit`: run one action from a terminal."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Annotated, Any
from uuid import UUID

import typer

from arl_core.domain.states import ActionState
from arl_tangram.cli.action_output import exit_code_of, print_action, stream_action
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_environment, complete_task, complete_template
from arl_tangram.cli.explain import wait_sentences
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    FormatOption,
    OutputFormat,
    fail,
    print_progress,
)
from arl_tangram.cli.pairs import parse_amounts, parse_pairs
from arl_tangram.client import Tangram
from arl_tangram.operations import fetched_files
from arl_tangram.options import exec_action, validate_request
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.errors import TangramError, ValidationFailed

__all__ = ["program_options", "register", "run_action"]

WAIT_NOTICE_S = 2.0
"""Seconds after which `submit` explains why the action is still queued."""

ProgramArgument = Annotated[list[str] | None, typer.Argument(help="Program and its arguments, after `--`.")]
TimeoutOption = Annotated[float, typer.Option(help="Maximum run time in seconds. Queueing does not count.")]
CpuOption = Annotated[str, typer.Option(metavar="CORES", help="Number of cores, or a range such as 1-8.")]
FileOption = Annotated[
    list[Path] | None, typer.Option(help="Local file to copy into the working directory; repeatable.")
]
EnvOption = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Environment variable; repeatable.")
]
FollowOption = Annotated[bool, typer.Option("-f", "--follow", help="Show the output live.")]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(rich_help_panel="Run")(submit)


def submit(
    directory: DirOption,
    argv: ProgramArgument = None,
    source: Annotated[Path | None, typer.Option(help="Python file to run instead; `-` reads standard input.")] = None,
    request: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Complete request as JSON; `-` reads standard input.")
    ] = None,
    task: Annotated[str, typer.Option(help="RL workload of the action.", autocompletion=complete_task)] = "cli",
    trajectory: Annotated[str | None, typer.Option(help="Run in the environment of this trajectory.")] = None,
    environment: Annotated[
        UUID | None, typer.Option(help="Run in this environment.", autocompletion=complete_environment)
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="Run `--command` in this shell of the environment; it stays open.")
    ] = None,
    command: Annotated[str | None, typer.Option("-c", "--command", help="Shell command for `--session`.")] = None,
    template: Annotated[
        str | None, typer.Option(help="Template of a new environment.", autocompletion=complete_template)
    ] = None,
    cpu: CpuOption = "1",
    memory_mib: Annotated[int, typer.Option(help="Memory limit in MiB.")] = 512,
    disk_mib: Annotated[int | None, typer.Option(help="Disk limit in MiB.")] = None,
    pids: Annotated[int | None, typer.Option(help="Maximum number of processes and threads.")] = None,
    resource: Annotated[
        list[str] | None, typer.Option(metavar="NAME=N", help="Amount of another resource of nodes; repeatable.")
    ] = None,
    parallel_fraction: Annotated[
        float | None, typer.Option(help="Part of the work that more cores speed up, for a range of cores.")
    ] = None,
    resizable: Annotated[str | None, typer.Option(help="Change of cores while it runs: none, grow or any.")] = None,
    timeout_s: TimeoutOption = 300.0,
    deadline_s: Annotated[
        float | None, typer.Option(help="Seconds from now after which the result is useless.")
    ] = None,
    retries: Annotated[int | None, typer.Option(help="Attempts after an infrastructure error.")] = None,
    idempotent: Annotated[bool, typer.Option("--idempotent", help="Allow retries inside an environment.")] = False,
    priority: Annotated[int | None, typer.Option(help="-10 to 10; higher goes first within the task.")] = None,
    profile: Annotated[str | None, typer.Option(help="Name under which run times are learned.")] = None,
    step: Annotated[int | None, typer.Option(help="Training step.")] = None,
    env: EnvOption = None,
    cwd: Annotated[str | None, typer.Option(help="Directory below the working directory.")] = None,
    stdin: Annotated[Path | None, typer.Option(help="File for standard input; `-` passes this command's.")] = None,
    file: FileOption = None,
    fetch: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="File to copy back when the action ends; repeatable.")
    ] = None,
    fetch_to: Annotated[Path, typer.Option(help="Local directory for fetched files.")] = Path(),
    require: Annotated[
        list[str] | None, typer.Option(help="Limit that must be enforced: cpu, memory, pids or disk; repeatable.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Label; repeatable.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Print the id and return.")] = False,
    follow: FollowOption = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Run a program, show its output and return its exit code.

    Exit codes: the program's own; 124 after a timeout; 125 if it did not run or hit a limit; 128 + N after signal N.
    """
    if request is not None:
        wanted = _read_request(request, argv=argv)
    else:
        options = program_options(argv=argv, source=source, cpu=cpu, file=file, env=env, timeout_s=timeout_s) | {
            "task": task,
            "trajectory": trajectory,
            "environment_id": environment,
            "session": session,
            "command": command,
            "template": template,
            "memory_mib": memory_mib,
            "disk_mib": disk_mib,
            "pids": pids,
            "resources": parse_amounts("--resource", resource, example="network_mbps=100") or None,
            "parallel_fraction": parallel_fraction,
            "resizable": resizable,
            "deadline_s": deadline_s,
            "retries": retries,
            "idempotent": idempotent or None,
            "priority": priority,
            "profile": profile,
            "step": step,
            "cwd": cwd,
            "stdin": _read_text(stdin) if stdin is not None else None,
            "fetch": fetch,
            "require": require,
            "labels": dict(parse_pairs("--label", label)) or None,
        }
        wanted = _build_request(options)
    with connected_client(directory) as tangram:
        run_action(tangram, wanted, no_wait=no_wait, follow=follow, output=output, fetch_to=fetch_to)


def program_options(
    *,
    argv: list[str] | None,
    source: Path | None,
    cpu: str,
    file: list[Path] | None,
    env: list[str] | None,
    timeout_s: float,
) -> dict[str, Any]:
    """Return the options that `submit` and `environments run` share. None means not given."""
    return {
        "argv": argv or None,
        "source": _read_text(source) if source is not None else None,
        "cpu": _parse_cores(cpu),
        "files": {path.name: _read_bytes(path) for path in file or ()},
        "env": dict(parse_pairs("--env", env)) or None,
        "timeout_s": timeout_s,
    }


def run_action(
    tangram: Tangram,
    wanted: SubmitActionRequest,
    *,
    no_wait: bool,
    follow: bool,
    output: OutputFormat,
    fetch_to: Path = Path(),
) -> None:
    """Submit an action, show it, and end the command with the exit code of its program."""
    action = tangram.submit(wanted)
    if no_wait:
        if output is OutputFormat.TEXT:
            sys.stdout.write(f"{action.id}\n")
        else:
            print_action(action, output)
        return
    with _report_if_interrupted(action.id), _explain_long_wait(tangram, action):
        if follow and output is OutputFormat.TEXT:
            action = stream_action(tangram, action.id)
        else:
            [action] = tangram.wait([action.id])
            print_action(action, output)
    _save_files(action, fetch_to)
    raise typer.Exit(exit_code_of(action))


def _build_request(options: dict[str, Any]) -> SubmitActionRequest:
    try:
        return exec_action(**options)
    except ValidationFailed as error:
        fail(str(error), EXIT_USAGE)


def _read_request(path: Path, *, argv: list[str] | None) -> SubmitActionRequest:
    if argv:
        fail("give a program or --json, not both", EXIT_USAGE)
    try:
        body = json.loads(_read_text(path))
    except ValueError as error:
        fail(f"{path} is not JSON: {error}", EXIT_USAGE)
    try:
        return validate_request(SubmitActionRequest, body)
    except ValidationFailed as error:
        fail(f"{path}: {error}", EXIT_USAGE)


@contextmanager
def _explain_long_wait(tangram: Tangram, action: Action) -> Iterator[None]:
    """Print why the action is queued, if it still is after two seconds."""

    def explain() -> None:
        try:
            found = tangram.explain(action.id)
        except TangramError:
            return
        if found.state is ActionState.QUEUED and found.wait is not None:
            print_progress(" ".join(wait_sentences(found.wait)[:2]))

    timer = Timer(WAIT_NOTICE_S, explain)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _report_if_interrupted(id: UUID) -> Iterator[None]:
    """Report on Ctrl-C that the action continues, and how to follow or cancel it."""
    try:
        yield
    except KeyboardInterrupt:
        message = f"action {id} continues. Follow it: tangram logs {id}. Cancel it: tangram cancel {id}"
        fail(message, EXIT_INTERRUPTED)


def _save_files(action: Action, directory: Path) -> None:
    for path, content in fetched_files(action).items():
        target = directory / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except OSError as error:
            fail(f"{target}: {error.strerror}")
    if action.result is not None and action.result.missing_files:
        print_progress(f"these files do not exist: {', '.join(action.result.missing_files)}")


def _parse_cores(cpu: str) -> float | tuple[float, float]:
    low, is_range, high = cpu.partition("-")
    try:
        return (float(low), float(high)) if is_range else float(low)
    except ValueError:
        fail(f"--cpu {cpu}: write a number of cores such as 2, or a range such as 1-8", EXIT_USAGE)


def _read_text(path: Path) -> str:
    if str(path) == "-":
        return sys.stdin.read()
    try:
        return _read_bytes(path).decode()
    except UnicodeDecodeError:
        fail(f"{path} is not UTF-8 text", EXIT_USAGE)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fail(f"{path}: {error.strerror}", EXIT_USAGE)

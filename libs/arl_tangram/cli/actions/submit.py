"""`submit`: run one action from a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from uuid import UUID

import typer

from arl_core.domain.states import ActionState
from arl_tangram.cli.actions import options
from arl_tangram.cli.actions.explain import wait_sentences
from arl_tangram.cli.actions.output import exit_code_of, print_action, stream_action
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_INTERRUPTED, FormatOption, OutputFormat, call_after, fail, print_progress
from arl_tangram.client import Tangram
from arl_tangram.operations import fetched_files
from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.errors import TangramError

__all__ = ["register", "run_action"]

WAIT_NOTICE_S = 2.0
"""Seconds after which `submit` explains why the action is still queued."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(rich_help_panel="Run")(submit)


def submit(
    ctx: typer.Context,
    directory: DirOption,
    argv: options.ProgramArgument = None,
    source: options.SourceOption = None,
    request: options.RequestOption = None,
    task: options.TaskOption = None,
    trajectory: options.TrajectoryOption = None,
    environment: options.EnvironmentOption = None,
    session: options.SessionOption = None,
    command: options.CommandOption = None,
    template: options.TemplateOption = None,
    cpu: options.CpuOption = None,
    exclusive: options.ExclusiveOption = None,
    memory_mib: options.MemoryOption = None,
    disk_mib: options.DiskOption = None,
    pids: options.PidsOption = None,
    resource: options.ResourceOption = None,
    parallel_fraction: options.ParallelOption = None,
    resizable: options.ResizableOption = None,
    timeout_s: options.TimeoutOption = 300.0,
    wall_timeout_s: options.WallTimeoutOption = None,
    deadline_s: options.DeadlineOption = None,
    retries: options.RetriesOption = None,
    idempotent: options.IdempotentOption = False,
    priority: options.PriorityOption = None,
    profile: options.ProfileOption = None,
    step: options.StepOption = None,
    prompt: options.PromptOption = None,
    group: options.GroupOption = None,
    expected_turns: options.TurnsOption = None,
    progress: options.ProgressOption = None,
    env: options.EnvOption = None,
    cwd: options.CwdOption = None,
    user: options.UserOption = None,
    network: options.NetworkOption = None,
    stdin: options.StdinOption = None,
    file: options.FileOption = None,
    fetch: options.FetchOption = None,
    fetch_to: options.FetchToOption = Path(),
    require: options.RequireOption = None,
    label: options.LabelOption = None,
    no_wait: options.NoWaitOption = False,
    follow: options.FollowOption = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Run a program, show its output and return its exit code.

    Exit codes: the program's own; 124 after a timeout; 125 if it did not run or hit a limit; 128 + N after signal N.
    """
    with connected_client(directory) as tangram:
        if request is not None:
            wanted = options.read_request(request, ctx)
        else:
            if environment is not None and task is None:
                task = tangram.get_environment(environment).info.task
            wanted = options.build_request({**ctx.params, "task": task})
        run_action(tangram, wanted, no_wait=no_wait, follow=follow, output=output, fetch_to=fetch_to)


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
    with _report_if_interrupted(action.id), _explain_long_wait(tangram, action, output):
        if follow and output is OutputFormat.TEXT:
            action = stream_action(tangram, action.id)
        else:
            [action] = tangram.wait([action.id])
            print_action(action, output)
    _save_files(action, fetch_to)
    raise typer.Exit(exit_code_of(action))


@contextmanager
def _explain_long_wait(tangram: Tangram, action: Action, output: OutputFormat) -> Iterator[None]:
    """Print why the action is queued, if it still is after two seconds. With JSON, print nothing."""
    has_ended = Event()

    def explain() -> None:
        try:
            found = tangram.explain(action.id)
        except (TangramError, RuntimeError):  # RuntimeError: the action has ended and the client is closed
            return
        if found.state is ActionState.QUEUED and found.wait is not None and not has_ended.is_set():
            print_progress(" ".join(wait_sentences(found.wait)[:2]))

    with call_after(WAIT_NOTICE_S, explain) if output is OutputFormat.TEXT else nullcontext():
        try:
            yield
        finally:
            has_ended.set()


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
        reason = action.message or "these files do not exist"
        print_progress(f"not fetched: {', '.join(action.result.missing_files)} ({reason})")

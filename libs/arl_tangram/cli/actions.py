"""`submit`, `list`, `logs`, `get` and `cancel`: actions from a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from arl_core.domain.states import ActionOutcome, ActionState
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NOT_RUNNING,
    EXIT_USAGE,
    FormatOption,
    OutputFormat,
    fail,
    stderr,
    stdout,
)
from arl_tangram.client import Tangram
from arl_tangram.options import ExecOptions
from arl_tangram.resources.output_streams import OutputData
from arl_tangram.transport.connection import resolve_connection
from arl_wire.actions.action import Action, ActionListResponse
from arl_wire.actions.output_events import OutputRestart, OutputTruncated
from arl_wire.errors import (
    Conflict,
    Forbidden,
    Internal,
    NotFound,
    TangramError,
    Unauthenticated,
    Unavailable,
    Unprocessable,
)

__all__ = ["connected_client", "register"]

RETRY_TIMEOUT_S = 10.0


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(submit)
    app.command("list")(list_actions)
    app.command()(logs)
    app.command()(get)
    app.command()(cancel)


def submit(
    directory: DirOption,
    argv: Annotated[list[str] | None, typer.Argument(help="Program and arguments; after `--`.")] = None,
    source: Annotated[Path | None, typer.Option(help="A Python file to run instead; - for standard input.")] = None,
    task: Annotated[str, typer.Option(help="The RL workload it belongs to.")] = "cli",
    trajectory: Annotated[str | None, typer.Option(help="Run in this trajectory's environment.")] = None,
    template: Annotated[str | None, typer.Option(help="What it begins with; see `tangram templates`.")] = None,
    cpu: Annotated[float, typer.Option(help="Cores.")] = 1.0,
    memory_mib: Annotated[int, typer.Option(help="Memory.")] = 512,
    timeout_s: Annotated[float, typer.Option(help="Of the execution, not of the queue.")] = 300.0,
    file: Annotated[list[Path] | None, typer.Option(help="Put this file into the working directory.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Print the id and return.")] = False,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Show what it prints while it prints it.")] = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Run one action and show its output. The exit code is 0 only for the outcome `ok`."""
    options: ExecOptions = {"task": task, "cpu": cpu, "memory_mib": memory_mib, "timeout_s": timeout_s}
    if argv:
        options["argv"] = argv
    if source is not None:
        options["source"] = sys.stdin.read() if str(source) == "-" else _read_text(source)
    if trajectory is not None:
        options["trajectory"] = trajectory
    if template is not None:
        options["template"] = template
    options["files"] = {path.name: _read_bytes(path) for path in file or []}
    with connected_client(directory) as tangram:
        action = tangram.submit(**options)
        if no_wait and output is OutputFormat.TEXT:
            sys.stdout.write(f"{action.id}\n")
            return
        if follow:
            with _report_if_interrupted(action.id):
                _stream_output(tangram, action.id)
            return
        if not no_wait:
            with _report_if_interrupted(action.id):
                [action] = tangram.wait([action.id])
    _print_action(action, output)


def list_actions(
    directory: DirOption,
    task: Annotated[str | None, typer.Option(help="Of this task only.")] = None,
    trajectory: Annotated[str | None, typer.Option(help="Of this trajectory only.")] = None,
    state: Annotated[ActionState | None, typer.Option(help="In this state only.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """List actions, newest first, without their output."""
    with connected_client(directory) as tangram:
        found = list(islice(tangram.list(task=task, trajectory=trajectory, state=state), limit))
    if output is OutputFormat.JSON:
        sys.stdout.write(ActionListResponse(items=found).model_dump_json(indent=1, exclude_none=True) + "\n")
        return
    for action in found:
        stdout.print(_format_action(action), markup=False, soft_wrap=True)


def logs(directory: DirOption, id: Annotated[UUID, typer.Argument(help="Id of an action.")]) -> None:
    """Show the output of an action and follow it until the end. The exit code is 0 only for the outcome `ok`."""
    with connected_client(directory) as tangram:
        _stream_output(tangram, id)


def get(
    directory: DirOption,
    id: Annotated[UUID, typer.Argument(help="Id of an action.")],
    wait_s: Annotated[float, typer.Option(min=0, max=55, help="Wait this long for its outcome.")] = 0.0,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Show the current state of an action."""
    with connected_client(directory) as tangram:
        action = tangram.get(id, wait_s=wait_s)
    _print_action(action, output)


def cancel(
    directory: DirOption,
    id: Annotated[UUID, typer.Argument(help="Id of an action.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Request the cancellation of an action."""
    with connected_client(directory) as tangram:
        action = tangram.cancel(id)
    if output is OutputFormat.JSON:
        sys.stdout.write(action.model_dump_json(indent=1, exclude_none=True) + "\n")
    else:
        stdout.print(f"{action.id} {action.outcome or 'cancel requested'}", markup=False)


@contextmanager
def connected_client(directory: Path) -> Iterator[Tangram]:
    """Connect to the system in `directory` or at TANGRAM_URL. Errors become a message and an exit code."""
    try:
        connection = resolve_connection(directory=directory)
        with Tangram(connection.url, connection.api_key, retry_timeout_s=RETRY_TIMEOUT_S) as tangram:
            yield tangram
    except Unavailable as error:
        fail(str(error), EXIT_NOT_RUNNING)
    except (Unprocessable, Unauthenticated, NotFound, Conflict, Forbidden) as error:
        fail(str(error), EXIT_USAGE)
    except TangramError as error:
        # A trace id is useful for internal errors only: a refusal is not logged in more detail than its message.
        fail(f"{error}" + (f" (trace {error.trace_id})" if error.trace_id and isinstance(error, Internal) else ""))


@contextmanager
def _report_if_interrupted(id: UUID) -> Iterator[None]:
    """Report on Ctrl-C that the action continues, and how to follow or cancel it."""
    try:
        yield
    except KeyboardInterrupt:
        fail(f"{id} goes on: `tangram logs {id}` follows it, `tangram cancel {id}` ends it", EXIT_INTERRUPTED)


def _stream_output(tangram: Tangram, id: UUID) -> None:
    for event in tangram.stream_logs(id):
        match event:
            case OutputData(stream="stdout"):
                sys.stdout.buffer.write(event.data)
                sys.stdout.buffer.flush()
            case OutputData():
                sys.stderr.buffer.write(event.data)
                sys.stderr.buffer.flush()
            case OutputTruncated():
                stderr.print(f"{event.stream} truncated: {event.kept_bytes} bytes are kept", markup=False)
            case OutputRestart():
                stderr.print("another attempt begins", markup=False)
    action = tangram.get(id)
    _print_outcome(action)
    _exit_unless_ok(action)


def _print_action(action: Action, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        sys.stdout.write(action.model_dump_json(indent=1, exclude_none=True) + "\n")
    else:
        _print_text(action)
    _exit_unless_ok(action)


def _exit_unless_ok(action: Action) -> None:
    if action.settled_at is not None and action.outcome is not ActionOutcome.OK:
        raise typer.Exit(EXIT_FAILED)


def _print_text(action: Action) -> None:
    if action.result is not None:
        sys.stdout.write(action.result.stdout.text)
        sys.stdout.flush()
        sys.stderr.write(action.result.stderr.text)
        sys.stderr.flush()
        for name, stream in (("stdout", action.result.stdout), ("stderr", action.result.stderr)):
            if stream.truncated:
                stderr.print(f"{name} truncated: {stream.total_bytes} bytes in all", markup=False)
        if action.result.response is not None:
            sys.stdout.write(action.result.response.body.text)
        for score in action.result.scores or ():
            stdout.print(score.error.code if score.error is not None else f"{score.score:.6f}", markup=False)
    if action.settled_at is None:
        stdout.print(f"{action.id} {action.state}", markup=False)
    else:
        _print_outcome(action)


def _format_action(action: Action) -> str:
    ended = action.outcome or (f"{action.state}, to be cancelled" if action.cancel_requested else action.state)
    detail = f" ({action.reason})" if action.reason else ""
    took = f"{action.times.act_s:.3f} s" if action.times.act_s is not None else ""
    return f"{action.id}  {action.task}  {action.kind:5}  {ended}{detail}  {took}".rstrip()


def _print_outcome(action: Action) -> None:
    times = action.times
    detail = f" ({action.reason})" if action.reason else ""
    message = f": {action.message}" if action.message else ""
    stderr.print(
        f"{action.id} {action.outcome}{detail}{message}  queue {times.queue_s or 0:.3f} s  run {times.run_s or 0:.3f} s"
        f"  overhead {times.overhead_s or 0:.3f} s",
        markup=False,
    )


def _read_text(path: Path) -> str:
    try:
        return _read_bytes(path).decode()
    except UnicodeDecodeError:
        fail(f"{path} is not UTF-8 text", EXIT_USAGE)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fail(f"{path}: {error.strerror}", EXIT_USAGE)

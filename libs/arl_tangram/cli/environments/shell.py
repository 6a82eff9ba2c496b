"""A line-by-line shell in an environment. Each line runs as one action of the session."""

import sys
from contextlib import suppress

from arl_tangram.cli.actions.output import exit_code_of
from arl_tangram.cli.output import EXIT_INTERRUPTED, print_progress, stderr
from arl_tangram.cli.terminal_text import write_output
from arl_tangram.client import Tangram
from arl_tangram.environment_handles import Environment
from arl_tangram.resources.output_streams import OutputData
from arl_wire.actions.action import Action
from arl_wire.errors import TangramError

__all__ = ["run_shell"]


def run_shell(tangram: Tangram, environment: Environment, session: str) -> int:
    """Read lines from standard input and run each in the session. Return the exit code of the last line.

    At a terminal, a prompt is shown and lines can be edited. Ctrl-C cancels the running line.
    """
    shell, code, is_terminal = environment.shell(session), 0, sys.stdin.isatty()
    if is_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 - gives `input` line editing and a history
        print_progress(f"environment {environment.id}, session {session}; `exit` or Ctrl-D leaves")
    while (line := _read_line(session if is_terminal else "")) is not None:
        if line.strip() == "exit":
            break
        if not line.strip():
            continue
        try:
            code = exit_code_of(_show(tangram, shell.submit(line)))
        except TangramError as error:
            if not is_terminal:
                raise
            print_progress(f"tangram: {error}")
    return code


def _read_line(prompt: str) -> str | None:
    try:
        return input(f"{prompt}$ " if prompt else "")
    except EOFError:
        return None
    except KeyboardInterrupt:
        print_progress("")
        return ""


def _show(tangram: Tangram, action: Action) -> Action:
    try:
        for event in tangram.stream_logs(action.id):
            if isinstance(event, OutputData):
                write_output(event.data, event.stream)
    except KeyboardInterrupt:
        tangram.cancel(action.id)
        print_progress(f"cancelled (exit code {EXIT_INTERRUPTED})")
    [settled] = tangram.wait([action.id])
    if settled.masked:
        stderr.print(f"{settled.outcome}: {settled.message or settled.reason or ''}", markup=False)
    return settled

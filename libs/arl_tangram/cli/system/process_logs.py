"""`system logs`: the logs of the system's processes on this machine."""

import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from arl_tangram.cli.local_state import DirOption, LocalState
from arl_tangram.cli.output import EXIT_INTERRUPTED, EXIT_NOT_RUNNING, EXIT_USAGE, FormatOption, OutputFormat, fail
from arl_tangram.cli.terminal_text import write_text

__all__ = ["register"]

_POLL_INTERVAL_S = 0.2

group = typer.Typer(no_args_is_help=True, help="Inspect the processes of the system on this machine.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="system", rich_help_panel="Inspect")


@group.command()
def logs(
    directory: DirOption,
    service: Annotated[str | None, typer.Argument(help="Name of a process.", show_default="all")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow new lines.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Number of last lines per process.")] = 50,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Show the logs of the services, of Postgres and of the supervisor."""
    known = LocalState(directory).logs()
    if not known:
        fail(f"No system was started in {directory}. Start one: tangram up -d", EXIT_NOT_RUNNING)
    if service is not None and service not in known:
        fail(f"Process {service!r} has no log. Available: {', '.join(known)}.", EXIT_USAGE)
    chosen = [service] if service else list(known)
    followed = [_LogTail(name, known[name], prefixed=len(chosen) > 1, output=output) for name in chosen]
    try:
        for log in followed:
            log.print_last(lines)
        while follow:
            time.sleep(_POLL_INTERVAL_S)
            for log in followed:
                log.print_new()
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        sys.stderr.close()  # avoids an error message about the closed pipe at exit


class _LogTail:
    """A log file and the offset up to which it was shown."""

    def __init__(self, name: str, path: Path, *, prefixed: bool, output: OutputFormat) -> None:
        self._name = name
        self._path = path
        self._prefix = f"{name} | " if prefixed else ""
        self._output = output
        self._offset = 0

    def print_last(self, lines: int) -> None:
        with self._path.open("rb") as file:
            self._print_lines(deque(file, maxlen=lines))
            self._offset = file.tell()

    def print_new(self) -> None:
        """Print new lines. A shorter file was truncated, so it is read from its beginning."""
        size = self._path.stat().st_size
        if size == self._offset:
            return
        with self._path.open("rb") as file:
            file.seek(self._offset if size > self._offset else 0)
            self._print_lines(deque(file))
            self._offset = file.tell()

    def _print_lines(self, lines: deque[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace").rstrip("\n")
            shown = {"service": self._name, "line": text} if self._output is OutputFormat.JSON else None
            write_text(f"{json.dumps(shown) if shown else self._prefix + text}\n")

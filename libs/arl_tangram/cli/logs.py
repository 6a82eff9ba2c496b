"""`logs`: what the processes wrote."""

import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from arl_tangram.cli.output import EXIT_NOT_RUNNING, EXIT_USAGE, Format, FormatOption, fail
from arl_tangram.cli.state import DirOption, LocalState

__all__ = ["register"]

_POLL_S = 0.2


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(logs)


def logs(
    directory: DirOption,
    service: Annotated[str | None, typer.Argument(help="One process; default all.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is being written.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Last lines of each.")] = 50,
    output: FormatOption = Format.TEXT,
) -> None:
    """Show the logs of the services, of Postgres and of the supervisor."""
    known = LocalState(directory).logs()
    if not known:
        fail(f"nothing was ever started in {directory}", EXIT_NOT_RUNNING)
    if service is not None and service not in known:
        fail(f"there is no log of {service!r}; there are {', '.join(known)}", EXIT_USAGE)
    chosen = [service] if service else list(known)
    followed = [_Followed(name, known[name], prefixed=len(chosen) > 1, output=output) for name in chosen]
    try:
        for log in followed:
            log.show_last(lines)
        while follow:
            time.sleep(_POLL_S)
            for log in followed:
                log.show_new()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stderr.close()  # nobody is left to read a complaint about the closed pipe


class _Followed:
    """One log file, and how far it has been shown."""

    def __init__(self, name: str, path: Path, *, prefixed: bool, output: Format) -> None:
        self._name = name
        self._path = path
        self._prefix = f"{name} | " if prefixed else ""
        self._output = output
        self._shown = 0

    def show_last(self, lines: int) -> None:
        with self._path.open("rb") as file:
            self._show(deque(file, maxlen=lines))
            self._shown = file.tell()

    def show_new(self) -> None:
        """A file that has become shorter was emptied: it is read from its beginning."""
        size = self._path.stat().st_size
        if size == self._shown:
            return
        with self._path.open("rb") as file:
            file.seek(self._shown if size > self._shown else 0)
            self._show(deque(file))
            self._shown = file.tell()

    def _show(self, lines: deque[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace").rstrip("\n")
            shown = {"service": self._name, "line": text} if self._output is Format.JSON else None
            print(json.dumps(shown) if shown else self._prefix + text, flush=True)

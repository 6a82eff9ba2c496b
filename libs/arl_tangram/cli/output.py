"""Output formats, tables, exit codes and error messages that all commands share."""

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from threading import Timer
from typing import Annotated, Any, NoReturn

import typer
from pydantic import BaseModel

from arl_tangram.cli.terminal_text import TerminalConsole, write_text
from arl_wire.errors import TangramError

__all__ = [
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_NOT_RUNNING",
    "EXIT_NO_SANDBOX",
    "EXIT_USAGE",
    "FormatOption",
    "JsonOption",
    "OutputFormat",
    "call_after",
    "fail",
    "fail_with",
    "print_error",
    "print_json",
    "print_model",
    "print_progress",
    "print_rows",
    "stderr",
    "stdout",
    "wants_json",
]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_RUNNING = 3
EXIT_NO_SANDBOX = 5
EXIT_INTERRUPTED = 130

_PIPED_WIDTH = 200
_is_terminal = sys.stdout is not None and sys.stdout.isatty()  # it is None if the caller closed it
stdout = TerminalConsole(highlight=False, soft_wrap=True, width=None if _is_terminal else _PIPED_WIDTH)
stderr = TerminalConsole(highlight=False, soft_wrap=True, stderr=True)


class OutputFormat(StrEnum):
    """Text for people, or JSON for programs."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[
    OutputFormat, typer.Option("-o", "--output", help="Output format. JSON also applies to error messages.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def print_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    json.dump(value, sys.stdout, indent=1)
    sys.stdout.write("\n")


def print_model(value: BaseModel) -> None:
    """Write a response as one JSON document to standard output, without absent fields."""
    if sys.stdout.isatty():  # only ASCII, because a terminal executes some other characters
        print_json(value.model_dump(mode="json", exclude_none=True))
    else:
        sys.stdout.write(value.model_dump_json(indent=1, exclude_none=True) + "\n")


def print_rows(headings: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print a table with aligned columns. No value is cut or wrapped, so that ids and addresses can be copied.

    If there are no rows, print `empty` on standard error; it says what to do.
    """
    lines = [tuple(heading.upper() for heading in headings), *map(tuple, rows)]
    if len(lines) == 1:
        stderr.print(empty, markup=False)
        return
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        write_text("  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)).rstrip() + "\n")


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    """End the command with a message on standard error."""
    print_error({"detail": message})
    raise typer.Exit(code)


def fail_with(error: TangramError, code: int, *, suffix: str = "") -> NoReturn:
    """End the command with the message of an error. In JSON, the error is a problem document (RFC 9457)."""
    problem = error.to_problem(trace_id=error.trace_id).model_dump(mode="json", exclude_none=True)
    print_error(problem | {"detail": f"{error}{suffix}"})
    raise typer.Exit(code)


def print_error(problem: dict[str, Any]) -> None:
    """Print an error on standard error, as text or as one JSON document."""
    if wants_json(sys.argv[1:]):
        sys.stderr.write(json.dumps(problem, indent=1) + "\n")
    else:
        stderr.print(f"tangram: {problem['detail']}", markup=False)


@contextmanager
def call_after(seconds: float, notify: Callable[[], None]) -> Iterator[None]:
    """Call `notify` once, in another thread, if the block takes longer than `seconds`."""
    timer = Timer(seconds, notify)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_progress(line: str) -> None:
    """Print a progress line on standard error."""
    stderr.print(line, markup=False)


def wants_json(arguments: list[str]) -> bool:
    """Return True if the arguments before `--` ask for JSON. They may be invalid, so they are not parsed."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    pairs = itertools.pairwise([*own, ""])
    command = own[2:3] if own[:1] == ["--cell"] else own[1:2] if own[:1] and own[0].startswith("--cell=") else own[:1]
    is_flag = command != ["submit"]  # `submit --json FILE` is a request, not an output format
    return ("--json" in own and is_flag) or any(
        name in ("--output=json", "-ojson") or (name in ("-o", "--output") and value == "json") for name, value in pairs
    )

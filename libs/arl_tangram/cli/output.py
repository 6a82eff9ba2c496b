"""Output formats, exit codes and error reporting that all commands share."""

import json
import sys
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

__all__ = [
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_NOT_RUNNING",
    "EXIT_NO_SANDBOX",
    "EXIT_USAGE",
    "FormatOption",
    "JsonOption",
    "OutputFormat",
    "fail",
    "print_json",
    "print_progress",
    "stderr",
    "stdout",
]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_RUNNING = 3
EXIT_NO_SANDBOX = 5
EXIT_INTERRUPTED = 130

_PIPED_WIDTH = 200
stdout = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
stderr = Console(highlight=False, soft_wrap=True, stderr=True)


class OutputFormat(StrEnum):
    """A text for people, or JSON for programs."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[OutputFormat, typer.Option("-o", "--output", help="Output format.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def print_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    json.dump(value, sys.stdout, indent=1)
    sys.stdout.write("\n")


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    """End the command with a message on standard error."""
    stderr.print(f"tangram: {message}", markup=False)
    raise typer.Exit(code)


def print_progress(line: str) -> None:
    """Print a progress line on standard error."""
    stderr.print(line, markup=False)

"""`router`: run the router in front of several cells, in the foreground."""

import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from arl_tangram.cli.output import EXIT_USAGE, fail, stderr
from arl_tangram.cli.system.supervisor_process import require_server
from arl_wire.cells import MAX_CELL

__all__ = ["register"]

_PORT = 8600


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(rich_help_panel="Operate")(router)


def router(
    cell: Annotated[
        list[str],
        typer.Option(metavar="NUMBER=URL", help="Cell and the address of its gateway; repeat it for further cells."),
    ],
    weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER=WEIGHT",
            help="Share of a cell in new trajectories; 0: none. Repeatable.",
            show_default="1 for each cell",
        ),
    ] = None,
    fallback: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_CELL, help="Cell with ids from before it had a number.", show_default="such ids are unknown"
        ),
    ] = None,
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="Address on which clients connect.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on which clients connect.")] = _PORT,
) -> None:
    """Serve several cells as one system, in the foreground. Ctrl-C stops it.

    Clients set TANGRAM_URL to its address and use one key that all cells know.
    """
    require_server()
    settings = {
        "TANGRAM_CELLS": json.dumps(dict(_parse_pairs("--cell", cell))),
        "TANGRAM_CELL_WEIGHTS": json.dumps(
            {number: _parse_weight(number, text) for number, text in _parse_pairs("--weight", weight or ())}
        ),
        "TANGRAM_HOST": listen,
        "TANGRAM_PORT": str(port),
        **({"TANGRAM_FALLBACK_CELL": str(fallback)} if fallback is not None else {}),
    }
    stderr.print(f"router of {len(cell)} cells at http://{listen}:{port}; Ctrl-C stops it", markup=False)
    os.execve(  # noqa: S606 - the same program, without a shell
        sys.executable, [sys.executable, "-m", "arl_cell_router"], {**os.environ, **settings}
    )


def _parse_pairs(option: str, given: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in given]
    for text, (number, _, value) in zip(given, pairs, strict=True):
        if not (number.isascii() and number.isdigit() and 1 <= int(number) <= MAX_CELL and value):
            fail(f"{option} {text!r}: must be NUMBER=VALUE with a number from 1 to {MAX_CELL}", EXIT_USAGE)
    numbers = [number for number, _, _ in pairs]
    if repeated := sorted({number for number in numbers if numbers.count(number) > 1}):
        fail(f"{option}: cell {repeated[0]} is given twice", EXIT_USAGE)
    return [(number, value) for number, _, value in pairs]


def _parse_weight(number: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        fail(f"--weight {number}={text}: the weight must be a number", EXIT_USAGE)

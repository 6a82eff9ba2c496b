"""`router`: run the router in front of several cells, in the foreground."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer

from arl_tangram.cli.output import EXIT_USAGE, fail, stderr
from arl_tangram.cli.system.supervisor_process import require_server
from arl_wire.cells import MAX_CELL

__all__ = ["register"]

_PORT = 8600
ROUTER_COMMAND = [sys.executable, "-m", "arl_cell_router"]
CHECK_SETTINGS = "--check-settings"
"""Argument of the router with which it only checks its settings."""
OPTION_NAMES = {
    "cells": "--cell",
    "cell_weights": "--weight",
    "fallback_cell": "--fallback",
    "cell_connections": "--connections",
    "host": "--listen",
    "port": "--port",
}
"""Settings in messages of the router, and their options."""
MIN_TOKEN_BYTES = 16
MAX_DIGITS = 8


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
    connections: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65536,
            help="Maximum number of connections to a cell; each open request uses one.",
            show_default="2048",
        ),
    ] = None,
    metrics_token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token that /metrics requires.", show_default="/metrics is closed"),
    ] = None,
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
        **({"TANGRAM_CELL_CONNECTIONS": str(connections)} if connections is not None else {}),
        **({"TANGRAM_METRICS_TOKEN_HASH": _hash_of(metrics_token_file)} if metrics_token_file is not None else {}),
    }
    variables = {**os.environ, **settings}
    _check_settings(variables)
    address = f"[{listen}]" if ":" in listen else listen
    stderr.print(f"router of {len(cell)} cells at http://{address}:{port}; Ctrl-C stops it", markup=False)
    os.execve(sys.executable, ROUTER_COMMAND, variables)  # noqa: S606 - the same program, without a shell


def _check_settings(variables: Mapping[str, str]) -> None:
    """End the command with all mistakes in the settings. Messages name the options in place of the variables."""
    checked = subprocess.run(
        [*ROUTER_COMMAND, CHECK_SETTINGS], env=dict(variables), capture_output=True, text=True, check=False
    )
    if checked.returncode:
        said = checked.stderr.strip()
        for name, option in OPTION_NAMES.items():
            said = said.replace(f"TANGRAM_{name.upper()}:", f"{option}:").replace(
                f"TANGRAM_{name.upper()} ", f"{option} "
            )
            said = said.replace(name, option) if "_" in name else said
        fail(said.removeprefix("TANGRAM_*: "), EXIT_USAGE)


def _hash_of(path: Path) -> str:
    """Return the SHA-256 of the token in a file, as hexadecimal digits."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        fail(f"--metrics-token-file {path}: {error.strerror}", EXIT_USAGE)
    if len(token) < MIN_TOKEN_BYTES:
        fail(f"--metrics-token-file {path}: the token must have {MIN_TOKEN_BYTES} characters or more", EXIT_USAGE)
    return sha256(token).hexdigest()


def _parse_pairs(option: str, given: Sequence[str]) -> list[tuple[int, str]]:
    pairs = []
    for text in given:
        number, _, value = text.partition("=")
        is_number = number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS
        if not (is_number and 1 <= int(number) <= MAX_CELL and value):
            fail(f"{option} {text!r}: must be NUMBER=VALUE with a number from 1 to {MAX_CELL}", EXIT_USAGE)
        pairs.append((int(number), value))
    numbers = [number for number, _ in pairs]
    if repeated := sorted({number for number in numbers if numbers.count(number) > 1}):
        fail(f"{option}: cell {repeated[0]} is given twice", EXIT_USAGE)
    return pairs


def _parse_weight(number: int, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        fail(f"--weight {number}={text}: the weight must be a number", EXIT_USAGE)

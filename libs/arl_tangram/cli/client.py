"""The connection of a command to the system, and the exit codes of its errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from arl_tangram.cli.output import EXIT_FAILED, EXIT_NOT_RUNNING, EXIT_USAGE, fail_with
from arl_tangram.client import Tangram
from arl_tangram.transport.connection import remote_gateway_url, resolve_connection
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

__all__ = ["connected_client", "remote_url"]

RETRY_TIMEOUT_S = 10.0


@contextmanager
def connected_client(directory: Path, *, retry_timeout_s: float = RETRY_TIMEOUT_S) -> Iterator[Tangram]:
    """Connect to the system in `directory` or at TANGRAM_URL. Errors become a message and an exit code."""
    try:
        connection = resolve_connection(directory=directory)
        with Tangram(
            connection.url, connection.api_key, cell=connection.cell, retry_timeout_s=retry_timeout_s
        ) as tangram:
            yield tangram
    except Unavailable as error:
        fail_with(error, EXIT_NOT_RUNNING)
    except (Unprocessable, Unauthenticated, NotFound, Conflict, Forbidden) as error:
        fail_with(error, EXIT_USAGE)
    except TangramError as error:
        # A trace id is useful for internal errors only: a refusal is not logged in more detail than its message.
        is_internal = isinstance(error, Internal) and error.trace_id
        fail_with(error, EXIT_FAILED, suffix=f" (trace {error.trace_id})" if is_internal else "")


def remote_url(context: typer.Context, directory: Path) -> str | None:
    """Return the gateway in TANGRAM_URL. None if it is unset or that of `directory`, or if --dir was given."""
    source = context.get_parameter_source("directory")
    if source is not None and source.name == "COMMANDLINE":
        return None
    try:
        return remote_gateway_url(directory)
    except Unprocessable as error:
        fail_with(error, EXIT_USAGE)

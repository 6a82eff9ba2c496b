"""`mcp`: an MCP server whose tools run in an environment."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from arl_tangram.cli.completion import complete_task, complete_template
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_NOT_RUNNING, EXIT_USAGE, fail, fail_with, stderr
from arl_tangram.transport.connection import ConnectionConfig, resolve_connection
from arl_wire.errors import TangramError, Unavailable

__all__ = ["register"]

LOOPBACK = "127.0.0.1"
MAX_PORT = 65535
_NO_KEY = "sent-by-each-client"
"""Key in place of one of this process: over HTTP, each client sends its own."""


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(rich_help_panel="Run")(mcp)


def mcp(
    directory: DirOption,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"Serve streamable HTTP at /mcp; PORT alone means {LOOPBACK}. Clients send their API key as a bearer"
            " token.",
            show_default="stdio, with the key of this command",
        ),
    ] = None,
    task: Annotated[str, typer.Option(help="RL workload of the environments.", autocompletion=complete_task)] = "mcp",
    trajectory: Annotated[
        str | None, typer.Option(help="Name of the trajectory of a stdio session; generated if absent.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Initial content.", autocompletion=complete_template, show_default="host")
    ] = None,
    memory_mib: Annotated[int | None, typer.Option(help="Memory in MiB.", show_default="512")] = None,
    disk_mib: Annotated[int | None, typer.Option(help="Disk in MiB.", show_default="128")] = None,
    cpu: Annotated[float, typer.Option(help="Cores of each call.")] = 1.0,
    timeout_s: Annotated[float, typer.Option(min=1, max=86400, help="Maximum run time of a call in seconds.")] = 120.0,
    idle_ttl_s: Annotated[
        int, typer.Option(min=1, help="Seconds without a call after which an environment ends.")
    ] = 1800,
    shell: Annotated[str, typer.Option(help="Program that runs commands, with -c.")] = "bash",
) -> None:
    """Serve MCP: tools that run commands and Python and transfer files, in one environment per MCP session.

    The environment ends with the session. Over stdio, the client starts this command, and its end ends the session.
    """
    if find_spec("mcp") is None:
        fail("`tangram mcp` needs the package mcp: pip install 'arl-tangram[mcp]'", EXIT_USAGE)
    from arl_tangram.mcp_server.server import run_http, run_stdio
    from arl_tangram.mcp_server.sessions import McpOptions

    options = McpOptions(
        task=task,
        trajectory=trajectory,
        template=template,
        memory_mib=memory_mib,
        disk_mib=disk_mib,
        cpu=cpu,
        timeout_s=timeout_s,
        idle_ttl_s=idle_ttl_s,
        shell=shell,
    )
    if http is None:
        connection = _connection(directory)
        asyncio.run(run_stdio(connection.url, connection.api_key, options))
        return
    if trajectory is not None:
        fail("--trajectory is for stdio. Over HTTP, add ?trajectory=NAME to the address of the server", EXIT_USAGE)
    host, port = _parse_address(http)
    url = _connection(directory, api_key=_NO_KEY).url
    stderr.print(f"MCP at http://{f'[{host}]' if ':' in host else host}:{port}/mcp", markup=False, soft_wrap=True)
    asyncio.run(run_http(url, host, port, options))


def _connection(directory: Path, api_key: str | None = None) -> ConnectionConfig:
    try:
        return resolve_connection(api_key=api_key, directory=directory)
    except Unavailable as error:
        fail_with(error, EXIT_NOT_RUNNING)
    except TangramError as error:
        fail_with(error, EXIT_USAGE)


def _parse_address(text: str) -> tuple[str, int]:
    """Return host and port. A port alone is one of the loopback interface."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= MAX_PORT):
        fail(f"--http: {text!r} has no port from 1 to {MAX_PORT}. Example: --http {LOOPBACK}:8800", EXIT_USAGE)
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)

"""`call` and `endpoints`: external APIs from a terminal."""

import sys
from base64 import b64decode
from typing import Annotated

import typer

from arl_core.domain.states import ActionOutcome
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_endpoint, complete_task
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import (
    EXIT_FAILED,
    FormatOption,
    OutputFormat,
    fail,
    print_model,
    print_progress,
    print_rows,
)
from arl_tangram.cli.pairs import parse_pairs
from arl_tangram.cli.terminal_text import write_text
from arl_tangram.resources.endpoints import CallOptions, call_action
from arl_wire.calls import Endpoint, EndpointListResponse, EndpointReplica
from arl_wire.validation import OutputStream

__all__ = ["register"]

group = typer.Typer(no_args_is_help=True, help="List external APIs and their quotas.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(rich_help_panel="Run")(call)
    app.add_typer(group, name="endpoints", rich_help_panel="Operate")


def call(
    directory: DirOption,
    endpoint: Annotated[str, typer.Argument(help="Name of an endpoint.", autocompletion=complete_endpoint)],
    path: Annotated[str, typer.Argument(help="Path below the address of the endpoint.")] = "",
    method: Annotated[
        str | None, typer.Option("--method", "-X", help="HTTP method.", show_default="POST with a body, otherwise GET")
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option("--query", "-q", metavar="NAME=VALUE", help="Query parameter; repeatable.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header, without credentials; repeatable."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", "-d", help="Body, as JSON unless a header names another type; `-` reads standard input."
        ),
    ] = None,
    timeout_s: Annotated[float, typer.Option(min=0.001, help="Maximum seconds for all attempts.")] = 60.0,
    task: Annotated[str, typer.Option(help="RL workload of the call.", autocompletion=complete_task)] = "cli",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Send one request to an endpoint and show the response. Exit code 1 for an error response or no response."""
    headers = dict(parse_pairs("--header", header))
    options: CallOptions = {"task": task, "timeout_s": timeout_s, "headers": headers}
    options["query"] = _group_by_name(parse_pairs("--query", query))
    if method is not None:
        options["method"] = method.upper()
    if data is not None:
        options["body"] = sys.stdin.read() if data == "-" else data
        if "content-type" not in map(str.lower, headers):
            options["headers"] = {**headers, "Content-Type": "application/json"}
    with connected_client(directory) as tangram:
        action = tangram.run(call_action(endpoint, path, **options))
    if output is OutputFormat.JSON:
        print_model(action)
    elif action.result is not None and action.result.response is not None:
        _write_body(action.result.response.body)
        if action.result.response.body.truncated:
            print_progress(f"the response was cut; it has {action.result.response.body.total_bytes} bytes")
    if action.outcome is not ActionOutcome.OK:
        reason = f" ({action.reason})" if action.reason else ""
        fail(f"{action.outcome}{reason}: {action.message or 'no response'}", EXIT_FAILED)


@group.command("list")
def list_endpoints(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the endpoints with their limits and health."""
    with connected_client(directory) as tangram:
        endpoints = tangram.endpoints()
    if output is OutputFormat.JSON:
        print_model(EndpointListResponse(items=endpoints))
        return
    headings = ("endpoint", "methods", "address", "node", "in flight", "rate", "requests", "throttled", "health")
    rows = (row for endpoint in endpoints for row in _rows(endpoint))
    print_rows(headings, rows, empty="No endpoint exists. Configure one in TANGRAM_ENDPOINTS of a broker")


def _write_body(body: OutputStream) -> None:
    r"""Write the raw body to a pipe. At a terminal, write text, with \xNN for other bytes, and a final line break."""
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(b64decode(body.base64) if body.base64 is not None else body.text.encode())
        sys.stdout.buffer.flush()
        return
    write_text(body.text if body.text.endswith("\n") else f"{body.text}\n")


def _rows(endpoint: Endpoint) -> list[tuple[str, ...]]:
    head = (endpoint.name, ",".join(endpoint.methods), endpoint.url or "-")
    return [(*head, *_replica_cells(node)) for node in endpoint.nodes] or [(*head, *"-----", "no node")]


def _replica_cells(node: EndpointReplica) -> tuple[str, ...]:
    window = f" (now {node.window})" if node.window < node.concurrency else ""
    rate = f"{node.per_s:g}/s, burst {node.burst}" if node.per_s is not None else "-"
    health = node.health if node.available else "not available"
    in_flight = f"{node.in_flight}/{node.concurrency}{window}"
    return (node.node, in_flight, rate, str(node.requests), str(node.throttled), health)


def _group_by_name(pairs: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the values of each name. A query parameter may occur several times."""
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found

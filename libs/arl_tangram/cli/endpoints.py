"""`call` and `endpoints`: external APIs from a terminal."""

import sys
from base64 import b64decode
from typing import Annotated

import typer

from arl_core.domain.states import ActionOutcome
from arl_tangram.cli.actions import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_FAILED, EXIT_USAGE, FormatOption, OutputFormat, fail, print_progress, stdout
from arl_tangram.resources.endpoints import CallOptions, call_action
from arl_wire.calls import Endpoint, EndpointListResponse, EndpointReplica
from arl_wire.validation import OutputStream

__all__ = ["register"]

group = typer.Typer(no_args_is_help=True, help="Endpoints: external APIs whose quotas all jobs share.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(call)
    app.add_typer(group, name="endpoints")


def call(
    directory: DirOption,
    endpoint: Annotated[str, typer.Argument(help="As `endpoints list` shows it.")],
    path: Annotated[str, typer.Argument(help="Below the endpoint's address.")] = "",
    method: Annotated[str | None, typer.Option("--method", "-X", help="Left out: POST with a body, else GET.")] = None,
    query: Annotated[list[str] | None, typer.Option("--query", "-q", metavar="NAME=VALUE", help="Repeatable.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="Repeatable; no credentials.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="The body; JSON unless a header says another type. `-` reads it.")
    ] = None,
    timeout_s: Annotated[float, typer.Option(min=0.001, help="From the first request on, tries too.")] = 60.0,
    task: Annotated[str, typer.Option(help="The RL workload it belongs to.")] = "cli",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Send one request to an endpoint and show the response. Exit code 1 for an error response or no response."""
    headers = _parse_pairs("--header", header)
    options: CallOptions = {"task": task, "timeout_s": timeout_s, "headers": headers}
    options["query"] = _parse_query(query)
    if method is not None:
        options["method"] = method.upper()
    if data is not None:
        options["body"] = sys.stdin.read() if data == "-" else data
        if "content-type" not in map(str.lower, headers):
            options["headers"] = {**headers, "Content-Type": "application/json"}
    with connected_client(directory) as tangram:
        action = tangram.run(call_action(endpoint, path, **options))
    if output is OutputFormat.JSON:
        sys.stdout.write(action.model_dump_json(indent=1, exclude_none=True) + "\n")
    elif action.result is not None and action.result.response is not None:
        _write_body(action.result.response.body)
        if action.result.response.body.truncated:
            print_progress(f"the answer was cut: it had {action.result.response.body.total_bytes} bytes")
    if action.outcome is not ActionOutcome.OK:
        reason = f" ({action.reason})" if action.reason else ""
        fail(f"{action.outcome}{reason}: {action.message or 'no answer'}", EXIT_FAILED)


@group.command("list")
def list_endpoints(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the endpoints with their limits and health."""
    with connected_client(directory) as tangram:
        endpoints = tangram.endpoints()
    if output is OutputFormat.JSON:
        sys.stdout.write(EndpointListResponse(items=endpoints).model_dump_json(indent=1, exclude_none=True) + "\n")
        return
    if not endpoints:
        print_progress("no broker has an endpoint; TANGRAM_ENDPOINTS names them")
    for endpoint in endpoints:
        stdout.print(_format_endpoint(endpoint), markup=False)
        for node in endpoint.nodes:
            stdout.print(_format_node(node), markup=False)


def _write_body(body: OutputStream) -> None:
    r"""Write the raw body to a pipe. At a terminal, write text, with \xNN for other bytes, and a final line break."""
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(b64decode(body.base64) if body.base64 is not None else body.text.encode())
        sys.stdout.buffer.flush()
        return
    sys.stdout.write(body.text if body.text.endswith("\n") else f"{body.text}\n")


def _format_endpoint(endpoint: Endpoint) -> str:
    where = f"  {endpoint.url}" if endpoint.url is not None else ""
    return f"{endpoint.name}{where}  {', '.join(endpoint.methods)}"


def _format_node(node: EndpointReplica) -> str:
    rate = f"  {node.per_s:g} a second, {node.burst} at once" if node.per_s is not None else ""
    window = f", {node.window} for now" if node.window < node.concurrency else ""
    health = node.health if node.available else "not available"
    return (
        f"  {node.node}  in flight {node.in_flight} of {node.concurrency}{window}{rate}"
        f"  requests {node.requests}, throttled {node.throttled}  {health}"
    )


def _parse_pairs(option: str, pairs: list[str] | None) -> dict[str, str]:
    found = {}
    for each in pairs or ():
        name, is_pair, value = each.partition("=")
        if not is_pair or not name:
            fail(f"{option} {each}: write NAME=VALUE", EXIT_USAGE)
        found[name] = value
    return found


def _parse_query(pairs: list[str] | None) -> dict[str, list[str]]:
    """Parse query parameters. A name may occur several times."""
    found: dict[str, list[str]] = {}
    for each in pairs or ():
        for name, value in _parse_pairs("--query", [each]).items():
            found.setdefault(name, []).append(value)
    return found

"""`nodes`: list, cordon, uncordon, drain and remove nodes."""

import sys
import time
from typing import Annotated

import typer
from rich.table import Table

from arl_tangram.cli.actions import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_FAILED, FormatOption, OutputFormat, stderr, stdout
from arl_tangram.client import Tangram
from arl_wire.admin.nodes import NodeInfo, NodeListResponse

__all__ = ["node_state", "node_table", "register"]

DRAIN_POLL_S = 0.5
DRAIN_GRACE_S = 30.0
"""Seconds after the deadline in which the node may still report that its remaining actions have ended."""

NodeName = Annotated[str, typer.Argument(help="As `nodes list` shows it.")]
group = typer.Typer(no_args_is_help=True, help="Nodes: list, close, empty, open, remove.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="nodes")


@group.command("list")
def list_nodes(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the nodes and their allocations."""
    with connected_client(directory) as tangram:
        nodes = tangram.nodes()
    if output is OutputFormat.JSON:
        _print_json(nodes)
    else:
        stdout.print(node_table(nodes))


@group.command()
def cordon(directory: DirOption, name: NodeName, output: FormatOption = OutputFormat.TEXT) -> None:
    """Schedule nothing new on a node. Its existing environments continue."""
    with connected_client(directory) as tangram:
        _print_node(tangram.change_node(name, cordoned=True), output)


@group.command()
def uncordon(directory: DirOption, name: NodeName, output: FormatOption = OutputFormat.TEXT) -> None:
    """Allow new work on a node again. A drain in progress stops."""
    with connected_client(directory) as tangram:
        _print_node(tangram.change_node(name, cordoned=False), output)


@group.command()
def drain(
    directory: DirOption,
    name: NodeName,
    deadline_s: Annotated[
        float, typer.Option("--deadline", min=0, help="Seconds that trajectories living there have to end.")
    ] = 600.0,
    wait: Annotated[bool, typer.Option(help="Return when the node is empty.")] = True,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Drain a node: it gets nothing new, and the rest ends at the deadline. Exit code 1 if the node is not empty.

    Ended actions are queued again if their `retries` allow it; environments are lost.
    """
    with connected_client(directory) as tangram:
        node = tangram.change_node(name, cordoned=True, drain_deadline_s=deadline_s)
        if wait:
            node = _wait_until_drained(tangram, node, within_s=deadline_s + DRAIN_GRACE_S)
    _print_node(node, output)
    if wait and not node.drained:
        raise typer.Exit(EXIT_FAILED)


@group.command()
def remove(directory: DirOption, name: NodeName) -> None:
    """Remove a lost node. Refused while the node is alive or has actions or environments."""
    with connected_client(directory) as tangram:
        tangram.remove_node(name)


def _wait_until_drained(tangram: Tangram, node: NodeInfo, *, within_s: float) -> NodeInfo:
    """Return the node when it is empty or when the time is over."""
    ends_at = time.monotonic() + within_s
    with stderr.status(f"emptying {node.name}") as status:
        while not node.drained and time.monotonic() < ends_at:
            status.update(f"emptying {node.name}: {node.running} actions, {node.environments} environments left")
            time.sleep(DRAIN_POLL_S)
            node = next(each for each in tangram.nodes().items if each.name == node.name)
    return node


def node_table(nodes: NodeListResponse) -> Table:
    """Return a table with a row for each node."""
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "kind", "state", "cores given", "actions", "environments", "memory GiB"):
        table.add_column(heading, justify="left" if heading in ("node", "kind", "state") else "right")
    for node in nodes.items:
        has_cores = "cpu_milli" in node.capacity
        cores = f"{node.allocated_cpu_milli / 1000:g}/{node.capacity['cpu_milli'] / 1000:g}" if has_cores else "-"
        memory = f"{node.capacity['memory_mib'] / 1024:.1f}" if "memory_mib" in node.capacity else "-"
        table.add_row(node.name, node.kind, node_state(node), cores, str(node.running), str(node.environments), memory)
    return table


def node_state(node: NodeInfo) -> str:
    """Return one word for the scheduling state of a node."""
    if not node.alive:
        return "silent"
    if node.drained:
        return "drained"
    if node.drain_deadline_at is not None:
        return "draining"
    return "cordoned" if node.cordoned else "open"


def _print_node(node: NodeInfo, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        _print_json(node)
    else:
        stdout.print(node_table(NodeListResponse(items=[node])))


def _print_json(value: NodeInfo | NodeListResponse) -> None:
    sys.stdout.write(value.model_dump_json(indent=1, exclude_none=True) + "\n")

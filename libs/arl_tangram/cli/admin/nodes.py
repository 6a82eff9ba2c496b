"""`nodes`: list, cordon, uncordon, drain and remove nodes."""

import time
from typing import Annotated

import typer

from arl_tangram.cli.admin import join_tokens
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_node
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_FAILED, FormatOption, OutputFormat, print_json, print_model, print_rows, stderr
from arl_tangram.client import Tangram
from arl_wire.admin.nodes import NodeInfo

__all__ = ["NODE_HEADINGS", "node_row", "node_state", "register"]

NODE_HEADINGS = ("node", "kind", "pool", "state", "cores used", "actions", "environments", "memory GiB")

DRAIN_POLL_S = 0.5
DRAIN_GRACE_S = 30.0
"""Seconds after the deadline in which the node may still report that its remaining actions have ended."""

NodeName = Annotated[str, typer.Argument(help="Name of a node.", autocompletion=complete_node)]
group = typer.Typer(no_args_is_help=True, help="List, cordon, drain and remove nodes.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group.add_typer(join_tokens.group, name="join-token")
    app.add_typer(group, name="nodes", rich_help_panel="Operate")


@group.command("list")
def list_nodes(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the nodes and their allocations."""
    with connected_client(directory) as tangram:
        nodes = tangram.nodes()
    if output is OutputFormat.JSON:
        print_model(nodes)
    else:
        has_cells = any(node.cell is not None for node in nodes.items)
        headings = (*NODE_HEADINGS, "cell") if has_cells else NODE_HEADINGS
        rows = [(*node_row(node), str(node.cell))[: len(headings)] for node in nodes.items]
        print_rows(headings, rows, empty="No node has registered. Start one: tangram up")


@group.command()
def cordon(directory: DirOption, name: NodeName, output: FormatOption = OutputFormat.TEXT) -> None:
    """Stop scheduling on a node. Its environments continue."""
    with connected_client(directory) as tangram:
        _print_node(tangram.change_node(name, cordoned=True), output)


@group.command()
def uncordon(directory: DirOption, name: NodeName, output: FormatOption = OutputFormat.TEXT) -> None:
    """Allow scheduling on a node again. This also stops a drain."""
    with connected_client(directory) as tangram:
        _print_node(tangram.change_node(name, cordoned=False), output)


@group.command()
def drain(
    directory: DirOption,
    name: NodeName,
    deadline_s: Annotated[
        float, typer.Option("--deadline", min=0, help="Seconds until remaining actions and environments are ended.")
    ] = 600.0,
    wait: Annotated[bool, typer.Option(help="Wait until the node is empty.")] = True,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Drain a node: stop scheduling, and end what remains at the deadline. Exit code 1 if it is not empty.

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
def remove(directory: DirOption, name: NodeName, output: FormatOption = OutputFormat.TEXT) -> None:
    """Remove a lost node, and end its credentials if it joined.

    Refused while the node is alive or has actions or environments.
    """
    with connected_client(directory) as tangram:
        tangram.remove_node(name)
    if output is OutputFormat.JSON:
        print_json({"removed": name})


def _wait_until_drained(tangram: Tangram, node: NodeInfo, *, within_s: float) -> NodeInfo:
    """Return the node when it is empty or when the time is over."""
    ends_at = time.monotonic() + within_s
    with stderr.status(f"draining {node.name}") as status:
        while not node.drained and time.monotonic() < ends_at:
            status.update(f"draining {node.name}: {node.running} actions, {node.environments} environments left")
            time.sleep(DRAIN_POLL_S)
            node = next(each for each in tangram.nodes().items if each.name == node.name)
    return node


def node_row(node: NodeInfo) -> tuple[str, ...]:
    """Return the cells of a node under `NODE_HEADINGS`."""
    has_cores = "cpu_milli" in node.capacity
    cores = f"{node.allocated_cpu_milli / 1000:g}/{node.capacity['cpu_milli'] / 1000:g}" if has_cores else "-"
    memory = f"{node.capacity['memory_mib'] / 1024:.1f}" if "memory_mib" in node.capacity else "-"
    ends = f", ends {node.ends_at.astimezone():%Y-%m-%d %H:%M %Z}" if node.ends_at is not None and node.alive else ""
    state = f"{node_state(node)}{ends}"
    return (node.name, node.kind, node.pool, state, cores, str(node.running), str(node.environments), memory)


def node_state(node: NodeInfo) -> str:
    """Return the scheduling state of a node in one word."""
    if not node.alive:
        return "lost"
    if node.drained:
        return "drained"
    if node.drain_deadline_at is not None:
        return "draining"
    return "cordoned" if node.cordoned else "ready"


def _print_node(node: NodeInfo, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_model(node)
    else:
        print_rows(NODE_HEADINGS, [node_row(node)], empty="")

"""`top`: running and queued actions, refreshed periodically."""

import time
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from arl_tangram.cli.admin.nodes import NODE_HEADINGS, node_row
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import stdout
from arl_tangram.client import Tangram
from arl_wire.actions.explanations import StragglerInfo
from arl_wire.admin.nodes import NodeListResponse
from arl_wire.admin.queues import Queue
from arl_wire.errors import Unavailable

__all__ = ["register", "stragglers_table"]

MAX_QUEUES_SHOWN = 30
MAX_STRAGGLERS_SHOWN = 10


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(rich_help_panel="Inspect")(top)


def top(
    directory: DirOption,
    every_s: Annotated[float, typer.Option("--every", min=0.2, help="Seconds between updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and return.")] = False,
) -> None:
    """Show node usage, queued actions and stragglers, live. Ctrl-C ends it. Needs a key with `admin:read`."""
    with connected_client(directory) as tangram:
        if once or not stdout.is_terminal:
            stdout.print(_render(tangram))
            return
        with Live(_render(tangram), console=stdout, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every_s)
                live.update(_render(tangram), refresh=True)


def _render(tangram: Tangram) -> RenderableType:
    nodes, queues = tangram.nodes(), tangram.queues()
    capacity = sum(node.capacity.get("cpu_milli", 0) for node in nodes.items if node.alive)
    allocated = sum(node.allocated_cpu_milli for node in nodes.items if node.alive)
    waiting, running = sum(queue.queued for queue in queues), sum(queue.running for queue in queues)
    summary = f"{allocated / 1000:g} of {capacity / 1000:g} cores used by {running} actions · {waiting} actions queued"
    shown: list[RenderableType] = [Text(summary), Text(), _node_table(nodes), Text(), _queue_table(queues)]
    with suppress(Unavailable):
        if stragglers := tangram.stragglers():
            shown += [Text(), stragglers_table(stragglers)]
    return Group(*shown)


def _node_table(nodes: NodeListResponse) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in NODE_HEADINGS:
        table.add_column(heading, justify="left" if heading in ("node", "kind", "state") else "right")
    for node in nodes.items:
        table.add_row(*node_row(node))
    return table


def stragglers_table(stragglers: list[StragglerInfo]) -> Table:
    """Return a table of the stragglers."""
    table = Table(box=None, pad_edge=False)
    for heading in ("straggler", "task", "node", "running for", "limit"):
        table.add_column(heading, justify="right" if heading in ("running for", "limit") else "left")
    for each in stragglers[:MAX_STRAGGLERS_SHOWN]:
        times = (f"{each.elapsed_s:.0f} s", f"{each.limit_s:.1f} s")
        table.add_row(str(each.id), each.task, each.node or "-", *times)
    if len(stragglers) > MAX_STRAGGLERS_SHOWN:
        table.add_row(f"… {len(stragglers) - MAX_STRAGGLERS_SHOWN} more", "", "", "", "")
    return table


def _queue_table(queues: list[Queue]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("task", "queued", "running", "state"):
        table.add_column(heading, justify="right" if heading in ("queued", "running") else "left")
    busiest = sorted(queues, key=lambda queue: (-queue.queued - queue.running, queue.task))
    for queue in busiest[:MAX_QUEUES_SHOWN]:
        table.add_row(queue.task, str(queue.queued), str(queue.running), "paused" if queue.paused else "active")
    if len(busiest) > MAX_QUEUES_SHOWN:
        table.add_row(f"… {len(busiest) - MAX_QUEUES_SHOWN} more", "", "", "")
    return table

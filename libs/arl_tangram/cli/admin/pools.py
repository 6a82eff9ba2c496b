"""`pools`: node pools, the decisions of their controllers, and the backlog by kind of node."""

from typing import Annotated

import typer

from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_pool
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, print_json, print_model, print_rows
from arl_wire.admin.capacity import NodeKindBacklog
from arl_wire.admin.pools import PoolInfo

__all__ = ["register"]

HEADINGS = ("pool", "kind", "engine", "min", "max", "wanted", "present", "ready", "draining", "controller", "decision")
BACKLOG_HEADINGS = ("kind", "waiting", "cores", "core-seconds", "unknown cores", "oldest s", "running", "busy cores")

group = typer.Typer(no_args_is_help=True, help="Show node pools, their scaling decisions and the backlog.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="pools", rich_help_panel="Operate")


@group.command("list")
def list_pools(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the node pools with the last decision of each controller and its reason."""
    with connected_client(directory) as tangram:
        pools = tangram.pools()
    if output is OutputFormat.JSON:
        print_model(pools)
    else:
        empty = "No controller has published a pool. Start one: tangram engine local --pool cpu:kind=cpu,min=1,max=4"
        print_rows(HEADINGS, map(_row, pools.items), empty=empty)


@group.command()
def backlog(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """Show the actions and core-seconds that wait for nodes of each kind."""
    with connected_client(directory) as tangram:
        found = tangram.backlog()
    if output is OutputFormat.JSON:
        print_model(found)
    else:
        print_rows(BACKLOG_HEADINGS, map(_backlog_row, found.items), empty="")


@group.command()
def remove(
    directory: DirOption,
    name: Annotated[str, typer.Argument(help="Name of a pool.", autocompletion=complete_pool)],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Remove a pool from the list. Refused while a controller owns it. Its nodes are not changed."""
    with connected_client(directory) as tangram:
        tangram.remove_pool(name)
    if output is OutputFormat.JSON:
        print_json({"removed": name})


def _row(pool: PoolInfo) -> tuple[str, ...]:
    numbers = (pool.min_nodes, pool.max_nodes, pool.wanted, pool.present, pool.ready, len(pool.draining))
    decision = pool.decision.replace("_", " ")
    return (
        pool.name,
        pool.kind,
        pool.engine,
        *map(str, numbers),
        "active" if pool.controlled else "absent",
        f"{decision}: {pool.reason}" if pool.reason else decision,
    )


def _backlog_row(load: NodeKindBacklog) -> tuple[str, ...]:
    return (
        load.kind,
        str(load.waiting),
        f"{load.waiting_cores:g}",
        f"{load.waiting_core_s:.1f}",
        f"{load.unknown_cores:g}",
        f"{load.oldest_s:.1f}" if load.oldest_s is not None else "-",
        str(load.running),
        f"{load.busy_cores:g}",
    )

"""`capacity`: the queueing delay under a hypothetical capacity or workload."""

from typing import Annotated

import typer
from rich.table import Table

from arl_core.domain.states import UnstartedReason
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.completion import complete_node
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, print_model, stdout
from arl_tangram.resources.queues import CapacityOptions
from arl_wire.admin.capacity import CapacityForecast, CapacityPlan

__all__ = ["capacity_table", "register"]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(rich_help_panel="Operate")(capacity)


def capacity(
    directory: DirOption,
    cores: Annotated[str | None, typer.Option(help="Total cores of all nodes, or a percentage such as 75%.")] = None,
    add_nodes: Annotated[int, typer.Option(help="Number of additional nodes like the largest.")] = 0,
    exclude_node: Annotated[
        list[str] | None, typer.Option(help="Node that takes no new actions; repeatable.", autocompletion=complete_node)
    ] = None,
    actions: Annotated[int, typer.Option(help="Number of additional actions that arrive now.")] = 0,
    cpu: Annotated[float, typer.Option(help="Cores of each additional action.")] = 1.0,
    cpu_max: Annotated[float | None, typer.Option(help="Maximum cores of each additional action.")] = None,
    memory_mib: Annotated[int, typer.Option(help="Memory of each additional action in MiB.")] = 512,
    seconds: Annotated[float, typer.Option(help="Run time of each additional action on --cpu cores.")] = 1.0,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Estimate the queueing delay under a hypothetical capacity or workload. Needs a key with `admin:read`."""
    options: CapacityOptions = {
        "add_nodes": add_nodes,
        "exclude_node": exclude_node or [],
        "actions": actions,
        "cpu": cpu,
        "memory_mib": memory_mib,
        "seconds": seconds,
    }
    if cores is not None:
        options["cores"] = cores
    if cpu_max is not None:
        options["cpu_max"] = cpu_max
    with connected_client(directory) as tangram:
        found = tangram.plan_capacity(**options)
    if output is OutputFormat.JSON:
        print_model(found)
    else:
        stdout.print(capacity_table(found))


def capacity_table(plan: CapacityPlan) -> Table:
    """Return a table with a row for each figure and a column for each forecast."""
    forecasts = [plan.current] if plan.hypothetical is None else [plan.current, plan.hypothetical]
    table = Table(box=None, pad_edge=False)
    for heading in ("", "current", "hypothetical")[: 1 + len(forecasts)]:
        table.add_column(heading, justify="right" if heading else "left")
    for name, figures in zip(_ROW_NAMES, zip(*map(_format_forecast, forecasts), strict=True), strict=True):
        table.add_row(name, *figures)
    return table


_ROW_NAMES = (
    "nodes",
    "cores",
    "queued",
    "simulated",
    "start now",
    "start eventually",
    "mean wait",
    "p90 wait",
    "queue empty after",
    "do not start",
)


def _format_forecast(forecast: CapacityForecast) -> tuple[str, ...]:
    is_cut = any(each.reason is UnstartedReason.TIME_LIMIT for each in forecast.unstarted)
    least = "at least " if is_cut else ""
    return (
        str(forecast.nodes),
        f"{forecast.cpu_milli / 1000:g}",
        str(forecast.queued),
        str(forecast.simulated),
        str(forecast.starts_now),
        f"{least}{forecast.started}",
        _format_seconds(forecast.mean_wait_s),
        _format_seconds(forecast.p90_wait_s),
        _format_seconds(forecast.drain_s),
        "\n".join(f"{each.actions} {each.reason}" for each in forecast.unstarted) or "-",
    )


def _format_seconds(seconds: float | None) -> str:
    return f"{seconds:.1f} s" if seconds is not None else "-"

"""`capacity`: the queueing delay under a hypothetical capacity or workload."""

import sys
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.table import Table

from arl_tangram.cli.actions import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_USAGE, FormatOption, OutputFormat, fail, stdout
from arl_wire.admin.capacity import CapacityForecast, CapacityPlan, CapacityPlanQuery

__all__ = ["capacity_table", "register"]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(capacity)


def capacity(
    directory: DirOption,
    cores: Annotated[str | None, typer.Option(help="`75%` of the cores there are, or so many.")] = None,
    add_nodes: Annotated[int, typer.Option(help="More nodes like the largest.")] = 0,
    exclude_node: Annotated[
        list[str] | None, typer.Option(help="A node that takes no new actions. May be repeated.")
    ] = None,
    actions: Annotated[int, typer.Option(help="So many more actions come now.")] = 0,
    cpu: Annotated[float, typer.Option(help="Cores that each of them needs.")] = 1.0,
    cpu_max: Annotated[float | None, typer.Option(help="Cores that each of them can use.")] = None,
    memory_mib: Annotated[int, typer.Option(help="Memory of each.")] = 512,
    seconds: Annotated[float, typer.Option(help="How long each takes on --cpu cores.")] = 1.0,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Estimate the queueing delay under a hypothetical capacity or workload. Needs a key with `admin:read`."""
    try:
        question = CapacityPlanQuery(
            cores=cores,
            add_nodes=add_nodes,
            exclude_node=exclude_node or [],
            actions=actions,
            cpu=cpu,
            cpu_max=cpu_max,
            memory_mib=memory_mib,
            seconds=seconds,
        )
    except ValidationError as error:
        said = (f"{_option_name(each['loc'])}{each['msg'].removeprefix('Value error, ')}" for each in error.errors())
        fail("; ".join(said), EXIT_USAGE)
    with connected_client(directory) as tangram:
        found = tangram.plan_capacity(question)
    if output is OutputFormat.JSON:
        sys.stdout.write(found.model_dump_json(indent=1, exclude_none=True) + "\n")
    else:
        stdout.print(capacity_table(found))


def capacity_table(plan: CapacityPlan) -> Table:
    """Return a table with a row for each figure and a column for each forecast."""
    forecasts = [plan.current] if plan.hypothetical is None else [plan.current, plan.hypothetical]
    table = Table(box=None, pad_edge=False)
    for heading in ("", "as it is", "changed")[: 1 + len(forecasts)]:
        table.add_column(heading, justify="right" if heading else "left")
    for name, figures in zip(_ROW_NAMES, zip(*map(_format_forecast, forecasts), strict=True), strict=True):
        table.add_row(name, *figures)
    return table


_ROW_NAMES = (
    "nodes",
    "cores",
    "waiting",
    "simulated",
    "start now",
    "start at all",
    "mean wait",
    "p90 wait",
    "drained in",
)


def _format_forecast(forecast: CapacityForecast) -> tuple[str, ...]:
    least = "" if forecast.complete else "at least "
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
    )


def _format_seconds(seconds: float | None) -> str:
    return f"{seconds:.1f} s" if seconds is not None else "-"


def _option_name(location: tuple[int | str, ...]) -> str:
    return f"--{str(location[0]).replace('_', '-')}: " if location else ""

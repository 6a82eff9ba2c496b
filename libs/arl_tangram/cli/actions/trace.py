"""`trace`: the waterfall of one action."""

from typing import Annotated
from uuid import UUID

import typer
from rich.table import Table
from rich.text import Text

from arl_tangram.cli.client import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, print_model, stdout
from arl_wire.actions.traces import ActionTrace, TraceSpan

__all__ = ["register"]

BAR_COLUMNS = 40
"""Columns of the longest bar on a wide terminal."""
MIN_BAR_COLUMNS = 10
OTHER_COLUMNS = 60
"""Columns of the names, times and attributes next to a bar."""
COLOURS = {
    "queue wait": "yellow",
    "grant": "cyan",
    "process action": "green",
    "device wait": "yellow",
    "wake engine": "magenta",
    "batch": "bright_green",
    "restore weights": "magenta",
    "completion": "bright_green",
    "endpoint wait": "yellow",
    "request": "bright_green",
    "settle": "cyan",
}
SHOWN_ATTRIBUTES = ("tangram.node", "tangram.service", "tangram.engine")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(rich_help_panel="Inspect")(trace)


def trace(
    directory: DirOption,
    id: Annotated[UUID, typer.Argument(help="Id of an action.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Show the timeline of an action: queueing delay, attempts and run."""
    with connected_client(directory) as tangram:
        found = tangram.trace(id)
    if output is OutputFormat.JSON:
        print_model(found)
    else:
        stdout.print(_waterfall(found))


def _waterfall(trace: ActionTrace) -> Table:
    title = f"{trace.id} {trace.outcome or trace.state}  trace {trace.trace_id}"
    table = Table("span", "attempt", "begins ms", "takes ms", "", "", title=title, title_justify="left", box=None)
    depths = _depths(trace)
    whole_ms = max((span.offset_ms + (span.duration_ms or 0.0) for span in trace.spans), default=0.0)
    for span in trace.spans:
        takes = f"{span.duration_ms:.3f}" if span.duration_ms is not None else "…"
        attempt = str(span.attempt) if span.attempt is not None else ""
        about = " ".join(filter(None, (*(span.attributes.get(name) for name in SHOWN_ATTRIBUTES), span.error)))
        name = "  " * depths[span.span_id] + span.name
        table.add_row(name, attempt, f"{span.offset_ms:.3f}", takes, _bar(span, whole_ms), Text(about))
    return table


def _depths(trace: ActionTrace) -> dict[str, int]:
    """Return the depth of each span below the root, which counts as the first level."""
    depths: dict[str, int] = {}
    for span in trace.spans:
        depths[span.span_id] = depths.get(span.parent_span_id or "", -1) + 1
    return {id: max(0, depth - 1) for id, depth in depths.items()}


def _bar(span: TraceSpan, whole_ms: float) -> Text:
    """Return the bar of a span. An open span reaches the end; a very short one is a thin line."""
    columns = max(MIN_BAR_COLUMNS, min(BAR_COLUMNS, stdout.width - OTHER_COLUMNS))
    scale = columns / whole_ms if whole_ms > 0 else 0.0
    begin = min(columns - 1, int(span.offset_ms * scale))
    long = span.duration_ms * scale if span.duration_ms is not None else float(columns - begin)
    bar = "█" * max(1, min(columns - begin, round(long))) if long >= 0.5 else "▏"
    return Text(" " * begin + bar, style="red" if span.error else COLOURS.get(span.name, ""))

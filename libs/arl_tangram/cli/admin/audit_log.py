"""`audit-log`: changes with their time and API key."""

import json
from typing import Annotated

import typer

from arl_tangram.cli.client import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, print_model, print_rows
from arl_wire.admin.audit_log import AuditLogEntry, AuditLogResponse

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("audit-log", rich_help_panel="Operate")(audit_log)


def audit_log(
    directory: DirOption,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries.")] = 50,
    verb: Annotated[str | None, typer.Option(help="Only this operation, such as queue.change.")] = None,
    project: Annotated[str | None, typer.Option(help="Only changes of this project.")] = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Show changes by administrators, newest first. Needs a key with `admin:read`."""
    with connected_client(directory) as tangram:
        entries = tangram.audit_log(limit=limit, verb=verb, project=project)
    if output is OutputFormat.JSON:
        print_model(AuditLogResponse(items=entries))
        return
    headings = ("id", "time (UTC)", "project", "key", "verb", "target", "detail")
    print_rows(headings, map(_row, entries), empty="No entry matches.")


def _row(entry: AuditLogEntry) -> tuple[str, ...]:
    return (
        str(entry.id),
        f"{entry.at:%Y-%m-%d %H:%M:%S}",
        entry.project or "-",
        str(entry.api_key_id) if entry.api_key_id is not None else "-",
        entry.verb,
        entry.target,
        json.dumps(entry.detail, ensure_ascii=False),
    )

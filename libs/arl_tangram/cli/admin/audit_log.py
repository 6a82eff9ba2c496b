"""`audit-log`: changes with their time and API key."""

import json
import sys
from typing import Annotated

import typer

from arl_tangram.cli.actions import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import FormatOption, OutputFormat, stdout
from arl_wire.admin.audit_log import AuditLogEntry, AuditLogResponse

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("audit-log")(audit_log)


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
        sys.stdout.write(AuditLogResponse(items=entries).model_dump_json(indent=1, exclude_none=True) + "\n")
        return
    for entry in entries:
        stdout.print(_format_entry(entry), markup=False, soft_wrap=True)


def _format_entry(entry: AuditLogEntry) -> str:
    key = f"key {entry.api_key_id}" if entry.api_key_id is not None else "no key"
    columns = (
        str(entry.id),
        f"{entry.at:%Y-%m-%d %H:%M:%S}",
        entry.project or "-",
        key,
        entry.verb,
        entry.target,
        json.dumps(entry.detail, ensure_ascii=False),
    )
    return "  ".join(columns)

"""`keys`: the API keys of a project."""

import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from arl_tangram.cli.admin.key_files import read_or_draw_key, remove_unfinished_key, save_unfinished_key
from arl_tangram.cli.client import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_USAGE, FormatOption, OutputFormat, fail, print_model, print_rows, stderr
from arl_tangram.client import Tangram
from arl_wire.admin.keys import ApiKey, KeyListResponse
from arl_wire.errors import Conflict, Forbidden, Unavailable

__all__ = ["register"]

DAY_S = 86400
HEADINGS = ("id", "key", "project", "scopes", "state", "expires")

group = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="keys", rich_help_panel="Operate")


@group.command()
def create(
    directory: DirOption,
    project: Annotated[
        str | None, typer.Option(help="Project of the key; a new name creates a project.", show_default="own project")
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="Permission: actions:read, actions:write, actions:*, admin:read, admin:write or admin:*; repeatable.",
            show_default="actions:write; all for the first key of a new project",
        ),
    ] = None,
    expires_days: Annotated[
        int | None, typer.Option(min=1, max=3650, help="Days until the key expires.", show_default="never")
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the new key; it is created if it does not exist. A repeated command creates the same key.",
            show_default="a new key",
        ),
    ] = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Create a key and print it once. A new project requires a key with `admin:*` of the project `default`."""
    key = read_or_draw_key(key_file)
    expires_in_s = expires_days * DAY_S if expires_days is not None else None
    create_with = partial(Tangram.create_key, project=project, scopes=scope or None, expires_in_s=expires_in_s)
    with connected_client(directory) as tangram:
        try:
            created = create_with(tangram, key=key)
        except Forbidden as error:
            if key_file is not None or [each.field for each in error.errors] != ["key"]:
                raise
            created = create_with(tangram)  # the caller may create keys, but not choose them
        except (Unavailable, Conflict) as error:
            if key_file is None and not error.errors:
                path = save_unfinished_key(directory, key)
                error.detail += f". To create the same key, add `--key-file {path}` to the command"
                error.args = (error.detail,)
            raise
    if key_file is not None:
        remove_unfinished_key(directory, key_file)
    if output is OutputFormat.JSON:
        print_model(created)
    else:
        sys.stdout.write(created.key + "\n")
        stderr.print(f"Key {created.id} of project {created.project}. It is not shown again.", markup=False)


@group.command("list")
def list_keys(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the keys of this project, newest first."""
    with connected_client(directory) as tangram:
        keys = tangram.keys()
    if output is OutputFormat.JSON:
        print_model(KeyListResponse(items=keys))
        return
    print_rows(HEADINGS, map(_row, keys), empty="No key exists. Create one: tangram keys create")


@group.command()
def revoke(
    directory: DirOption,
    key: Annotated[str, typer.Argument(metavar="PREFIX_OR_ID", help="Prefix or id of a key.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Revoke a key permanently."""
    with connected_client(directory) as tangram:
        revoked = tangram.revoke_key(
            int(key) if key.isascii() and key.isdigit() else _resolve_key_id(key, tangram.keys())
        )
    if output is OutputFormat.JSON:
        print_model(revoked)
    else:
        print_rows(HEADINGS, [_row(revoked)], empty="")


def _resolve_key_id(prefix: str, keys: list[ApiKey]) -> int:
    """Return the id of the active key with this prefix, or else of the revoked one."""
    found = [key for key in keys if key.prefix == prefix]
    chosen = [key for key in found if key.revoked_at is None] or found
    if not chosen:
        fail(f"No key of this project starts with {prefix}. List the keys: tangram keys list", EXIT_USAGE)
    if len(chosen) > 1:
        fail(f"Several keys start with {prefix}. Use an id: {', '.join(str(key.id) for key in chosen)}", EXIT_USAGE)
    return chosen[0].id


def _row(key: ApiKey) -> tuple[str, ...]:
    state = "active"
    if key.revoked_at is not None:
        state = f"revoked {key.revoked_at:%Y-%m-%d %H:%M} UTC"
    elif key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        state = "expired"
    expires = f"{key.expires_at:%Y-%m-%d %H:%M} UTC" if key.expires_at is not None else "never"
    return (str(key.id), f"{key.prefix}…", key.project, ",".join(key.scopes), state, expires)

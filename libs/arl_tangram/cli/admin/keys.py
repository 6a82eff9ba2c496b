"""`keys`: the API keys of a project."""

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer
from pydantic import BaseModel, ValidationError

from arl_tangram.cli.actions import connected_client
from arl_tangram.cli.local_state import DirOption
from arl_tangram.cli.output import EXIT_USAGE, FormatOption, OutputFormat, fail, stderr, stdout
from arl_wire.admin.keys import ApiKey, CreateKeyRequest, KeyListResponse

__all__ = ["register"]

DAY_S = 86400

group = typer.Typer(no_args_is_help=True, help="API keys of a project.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="keys")


@group.command()
def create(
    directory: DirOption,
    project: Annotated[str | None, typer.Option(help="A new project; without it the key is for our own.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="May be repeated: actions:read, actions:write (default), admin:*, … A new project's first: all."
        ),
    ] = None,
    expires_days: Annotated[int | None, typer.Option(min=1, max=3650, help="Without it: never.")] = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Create a key and show it this once. A new project requires a key with `admin:*` of the project `default`."""
    wanted = {
        "project": project,
        **({"scopes": scope} if scope else {}),
        "expires_in_s": expires_days * DAY_S if expires_days is not None else None,
    }
    try:
        request = CreateKeyRequest.model_validate(wanted)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        fail(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}", EXIT_USAGE)
    with connected_client(directory) as tangram:
        created = tangram.create_key(request)
    if output is OutputFormat.JSON:
        _print_json(created)
    else:
        sys.stdout.write(created.key + "\n")
        stderr.print(f"{_format_key(created)}; it is not shown again", markup=False)


@group.command("list")
def list_keys(directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """List the keys of this project, newest first."""
    with connected_client(directory) as tangram:
        keys = tangram.keys()
    if output is OutputFormat.JSON:
        _print_json(KeyListResponse(items=keys))
        return
    for key in keys:
        stdout.print(_format_key(key), markup=False)


@group.command()
def revoke(
    directory: DirOption,
    key: Annotated[str, typer.Argument(metavar="PREFIX_OR_ID", help="As `keys list` shows it.")],
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Revoke a key permanently."""
    with connected_client(directory) as tangram:
        revoked = tangram.revoke_key(
            int(key) if key.isascii() and key.isdigit() else _resolve_key_id(key, tangram.keys())
        )
    if output is OutputFormat.JSON:
        _print_json(revoked)
    else:
        stdout.print(_format_key(revoked), markup=False)


def _resolve_key_id(prefix: str, keys: list[ApiKey]) -> int:
    """Return the id of the active key with this prefix, or else of the revoked one."""
    found = [key for key in keys if key.prefix == prefix]
    chosen = [key for key in found if key.revoked_at is None] or found
    if not chosen:
        fail(f"no key of this project begins with {prefix}; `tangram keys list` shows them", EXIT_USAGE)
    if len(chosen) > 1:
        fail(f"several keys begin with {prefix}; use an id: {', '.join(str(key.id) for key in chosen)}", EXIT_USAGE)
    return chosen[0].id


def _format_key(key: ApiKey) -> str:
    ends = f"  expires {key.expires_at:%Y-%m-%d %H:%M} UTC" if key.expires_at is not None else ""
    if key.revoked_at is not None:
        ends = f"  revoked {key.revoked_at:%Y-%m-%d %H:%M} UTC"
    elif key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        ends = "  expired"
    return f"{key.id:>4}  {key.prefix}…  {key.project}  {','.join(key.scopes)}{ends}"


def _print_json(value: BaseModel) -> None:
    sys.stdout.write(value.model_dump_json(indent=1, exclude_none=True) + "\n")

"""The page `reference/cli`: every command of `tangram`, from the Typer application with its plugged-in commands."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import typer
from markdown_text import anchor, cell, code, table

from arl_tangram.cli import application as cli

__all__ = ["commands", "render"]

INTRO = """\
# Command line

`tangram COMMAND -h` shows the same text. `tangram --install-completion` completes commands, options and names in your
shell.

| Exit code | Meaning |
|---|---|
| 0 | The command succeeded. |
| 1 | The command failed. |
| 2 | The command line is wrong. |
| 3 | The system is not running. |
| 5 | No sandbox works on this machine. |
| 130 | The command was interrupted. Submitted actions continue. |

Commands that run a program return its exit code, see [`tangram submit`](#tangram-submit).
"""
SHARED_OPTIONS = {
    "--dir": "State directory. One system per directory. "
    "The default is `$TANGRAM_DIR`, else `$XDG_STATE_HOME/tangram`, else `~/.local/state/tangram`.",
    "--output": "Output format, `text` or `json`; the short form is `-o`.",
}
"""Options that nearly every command has. Each command names them without their description."""
SERVER_NOTE = "This command needs the distribution `arl-tangram-server`.\n"


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Yield the full name, the command and its context, for every command that is not hidden."""
    root = typer.main.get_command(cli.app)
    yield from _walk(root, "tangram", None)


def render() -> str:
    shared = table(
        ["Option of most commands", "Description"], [[code(name), text] for name, text in SHARED_OPTIONS.items()]
    )
    return "\n".join([INTRO, shared, *(_section(*each) for each in commands())])


def _walk(command: Any, name: str, parent: Any) -> Iterator[tuple[str, Any, Any]]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield name, command, context
    for sub in command.list_commands(context) if hasattr(command, "list_commands") else ():
        found = command.get_command(context, sub)
        if found is not None and not found.hidden:
            yield from _walk(found, f"{name} {sub}", context)


def _section(name: str, command: Any, context: Any) -> str:
    plugins = entry_points(group=cli.PLUGINS).names
    depth = len(name.split())
    parts = [f"{'#' * max(2, depth)} {name} {anchor(name.replace(' ', '-'))}\n"]
    parts.append(f"{_help(command)}\n")
    if depth == 2 and name.split()[1] in plugins:
        parts.append(SERVER_NOTE)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts.append(f"```text\n{usage}\n```\n")
    if hasattr(command, "list_commands"):
        parts.append(_subcommands(name, command, context))
    for kind, title in (("argument", "Argument"), ("option", "Option")):
        own = [each for each in command.params if each.param_type_name == kind and not _shared_name(each)]
        if rows := [_parameter(each, context) for each in own if not each.hidden]:
            parts.append(table([title, "Description"], rows))
    if shared := list(filter(None, map(_shared_name, command.params))):
        parts.append(f"Also {' and '.join(map(code, shared))}.\n")
    return "\n".join(parts)


def _shared_name(parameter: Any) -> str | None:
    """Return the long name of an option that nearly every command has, else None."""
    return next((name for name in parameter.opts if name in SHARED_OPTIONS), None)


def _help(command: Any) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))


def _subcommands(name: str, command: Any, context: Any) -> str:
    """Return a table of the commands for each panel of the help page, or one table if there are no panels."""
    panels: dict[str, list[list[str]]] = {}
    for sub in command.list_commands(context):
        found = command.get_command(context, sub)
        if found is not None and not found.hidden:
            link = f"[`{sub}`](#{f'{name} {sub}'.replace(' ', '-')})"
            panel = found.rich_help_panel if isinstance(found.rich_help_panel, str) else ""
            panels.setdefault(panel, []).append([link, cell(_help(found).split("\n\n")[0])])
    header = ["Command", "Description"]
    return "\n".join((f"**{panel}**\n\n" if panel else "") + table(header, rows) for panel, rows in panels.items())


def _parameter(parameter: Any, context: Any) -> list[str]:
    record = parameter.get_help_record(context)
    names, text = record if record is not None else (parameter.display_name_raw, parameter.help or "")
    return [code(names), cell(text)]

"""The Typer application. Its commands are in the modules of this package."""

import os
import sys
from importlib.metadata import entry_points, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from arl_tangram.cli import endpoints, mcp, reward_services, steps
from arl_tangram.cli.actions import commands as action_commands
from arl_tangram.cli.actions import explain, submit, trace
from arl_tangram.cli.admin import audit_log, capacity, images, keys, nodes, pools, projects, queues, top
from arl_tangram.cli.environments import commands as environment_commands
from arl_tangram.cli.environments import ports, snapshots, templates
from arl_tangram.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, fail, print_error, wants_json
from arl_tangram.cli.system import consistency_check, doctor, lifecycle, node, process_logs, router
from arl_tangram.transport.connection import CELL_VARIABLE
from arl_wire.cells import MAX_CELL

__all__ = ["app", "main"]

PLUGINS = "tangram.commands"
"""The entry point group of commands that other distributions add."""
SERVER_COMMANDS = ("engine", "quickstart", "demo", "record", "replay", "simulate", "bench")
"""Commands that the distribution arl-tangram-server adds, in the order of the help page."""


class _PluginGroup(TyperGroup):
    """A command group that loads the commands of other distributions on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        plugins = entry_points(group=PLUGINS).names
        ordered = [name for name in SERVER_COMMANDS if name in plugins]
        return [*super().list_commands(ctx), *ordered, *sorted(plugins - set(ordered))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for entry_point in entry_points(group=PLUGINS, name=cmd_name):
            plugin = typer.Typer()
            plugin.callback()(lambda: None)  # a group, even if there is one command only
            entry_point.load()(plugin)
            command = typer.main.get_group(plugin).commands[cmd_name]
            command.rich_help_panel = command.rich_help_panel or "Measure"  # type: ignore[attr-defined]
            return command
        if cmd_name in SERVER_COMMANDS:
            package = "arl-tangram-server" if cmd_name == "engine" else "arl-tangram-server[bench]"
            fail(f"`tangram {cmd_name}` is not installed: pip install '{package}'", EXIT_USAGE)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    name="tangram",
    cls=_PluginGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMAND_MODULES = (
    *(lifecycle, node, doctor),
    *(submit, action_commands, environment_commands, ports, snapshots, reward_services, endpoints, mcp),
    *(top, explain, trace, steps, process_logs),
    *(nodes, pools, images, queues, projects, keys, capacity, audit_log, templates, consistency_check, router),
)
"""Modules in the order of the help page."""
for module in COMMAND_MODULES:
    module.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("arl-tangram"))
        raise typer.Exit


@app.callback(help="Action-level resource management for agentic reinforcement learning.")
def _root_options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    cell: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_CELL,
            envvar=CELL_VARIABLE,
            help="Cell to which a router of several cells forwards the requests of the command.",
            show_default="the router chooses",
        ),
    ] = None,
) -> None:
    if cell is not None:
        os.environ[CELL_VARIABLE] = str(cell)  # all clients of this process use it


def main() -> None:
    """Run the console script.

    With `-o json`, errors are JSON too. An unexpected error is one line; TANGRAM_DEBUG=1 shows its traceback.
    """
    as_json = wants_json(sys.argv[1:])
    try:
        code = app(standalone_mode=not as_json)
    except typer.TyperException as error:
        print_error({"detail": error.format_message()})
        code = error.exit_code
    except typer.Abort:
        code = EXIT_INTERRUPTED
    except Exception as error:
        if os.environ.get("TANGRAM_DEBUG"):
            raise
        detail = _describe(error)
        print_error({"detail": detail})
        code = EXIT_FAILED
    raise SystemExit(code if isinstance(code, int) else 0)


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"

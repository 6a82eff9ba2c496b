"""The command line: `tangram up`, `down`, `status`, `logs`, `doctor`, and what other modules here register.

Exit codes: 0 done, 1 failed, 2 used wrongly, 3 not running, 5 no sandbox works on this machine.
"""

import os
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from arl_tangram.cli import (
    actions,
    audit,
    demo,
    doctor,
    endpoints,
    environments,
    explain,
    keys,
    lifecycle,
    logs,
    nodes,
    plan,
    projects,
    queues,
    scores,
    simulate,
    templates,
    top,
    trace,
)
from arl_tangram.cli.output import EXIT_FAILED

__all__ = ["app", "main"]


class _LazyCommandGroup(TyperGroup):
    """Benchmarks are a quarter of all that is imported, so they are only read where somebody wants one or the list."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), "bench"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name != "bench":
            return super().get_command(ctx, cmd_name)
        from arl_tangram.cli import bench

        return typer.main.get_command(bench.group)


app = typer.Typer(
    name="tangram",
    cls=_LazyCommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMAND_MODULES = (
    *(lifecycle, top, logs, doctor, audit, actions, trace, explain, scores, endpoints, environments),
    *(keys, queues, projects, nodes, plan, templates, demo, simulate),
)
for module in COMMAND_MODULES:
    module.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("arl-tangram"))
        raise typer.Exit


@app.callback(help="Action-level resource management for agentic reinforcement learning.")
def _root_options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None: ...


def main() -> None:
    """The console script. What nobody expected is one sentence, too; TANGRAM_DEBUG=1 shows where it happened."""
    try:
        app()
    except Exception as error:
        if os.environ.get("TANGRAM_DEBUG"):
            raise
        print(f"tangram: {type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(EXIT_FAILED) from None

"""The command line: `tangram up`, `down`, `status`, `logs`, `doctor`, and what other modules here register.

Exit codes: 0 done, 1 failed, 2 used wrongly, 3 not running, 5 no sandbox works on this machine.
"""

import os
import sys

import typer

from arl_tangram.cli import (
    actions,
    audit,
    bench,
    demo,
    doctor,
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

app = typer.Typer(
    name="tangram",
    help="Action-level resource management for agentic reinforcement learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    *(lifecycle, top, logs, doctor, audit, actions, trace, explain, scores, environments),
    *(keys, queues, projects, nodes, plan, templates, demo, bench, simulate),
)
for module in COMMANDS:
    module.register(app)


def main() -> None:
    """The console script. What nobody expected is one sentence, too; TANGRAM_DEBUG=1 shows where it happened."""
    try:
        app()
    except Exception as error:
        if os.environ.get("TANGRAM_DEBUG"):
            raise
        print(f"tangram: {type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(EXIT_FAILED) from None

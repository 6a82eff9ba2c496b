"""`nodes join-token create`: let another machine join as a node."""

import json
import os
import re
import shlex
import subprocess
import sys
from typing import Annotated

import typer

from arl_tangram.cli.local_state import DirOption, LocalState
from arl_tangram.cli.output import EXIT_FAILED, EXIT_USAGE, FormatOption, OutputFormat, fail, print_json, stderr, stdout
from arl_tangram.cli.system.supervisor_process import require_server

__all__ = ["group"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")

group = typer.Typer(no_args_is_help=True, help="Tokens with which other machines join.")


@group.command("create")
def create_join_token(
    directory: DirOption,
    kind: Annotated[str, typer.Option(help="Kind of the node: cpu, gpu or api.")] = "cpu",
    name: Annotated[
        str | None, typer.Option(help="Name of the node; it is unique.", show_default="the kind and a random part")
    ] = None,
    pool: Annotated[str, typer.Option(help="Pool of the node.")] = "default",
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="Validity of the token, such as 90s, 30m, 1h.")] = "1h",
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Create a join token for one node, and print the command that uses it. Run it on the control machine.

    The token works once. The node gets credentials of its own, which `tangram nodes remove` ends.
    """
    require_server()
    options = {
        "--kind": kind,
        "--pool": pool,
        "--ttl": str(_seconds(ttl)),
        **({"--name": name} if name is not None else {}),
    }
    argv = [sys.executable, "-m", "arl_local.join.create", "--dir", str(LocalState(directory).directory)]
    argv += [f"{option}={value}" for option, value in options.items()]
    created = subprocess.run(argv, capture_output=True, text=True, env=os.environ, check=False)
    if created.returncode != 0:
        code = EXIT_USAGE if created.returncode == EXIT_USAGE else EXIT_FAILED
        fail(created.stderr.strip() or "the token could not be created", code)
    token = json.loads(created.stdout)
    command = shlex.join(["tangram", "node", "up", "--join", token["url"], "--token", token["token"]])
    if output is OutputFormat.JSON:
        print_json({**token, "command": command})
        return
    expires_at = token["expires_at"][:19].replace("T", " ")
    stderr.print(f"Run this on the other machine before {expires_at} UTC:", markup=False)
    stdout.print(command, markup=False, highlight=False, soft_wrap=True)


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        fail(f"--ttl {text}: write a number and a unit, such as 90s, 30m, 1h or 2d", EXIT_USAGE)
    return float(found[1]) * _UNITS[found[2] or "s"]

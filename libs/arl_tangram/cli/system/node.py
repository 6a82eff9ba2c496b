"""`node up` and `node down`: run this machine as a node of a system on another machine."""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.markup import escape

from arl_tangram.cli.local_state import DirOption, LocalState
from arl_tangram.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NOT_RUNNING,
    EXIT_USAGE,
    FormatOption,
    OutputFormat,
    fail,
    print_json,
    print_rows,
    stderr,
    stdout,
)
from arl_tangram.cli.system.foreground import run_in_foreground
from arl_tangram.cli.system.lifecycle import DriverChoice
from arl_tangram.cli.system.supervisor_process import (
    drain,
    require_server,
    spawn_supervisor,
    startup_log,
    wait_for_running_system,
    wait_until_up,
)

__all__ = ["register"]

_TOKEN = "TANGRAM_JOIN_TOKEN"  # noqa: S105 - the name of a variable
_REPORT = "node-report.json"
_HEADINGS = ("limit", "level", "mechanism", "to enforce it")

WalltimeOption = Annotated[
    float | None,
    typer.Option(
        "--walltime",
        min=1,
        metavar="SECONDS",
        help="Seconds until this machine ends the node, such as the rest of its batch job. No action starts whose"
        " timeout does not end before.",
        show_default="no end",
    ),
]

group = typer.Typer(no_args_is_help=True, help="Run this machine as a node of another system.")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(group, name="node", rich_help_panel="Start")


@group.command("up")
def node_up(
    directory: DirOption,
    join: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of the system's gateway; needed with a new token.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar=_TOKEN, help="Join token; needed once.", show_envvar=True, show_default=False)
    ] = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Return when the node is ready, and keep it running.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(help="Address of this machine for the system.", show_default="that of its route to the gateway"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the node.", show_default="8703 if free, otherwise any")
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores that actions may use.", show_default="all")] = None,
    walltime_s: WalltimeOption = None,
    unsafe_local: Annotated[bool, typer.Option(help="Run actions without any isolation.")] = False,
    driver: Annotated[
        DriverChoice | None, typer.Option(help="Driver that confines actions.", show_default="the best that works here")
    ] = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Start the node. With a join token, this machine joins the system first.

    `tangram nodes join-token create` on the control machine prints this command with a token. A node that has joined
    needs no token to start again.
    """
    require_server()
    state = LocalState(directory)
    if (token is None) is not (join is None) and not (state.directory / "node.json").exists():
        fail("--join and --token belong together; `tangram nodes join-token create` prints both", EXIT_USAGE)
    is_running = state.supervisor_pid() is not None
    if is_running and not (state.directory / "node.json").exists():
        fail(
            f"{state.directory} belongs to `tangram up`; choose another state directory for the node: --dir", EXIT_USAGE
        )
    if not is_running:
        options = {"--join": join, "--address": address, "--port": port, "--cores": cores, "--walltime": walltime_s}
        arguments = _arguments(state, {**options, "--driver": "unsafe-local" if unsafe_local else driver})
        # The token is not an argument: other users see the arguments of a process.
        variables = {_TOKEN: token} if token is not None else {}
        supervisor = spawn_supervisor(state, arguments, detach=detach, module="arl_local.join", variables=variables)
        if wait_until_up(state, supervisor):
            if warned := startup_log(state).read_text(errors="replace").strip():
                stderr.print(warned, style="yellow", markup=False, highlight=False)
            _print_node(state, output, "up")
            if not detach:
                raise typer.Exit(run_in_foreground(state, supervisor))
            return
    if join or token or address or port or cores or walltime_s or driver or unsafe_local:
        fail("The node is already up; its settings cannot be changed. Stop it first: tangram node down", EXIT_USAGE)
    wait_for_running_system(state)
    _print_node(state, output, "already up")


@group.command("down")
def node_down(
    directory: DirOption,
    deadline_s: Annotated[
        float,
        typer.Option(
            "--deadline", min=0, max=30 * 86_400, help="Seconds until remaining actions and environments are ended."
        ),
    ] = 600.0,
    now: Annotated[bool, typer.Option("--now", help="Stop without draining; the node counts as lost.")] = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Drain the node, then stop it. Exit code 1 if it could not be drained; then it continues to run."""
    state = LocalState(directory)
    if state.supervisor_pid() is None:
        fail(f"No node is running in {state.directory}. Start it: tangram node up", EXIT_NOT_RUNNING)
    if not (state.directory / "node.json").exists():
        fail(f"{state.directory} belongs to `tangram up`; stop it with `tangram down`", EXIT_USAGE)
    if not now:
        with stderr.status("draining"):
            _drain_node(state, deadline_s)
    drain(state)
    if output is OutputFormat.JSON:
        print_json({"directory": str(state.directory), "stopped": True, "drained": not now})
    else:
        stderr.print("stopped" if now else "drained and stopped")


def _arguments(state: LocalState, options: Mapping[str, object]) -> list[str]:
    chosen = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return ["--dir", str(state.directory), *chosen]


def _drain_node(state: LocalState, deadline_s: float) -> None:
    argv = [sys.executable, "-m", "arl_local.join.drain", "--dir", str(state.directory), "--deadline", str(deadline_s)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as drained:
        try:
            _, said = drained.communicate()
        except KeyboardInterrupt:
            drained.send_signal(signal.SIGINT)  # it reopens the node
            _, said = drained.communicate()
            fail(said.strip() or "interrupted", EXIT_INTERRUPTED)
    if drained.returncode != 0:
        detail = said.strip() or "the node could not be drained"
        fail(f"{detail}. The node still runs. To stop it anyway: tangram node down --now", EXIT_FAILED)


def _print_node(state: LocalState, output: OutputFormat, message: str) -> None:
    report = _report(state)
    if output is OutputFormat.JSON:
        print_json({"directory": str(state.directory), "state": message, **report})
        sys.stdout.flush()
        return
    capacity = report.get("capacity", {})
    cores = f", {capacity['cpu_milli'] / 1000:g} cores" if "cpu_milli" in capacity else ""
    joined = f"node {report.get('name')} of {report.get('gateway_url')}"
    description = f"{joined}, kind {report.get('kind')}, pool {report.get('pool')}{cores}"
    stdout.print(f"[green]{message}[/green]  {escape(description)}")
    if report.get("enforced"):
        rows = [(each["name"], each["level"], each["mechanism"], each["fix"] or "-") for each in report["enforced"]]
        print_rows(_HEADINGS, rows, empty="")
    own, system = report.get("version"), report.get("system_version")
    if own != system:
        stderr.print(f"this node has version {own}, the system {system}: install the same", markup=False)


def _report(state: LocalState) -> dict[str, Any]:
    try:
        return dict(json.loads((state.directory / _REPORT).read_text()))
    except (OSError, ValueError):
        return {}

"""`up`, `down` and `status`: start, stop and inspect the system on this machine."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import httpx
import typer
from rich.markup import escape

from arl_tangram.cli.client import remote_url
from arl_tangram.cli.local_state import DirOption, LocalState
from arl_tangram.cli.output import (
    EXIT_FAILED,
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
from arl_tangram.cli.system.supervisor_process import (
    drain,
    require_server,
    spawn_supervisor,
    startup_log,
    wait_for_running_system,
    wait_until_up,
)
from arl_wire.cells import MAX_CELL

__all__ = ["register"]

_READINESS_TIMEOUT_S = 10.0
_HOST = "127.0.0.1"
PROCESS_HEADINGS = ("process", "state", "pid", "restarts", "since", "address")


CellOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_CELL,
        help="Number of this cell behind a router; the ids contain it.",
        show_default="that of earlier starts, if any",
    ),
]


class DriverChoice(StrEnum):
    """The drivers that confine actions."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    SIMULATED = "simulated"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(rich_help_panel="Start")(up)
    app.command(rich_help_panel="Start")(down)
    app.command(rich_help_panel="Start")(status)


def up(
    directory: DirOption,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Return when the system is ready, and keep it running.")
    ] = False,
    host: Annotated[str | None, typer.Option(help="Address of the gateway.", show_default=_HOST)] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the gateway.", show_default="8700 if free, otherwise any"),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address of this machine on which nodes of other machines may join."),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(metavar="CIDR", help="Network of the nodes; repeatable.", show_default="that of --listen"),
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores that actions may use.", show_default="all")] = None,
    cell: CellOption = None,
    unsafe_local: Annotated[bool, typer.Option(help="Run actions without any isolation.")] = False,
    driver: Annotated[
        DriverChoice | None, typer.Option(help="Driver that confines actions.", show_default="the best that works here")
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(help="Use the database even if another state directory owns it; the services of that one stop."),
    ] = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Start the system: Postgres, the services and the sandbox launcher. If it is up, attach to it."""
    require_server()
    state = LocalState(directory)
    has_settings = bool(
        host or listen is not None or network or port or cores or cell or driver or unsafe_local or take_over
    )
    if host and listen:
        fail("--host and --listen exclude each other: the gateway has the address of --listen", EXIT_USAGE)
    if (state.directory / "node.json").exists():
        fail(f"{state.directory} belongs to `tangram node up`; choose another state directory: --dir", EXIT_USAGE)
    _refuse_settings_of_running_system(state, has_settings=has_settings)
    if state.supervisor_pid() is None:
        arguments = _supervisor_arguments(state, host or _HOST, port, cores, "unsafe-local" if unsafe_local else driver)
        arguments += _cluster_arguments(listen, network or (), cell, take_over=take_over)
        supervisor = spawn_supervisor(state, arguments, detach=detach)
        if wait_until_up(state, supervisor):
            if warned := startup_log(state).read_text(errors="replace").strip():
                stderr.print(warned, style="yellow", markup=False, highlight=False)
            _print_started(state, output, "up")
            if not detach:
                raise typer.Exit(run_in_foreground(state, supervisor))
            return
    _refuse_settings_of_running_system(state, has_settings=has_settings)
    wait_for_running_system(state)
    _print_started(state, output, "already up")


def down(
    directory: DirOption,
    purge: Annotated[bool, typer.Option(help="Also remove the state: database, keys, logs.")] = False,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Drain the system and stop it."""
    state = LocalState(directory)
    if (state.directory / "node.json").exists() and not purge:
        fail(f"{state.directory} belongs to `tangram node up`; stop it with `tangram node down`", EXIT_USAGE)
    was_up = state.supervisor_pid() is not None
    if was_up:
        drain(state)
    elif not purge:
        fail(f"No system is running in {state.directory}. Start one: tangram up -d", EXIT_NOT_RUNNING)
    purged = purge and state.directory.exists()
    if purged and not (state.directory / "lock").exists():
        fail(f"{state.directory} is not a state directory of `tangram up`; nothing was removed", EXIT_USAGE)
    if purged:
        _purge(state)
    if output is OutputFormat.JSON:
        print_json({"directory": str(state.directory), "stopped": was_up, "purged": purged})
    else:
        stderr.print(f"{'stopped' if was_up else 'was not running'}{', state removed' if purged else ''}")


def status(context: typer.Context, directory: DirOption, output: FormatOption = OutputFormat.TEXT) -> None:
    """Show the processes of the system. Exit code 0: all ready; 1: at least one not ready; 3: not running.

    If TANGRAM_URL names another system, ask its gateway whether it is ready.
    """
    state = LocalState(directory)
    if (url := remote_url(context, state.directory)) is not None:
        _show_remote_status(url, output)
    pid = state.supervisor_pid()
    seen = state.processes()
    processes: dict[str, dict[str, Any]] = seen.get("processes", {}) if pid is not None else {}
    ready = bool(processes) and seen["phase"] == "ready" and all(p["state"] == "ready" for p in processes.values())
    if output is OutputFormat.JSON:
        print_json(
            {
                "directory": str(state.directory),
                "running": pid is not None,
                "ready": ready,
                "supervisor": seen.get("supervisor") if pid is not None else None,
                "phase": seen.get("phase") if pid is not None else "stopped",
                "message": seen.get("message", ""),
                "endpoints": state.service_urls() if pid is not None else {},
                "processes": processes,
            }
        )
    elif pid is None:
        stderr.print(f"No system is running in {state.directory}. Start one: tangram up -d", markup=False)
        if seen.get("phase") == "failed":
            stderr.print(f"the last start failed: {seen['message']}", markup=False)
    else:
        phase = seen.get("phase", "starting")
        shown = "unready" if phase == "ready" and not ready else phase
        stdout.print(f"{shown} in {state.directory}, supervisor pid {pid}", markup=False)
        print_rows(PROCESS_HEADINGS, _process_rows(processes, state.service_urls()), empty="no process has started yet")
        for name, reason in _unready_reasons(processes, state.service_urls()):
            stderr.print(f"{name} is not ready: {reason}", markup=False)
    if pid is None:
        raise typer.Exit(EXIT_NOT_RUNNING)
    if not ready:
        raise typer.Exit(EXIT_FAILED)


def _unready_reasons(processes: Mapping[str, Mapping[str, Any]], urls: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the names of services that were ready and are not, with what they say themselves."""
    for name, process in processes.items():
        if process["state"] != "unready" or not urls.get(name, "").startswith("http"):
            continue
        try:
            answer = httpx.get(f"{urls[name]}/readyz", timeout=_READINESS_TIMEOUT_S)
        except httpx.HTTPError as error:
            yield name, f"it does not answer ({type(error).__name__})"
            continue
        if not answer.is_success:
            yield name, _problem_detail(answer)


def _show_remote_status(url: str, output: OutputFormat) -> NoReturn:
    """Print whether the gateway at `url` is ready. Its processes are not visible from here."""
    try:
        answer = httpx.get(f"{url}/readyz", timeout=_READINESS_TIMEOUT_S)
        ready, message = answer.is_success, "" if answer.is_success else _problem_detail(answer)
        code = 0 if ready else EXIT_FAILED
    except httpx.HTTPError as error:
        ready, message, code = False, f"the gateway is not reachable: {error}", EXIT_NOT_RUNNING
    if output is OutputFormat.JSON:
        print_json({"url": url, "running": code != EXIT_NOT_RUNNING, "ready": ready, "message": message})
    else:
        phase = "ready" if ready else "not ready" if code == EXIT_FAILED else "not running"
        stdout.print(f"{phase} at {url} (TANGRAM_URL){f': {message}' if message else ''}", markup=False)
    raise typer.Exit(code)


def _problem_detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}; is this the address of a gateway?"


def _refuse_settings_of_running_system(state: LocalState, *, has_settings: bool) -> None:
    if has_settings and state.supervisor_pid() is not None:
        fail("The system is already up; its settings cannot be changed. Stop it first: tangram down", EXIT_USAGE)


def _supervisor_arguments(
    state: LocalState, host: str, port: int | None, cores: int | None, driver: str | None
) -> list[str]:
    return [
        *("--dir", str(state.directory), "--host", host),
        *(("--port", str(port)) if port else ()),
        *(("--cores", str(cores)) if cores else ()),
        *(("--driver", str(driver)) if driver else ()),
    ]


def _cluster_arguments(listen: str | None, networks: Sequence[str], cell: int | None, *, take_over: bool) -> list[str]:
    return [
        *(["--take-over"] if take_over else []),
        *(["--cell", str(cell)] if cell is not None else []),
        *(["--listen", listen] if listen is not None else []),
        *(word for each in networks for word in ("--network", each)),
    ]


def _print_started(state: LocalState, output: OutputFormat, message: str) -> None:
    if output is OutputFormat.JSON:
        print_json({"directory": str(state.directory), "state": message, "endpoints": state.service_urls()})
        sys.stdout.flush()
        return
    stdout.print(f"[green]{message}[/green]  {escape(str(state.service_urls().get('gateway')))}")
    stdout.print(f"    key    {state.directory / 'api_key'}", markup=False)


def _purge(state: LocalState) -> None:
    require_server()
    argv = [sys.executable, "-m", "arl_local", "--dir", str(state.directory), "--purge"]
    purged = subprocess.run(argv, stderr=subprocess.PIPE, text=True, check=False)
    if purged.returncode != 0:
        fail(purged.stderr.strip() or "the state could not be removed")


def _process_rows(processes: dict[str, dict[str, Any]], addresses: dict[str, str]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            process["state"],
            str(process["pid"] or "-"),
            str(process["restarts"]),
            process["since"].partition(".")[0].replace("T", " "),
            addresses.get(name, "-"),
        )
        for name, process in processes.items()
    ]

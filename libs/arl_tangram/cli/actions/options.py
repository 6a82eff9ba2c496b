"""Options of `submit` and `environments run`, and the request that they describe."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from arl_tangram.cli.completion import complete_environment, complete_task, complete_template
from arl_tangram.cli.output import EXIT_USAGE, fail
from arl_tangram.cli.pairs import parse_amounts, parse_pairs
from arl_tangram.options import exec_action, validate_request
from arl_wire.actions.action import SubmitActionRequest
from arl_wire.errors import ValidationFailed

__all__ = ["build_request", "parse_network", "read_request"]

Texts = list[str] | None
DEFAULT_TASK = "cli"
"""Task of an action outside of an existing environment."""
NOT_OF_THE_REQUEST = {"directory", "request", "no_wait", "follow", "output", "fetch_to"}
"""Options of `submit` that are valid together with `--json`."""
PLAIN_OPTIONS = (
    "task", "trajectory", "session", "command", "template", "memory_mib", "disk_mib", "pids", "parallel_fraction",
    "resizable", "exclusive", "timeout_s", "wall_timeout_s", "deadline_s",
    "retries", "priority", "profile", "step", "prompt", "group", "expected_turns", "progress", "cwd", "user", "fetch",
    "require",
)  # fmt: skip
"""Options that have the name and the form of the SDK's option."""

ProgramArgument = Annotated[Texts, typer.Argument(help="Program and its arguments, after `--`.")]
SourceOption = Annotated[Path | None, typer.Option(help="Python file to run instead; `-` reads standard input.")]
RequestOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Complete request as JSON; `-` reads standard input.")
]
TaskOption = Annotated[
    str | None, typer.Option(help="RL workload of the action.", autocompletion=complete_task, show_default=DEFAULT_TASK)
]
TrajectoryOption = Annotated[str | None, typer.Option(help="Run in the environment of this trajectory.")]
EnvironmentOption = Annotated[
    UUID | None, typer.Option(help="Run in this environment.", autocompletion=complete_environment)
]
SessionOption = Annotated[str | None, typer.Option(help="Run `--command` in this shell; it stays open.")]
CommandOption = Annotated[str | None, typer.Option("-c", "--command", help="Shell command for `--session`.")]
TemplateOption = Annotated[
    str | None, typer.Option(help="Template of a new environment.", autocompletion=complete_template)
]
CpuOption = Annotated[
    str | None, typer.Option(metavar="CORES", help="Number of cores, or a range such as 1-8. Default: of the system.")
]
ExclusiveOption = Annotated[
    bool | None,
    typer.Option("--exclusive/--shared", help="Whole cores that no other action uses, or a share of the node's cores."),
]
MemoryOption = Annotated[int | None, typer.Option(help="Memory limit in MiB.", show_default="512")]
DiskOption = Annotated[int | None, typer.Option(help="Disk limit in MiB.")]
PidsOption = Annotated[int | None, typer.Option(help="Maximum number of processes and threads.")]
ResourceOption = Annotated[Texts, typer.Option(metavar="NAME=N", help="Amount of another resource; repeatable.")]
ParallelOption = Annotated[float | None, typer.Option(help="Part of the work that more cores speed up, 0 to 1.")]
ResizableOption = Annotated[str | None, typer.Option(help="Change of cores while it runs: none, grow or any.")]
TimeoutOption = Annotated[float, typer.Option(help="Maximum run time in seconds. Queueing does not count.")]
WallTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--wall-timeout", "--wall-timeout-s", help="Maximum real time in seconds, including time without a shared core."
    ),
]
DeadlineOption = Annotated[float | None, typer.Option(help="Seconds from now after which the result is useless.")]
RetriesOption = Annotated[int | None, typer.Option(help="Attempts after an infrastructure error.")]
IdempotentOption = Annotated[bool, typer.Option("--idempotent", help="Allow retries inside an environment.")]
PriorityOption = Annotated[int | None, typer.Option(help="-10 to 10; higher goes first within the task.")]
ProfileOption = Annotated[str | None, typer.Option(help="Name under which run times are learned.")]
StepOption = Annotated[int | None, typer.Option(help="Training step.")]
PromptOption = Annotated[str | None, typer.Option(help="Key of the trajectory's prompt, equal in all epochs.")]
GroupOption = Annotated[str | None, typer.Option(help="Group of the trajectory.")]
TurnsOption = Annotated[int | None, typer.Option(help="Expected number of actions of the trajectory.")]
ProgressOption = Annotated[float | None, typer.Option(help="Completed fraction of the trajectory, 0 to 1.")]
EnvOption = Annotated[Texts, typer.Option("--env", metavar="NAME=VALUE", help="Environment variable; repeatable.")]
CwdOption = Annotated[str | None, typer.Option(help="Directory below the working directory.")]
UserOption = Annotated[str | None, typer.Option(help="User of the program, such as root: a name or uid of the image.")]
NetworkOption = Annotated[
    str | None,
    typer.Option(help="Network: none, open, a policy such as package-mirrors, or HOST[:PORT] separated by commas."),
]
StdinOption = Annotated[Path | None, typer.Option(help="File for standard input; `-` passes this command's.")]
FileOption = Annotated[list[Path] | None, typer.Option(help="Local file to copy into the action; repeatable.")]
FetchOption = Annotated[Texts, typer.Option(metavar="PATH", help="File to copy back at the end; repeatable.")]
FetchToOption = Annotated[Path, typer.Option(help="Local directory for fetched files.")]
RequireOption = Annotated[
    Texts, typer.Option(help="Limit that must be enforced: cpu, memory, pids or disk; repeatable.")
]
LabelOption = Annotated[Texts, typer.Option(metavar="NAME=VALUE", help="Label; repeatable.")]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Print the id and return.")]
FollowOption = Annotated[bool, typer.Option("-f", "--follow", help="Show the output live.")]


def build_request(given: Mapping[str, Any]) -> SubmitActionRequest:
    """Return the request of the given options. None means not given. Ends the command if one is invalid.

    Args:
        given: Options by parameter name, of `submit` or of `environments run`. Paths may be texts, as in `ctx.params`.
    """
    source, stdin = given.get("source"), given.get("stdin")
    if str(source) == str(stdin) == "-":
        fail("--source and --stdin cannot both read standard input", EXIT_USAGE)
    options = {name: given.get(name) for name in PLAIN_OPTIONS} | {
        "task": given.get("task") or DEFAULT_TASK,
        "argv": given.get("argv") or None,
        "source": _read_text(Path(source)) if source is not None else None,
        "environment_id": given.get("environment"),
        "cpu": _parse_cores(given),
        "resources": parse_amounts("--resource", given.get("resource"), example="network_mbps=100") or None,
        "idempotent": given.get("idempotent") or None,
        "env": dict(parse_pairs("--env", given.get("env"))) or None,
        "network": parse_network(given.get("network")),
        "stdin": _read_text(Path(stdin)) if stdin is not None else None,
        "files": {path.name: _read_bytes(path) for path in map(Path, given.get("file") or ())},
        "labels": dict(parse_pairs("--label", given.get("label"))) or None,
    }
    try:
        return exec_action(**options)
    except ValidationFailed as error:
        fail(str(error), EXIT_USAGE)


def parse_network(network: str | None) -> str | dict[str, list[str]] | None:
    """Return the network of `--network`. A text with a dot, colon or comma is a list of hosts."""
    if network is None or not any(sign in network for sign in ".:,"):
        return network
    return {"allow": [each.strip() for each in network.split(",") if each.strip()]}


def read_request(path: Path, ctx: typer.Context) -> SubmitActionRequest:
    """Return the request in a JSON file; `-` reads standard input.

    Ends the command if the request is invalid or if other options of the request are given.
    """
    given = [name for name in ctx.params if (source := ctx.get_parameter_source(name)) and source.name == "COMMANDLINE"]
    if others := sorted(set(given) - NOT_OF_THE_REQUEST):
        fail(f"--json replaces the other options. Remove {', '.join(others)}", EXIT_USAGE)
    try:
        body = json.loads(_read_text(path))
    except ValueError as error:
        fail(f"{path} is not JSON: {error}", EXIT_USAGE)
    try:
        return validate_request(SubmitActionRequest, body)
    except ValidationFailed as error:
        fail(f"{path}: {error}", EXIT_USAGE)


def _parse_cores(given: Mapping[str, Any]) -> float | tuple[float, float] | None:
    cpu: str | None = given.get("cpu")
    if cpu is None:
        if given.get("exclusive") is False:
            fail("--shared needs --cpu: the cores that the action gets if it wants them", EXIT_USAGE)
        return 1.0 if given.get("exclusive") else None
    low, is_range, high = cpu.partition("-")
    try:
        return (float(low), float(high)) if is_range else float(low)
    except ValueError:
        fail(f"--cpu {cpu}: write a number of cores such as 2, or a range such as 1-8", EXIT_USAGE)


def _read_text(path: Path) -> str:
    if str(path) == "-":
        if sys.stdin is None:
            fail("standard input is closed", EXIT_USAGE)
        return sys.stdin.read()
    try:
        return _read_bytes(path).decode()
    except UnicodeDecodeError:
        fail(f"{path} is not UTF-8 text", EXIT_USAGE)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fail(f"{path}: {error.strerror}", EXIT_USAGE)

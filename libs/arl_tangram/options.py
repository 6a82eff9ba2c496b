"""Options of an action as keyword arguments."""

from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypedDict, TypeVar, Unpack
from uuid import UUID

from pydantic import BaseModel, ValidationError

from arl_wire.actions.action import SubmitActionRequest
from arl_wire.environments.environment import CreateEnvironmentRequest, EnvironmentInfo
from arl_wire.environments.forks import ForkEnvironmentRequest
from arl_wire.errors import FieldError, ValidationFailed

__all__ = [
    "EnvironmentOptions",
    "ExecOptions",
    "ForkOptions",
    "Network",
    "check_option_names",
    "environment_files_action",
    "environment_request",
    "exec_action",
    "file_action",
    "fork_request",
    "invalid_field",
    "to_validation_failed",
    "validate_request",
]

Model = TypeVar("Model", bound=BaseModel)
Network = str | Mapping[str, Sequence[str]]
"""`none`, `open`, the name of a policy, or `{"allow": [HOSTS]}`."""


class ExecOptions(TypedDict, total=False):
    """The fields of `SubmitActionRequest`, flat. Give exactly one of `argv`, `source` and `session`."""

    task: str
    argv: Sequence[str]
    source: str
    """A Python program, run as __main__."""
    session: str
    """A shell that stays open in the trajectory's environment; it runs `command`."""
    command: str
    trajectory: str
    profile: str
    """Name of the workload if the program's name is not specific enough. Run times are learned per profile."""
    step: int
    """Training step of the trajectory."""
    prompt: str
    """Key of the trajectory's prompt, equal in all epochs. Lengths are learned from earlier steps."""
    group: str
    """Group of the trajectory, such as the samples of one prompt."""
    expected_turns: int
    """Expected number of actions of the whole trajectory."""
    progress: float
    """Completed fraction of the trajectory, 0 to 1."""
    scope: Literal["ephemeral", "trajectory"]
    """Default: `trajectory` if a trajectory is named, else `ephemeral`."""
    environment_id: UUID
    """Id of a live environment; replaces scope and trajectory."""
    idle_ttl_s: int
    template: str
    """Initial content of the environment: `host`, or an image imported by `tangram templates import`."""
    stdin: str
    stdin_open: bool
    """Keep stdin open after `stdin`, for `send_input`."""
    env: Mapping[str, str]
    cwd: str
    user: str
    """User of the program: a name or uid of the environment, such as `root`, optionally with `:` and a group."""
    network: Network
    """Network of this program only; absent: the environment's."""
    files: Mapping[str, bytes | str]
    """Contents by path below the working directory, written before the start."""
    fetch: Sequence[str]
    """Paths of files to return."""
    timeout_s: float
    wall_timeout_s: float
    """Maximum real time; `timeout_s` does not count the waiting for shared cores."""
    cpu: float | tuple[float, float]
    """Cores, or (min, max)."""
    exclusive: bool
    """True for whole cores that no other action uses, False to share cores. Needs `cpu`."""
    memory_mib: int
    disk_mib: int
    pids: int
    resources: Mapping[str, int]
    """Amounts of further resources, by the names that nodes report."""
    parallel_fraction: float
    """Amdahl fraction of the elastic range of `cpu`."""
    resizable: Literal["none", "grow", "any"]
    """Permission to change the cores inside their range while the action runs."""
    priority: int
    deadline_s: float
    retries: int
    idempotent: bool
    require: Sequence[Literal["cpu", "memory", "pids", "disk"]]
    labels: Mapping[str, str]


class EnvironmentOptions(TypedDict, total=False):
    """The fields of `CreateEnvironmentRequest`."""

    task: str
    trajectory: str
    """Name of the trajectory; generated if absent."""
    snapshot: UUID
    """Id of a snapshot to start from, on the node that stores it."""
    template: str
    """Initial content: `host`, or an image imported by `tangram templates import`."""
    memory_mib: int
    disk_mib: int
    pids: int
    idle_ttl_s: int
    """Seconds without use after which the environment ends."""
    env: Mapping[str, str]
    """Variables of every program in it."""
    network: Network
    """Network of programs in it; absent: none."""
    files: Mapping[str, bytes | str]
    """Contents by path below the working directory."""
    labels: Mapping[str, str]


class ForkOptions(TypedDict, total=False):
    """The optional fields of `ForkEnvironmentRequest`."""

    trajectories: Sequence[str]
    """Names, one for each fork; generated if absent."""
    idle_ttl_s: int
    """Seconds without use after which a fork ends; as in the source if absent."""
    labels: Mapping[str, str]


_DEMAND_FIELDS = ("memory_mib", "disk_mib", "pids", "resources")
_TOP_LEVEL_FIELDS = (
    "task", "trajectory", "profile", "step", "prompt", "group", "expected_turns", "progress",
    "source", "session", "command", "stdin", "stdin_open", "env", "cwd", "user", "network",
    "timeout_s", "wall_timeout_s", "priority", "deadline_s", "retries", "idempotent", "labels",
)  # fmt: skip


def exec_action(**options: Unpack[ExecOptions]) -> SubmitActionRequest:
    """Build the action that these options describe. An option that is None counts as not given.

    Raises `ValidationFailed` naming the field.
    """
    check_option_names(options, ExecOptions.__annotations__)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    body: dict[str, Any] = {name: given[name] for name in _TOP_LEVEL_FIELDS if name in given}
    body |= {name: _to_list(name, given[name]) for name in ("argv", "fetch", "require") if name in given}
    body["files"] = _encode_files(given.get("files", {}))
    body["environment"] = {"scope": given.get("scope") or ("trajectory" if "trajectory" in given else "ephemeral")}
    if "environment_id" in given:
        body["environment"] = {"id": given["environment_id"]}
    body["environment"] |= {name: given[name] for name in ("idle_ttl_s", "template") if name in given}
    body["demand"] = {name: given[name] for name in _DEMAND_FIELDS if name in given}
    if "cpu" in given:
        cpu = given["cpu"]
        is_range = isinstance(cpu, (tuple, list)) and len(cpu) == 2
        body["demand"]["cpu"] = {"min": cpu[0], "max": cpu[1]} if is_range else cpu
    if "exclusive" in given:
        if "cpu" not in given:
            raise invalid_field("exclusive", "give the number of cores as well, as in cpu=1")
        form = body["demand"]["cpu"]
        body["demand"]["cpu"] = (form if isinstance(form, dict) else {"min": form}) | {"exclusive": given["exclusive"]}
    if "parallel_fraction" in given:
        body["elasticity"] = {"model": "amdahl", "parallel_fraction": given["parallel_fraction"]}
    if "resizable" in given:
        body["elasticity"] = {"model": "none", **body.get("elasticity", {}), "resizable": given["resizable"]}
    return _validate_action(body)


def file_action(
    task: str, trajectory: str, *, files: Mapping[str, bytes | str] | None = None, fetch: Sequence[str] = ()
) -> SubmitActionRequest:
    """Build an action that only transfers files. They are as durable and ordered as any other action."""
    body = {
        "task": task,
        "trajectory": trajectory,
        "files": _encode_files(files or {}),
        "fetch": _to_list("fetch", fetch),
    }
    return _validate_action({**body, "kind": "environment.files", "environment": {"scope": "trajectory"}})


def environment_files_action(
    info: EnvironmentInfo, *, files: Mapping[str, bytes | str] | None = None, fetch: Sequence[str] = ()
) -> SubmitActionRequest:
    """Build an action that transfers files of an existing environment."""
    return _validate_action(
        {
            "kind": "environment.files",
            "task": info.task,
            "environment": {"id": info.id},
            "files": _encode_files(files or {}),
            "fetch": _to_list("fetch", fetch),
        }
    )


def environment_request(options: EnvironmentOptions) -> CreateEnvironmentRequest:
    """Build the request that these options describe. Raises `ValidationFailed` naming the field."""
    check_option_names(options, EnvironmentOptions.__annotations__)
    body: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "files" in body:
        body["files"] = _encode_files(body["files"])
    return validate_request(CreateEnvironmentRequest, body)


def fork_request(count: int, options: ForkOptions) -> ForkEnvironmentRequest:
    """Build the request for `count` forks. Raises `ValidationFailed` naming the field."""
    check_option_names(options, ForkOptions.__annotations__)
    body: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "trajectories" in body:
        body["trajectories"] = _to_list("trajectories", body["trajectories"])
    return validate_request(ForkEnvironmentRequest, {"count": count, **body})


def _validate_action(body: dict[str, Any]) -> SubmitActionRequest:
    return validate_request(SubmitActionRequest, body)


def validate_request(model: type[Model], body: Mapping[str, Any]) -> Model:
    """Return the request. Raises `ValidationFailed` naming the invalid fields."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise to_validation_failed(error) from None


def check_option_names(options: Collection[str], known: Collection[str]) -> None:
    """Raise `ValidationFailed` for an unknown option. If it were ignored, a limit could silently be missing."""
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1) or [each for each in known if each.startswith(name)]
            advice = f"Did you mean {near[0]}?" if near else f"Options: {', '.join(sorted(known))}"
            raise invalid_field(name, f"unknown option. {advice}")


def invalid_field(field: str, message: str) -> ValidationFailed:
    return ValidationFailed(f"{field}: {message}", errors=[FieldError(field=field, message=message)])


def _to_list(name: str, value: Any) -> list[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        raise invalid_field(name, f"expected a list of strings, got {type(value).__name__}")
    return list(value)


def _encode_files(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise invalid_field("files", f"expected a mapping of paths to contents, got {type(given).__name__}")
    return {path: _encode_content(path, content) for path, content in given.items()}


def _encode_content(path: Any, content: Any) -> str:
    if not isinstance(content, str | bytes | bytearray | memoryview):
        raise invalid_field(f"files.{path}", f"expected bytes or str, got {type(content).__name__}")
    return b64encode(content.encode() if isinstance(content, str) else content).decode()


def to_validation_failed(error: ValidationError) -> ValidationFailed:
    """Convert a pydantic error to a `ValidationFailed` that names the invalid fields."""
    fields = [
        FieldError(
            field=".".join(str(part) for part in entry["loc"]) or "request",
            message=entry["msg"].removeprefix("Value error, "),
        )
        for entry in error.errors(include_input=False, include_url=False)
    ]
    return ValidationFailed("; ".join(f"{field.field}: {field.message}" for field in fields), errors=fields)

"""What an action may be told, as keyword arguments."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack
from uuid import UUID

from pydantic import ValidationError

from arl_wire.actions import SubmitAction
from arl_wire.errors import FieldError, ValidationFailed

__all__ = ["ExecOptions", "exec_action", "failed_validation", "file_action"]


class ExecOptions(TypedDict, total=False):
    """The fields of `SubmitAction`, flat. Give exactly one of `argv`, `source` and `session`."""

    task: str
    argv: Sequence[str]
    source: str
    """A Python program, run as __main__."""
    session: str
    """A shell that stays open in the trajectory's environment; it runs `command`."""
    command: str
    trajectory: str
    profile: str
    """What runs here, where that is more than the program's name: how long it takes is learnt apart."""
    step: int
    scope: Literal["ephemeral", "trajectory"]
    """Default: `trajectory` where a trajectory is named, else `ephemeral`."""
    environment_id: UUID
    """Of a living environment; instead of scope and trajectory."""
    idle_ttl_s: int
    template: str
    """What the environment begins with: `host`, or an image imported by `tangram templates import`."""
    stdin: str
    stdin_open: bool
    """It stays open after `stdin`, for `send_input`."""
    env: Mapping[str, str]
    cwd: str
    files: Mapping[str, bytes | str]
    """Written before the start, by path below the working directory."""
    fetch: Sequence[str]
    """Paths of files to return."""
    timeout_s: float
    cpu: float | tuple[float, float]
    """Cores, or (min, max)."""
    memory_mib: int
    disk_mib: int
    pids: int
    resources: Mapping[str, int]
    """What else it needs, of what nodes say that they have."""
    parallel_fraction: float
    """Amdahl fraction of the elastic range of `cpu`."""
    resizable: Literal["none", "grow", "any"]
    """Whether its cores may change inside that range while it runs."""
    priority: int
    deadline_s: float
    retries: int
    idempotent: bool
    require: Sequence[Literal["cpu", "memory", "pids", "disk"]]
    labels: Mapping[str, str]


_DEMAND = ("memory_mib", "disk_mib", "pids", "resources")
_FLAT = (
    "task", "trajectory", "profile", "step", "source", "session", "command", "stdin", "stdin_open", "env", "cwd",
    "timeout_s", "priority", "deadline_s", "retries", "idempotent", "labels",
)  # fmt: skip


def exec_action(**options: Unpack[ExecOptions]) -> SubmitAction:
    """The action that these options describe. Raises `ValidationFailed` naming the field."""
    given: dict[str, Any] = dict(options)
    body: dict[str, Any] = {name: given[name] for name in _FLAT if name in given}
    body |= {name: list(given[name]) for name in ("argv", "fetch", "require") if name in given}
    body["files"] = {path: _encoded(content) for path, content in given.get("files", {}).items()}
    body["environment"] = {"scope": given.get("scope") or ("trajectory" if "trajectory" in given else "ephemeral")}
    if "environment_id" in given:
        body["environment"] = {"id": given["environment_id"]}
    body["environment"] |= {name: given[name] for name in ("idle_ttl_s", "template") if name in given}
    body["demand"] = {name: given[name] for name in _DEMAND if name in given}
    if "cpu" in given:
        cpu = given["cpu"]
        body["demand"]["cpu"] = {"min": cpu[0], "max": cpu[1]} if isinstance(cpu, tuple) else cpu
    if "parallel_fraction" in given:
        body["elasticity"] = {"model": "amdahl", "parallel_fraction": given["parallel_fraction"]}
    if "resizable" in given:
        body["elasticity"] = {"model": "none", **body.get("elasticity", {}), "resizable": given["resizable"]}
    return _checked(body)


def file_action(
    task: str, trajectory: str, *, files: Mapping[str, bytes | str] | None = None, fetch: Sequence[str] = ()
) -> SubmitAction:
    """An action that runs nothing: its files are as durable and ordered as any other's."""
    given = {path: _encoded(content) for path, content in (files or {}).items()}
    body = {"task": task, "trajectory": trajectory, "files": given, "fetch": list(fetch)}
    return _checked({**body, "kind": "environment.files", "environment": {"scope": "trajectory"}})


def _checked(body: dict[str, Any]) -> SubmitAction:
    try:
        return SubmitAction.model_validate(body)
    except ValidationError as error:
        raise failed_validation(error) from None


def _encoded(content: bytes | str) -> str:
    return b64encode(content.encode() if isinstance(content, str) else content).decode()


def failed_validation(error: ValidationError) -> ValidationFailed:
    """With the fields that are wrong."""
    fields = [
        FieldError(field=".".join(str(part) for part in entry["loc"]) or "action", message=entry["msg"])
        for entry in error.errors(include_input=False, include_url=False)
    ]
    return ValidationFailed("; ".join(f"{field.field}: {field.message}" for field in fields), errors=fields)

"""The target of SWE-ReX's commands: an existing environment, or a trajectory's, created at its first use.

SWE-ReX's client accepts only an address and a key, so the address may contain the environment's options:
`/t/TASK/trajectories/TRAJECTORY/options/template=py312,memory_mib=2048/swerex`.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastapi import Request
from pydantic import Field

from arl_gateway.compat.target import RolloutRef, parse_target
from arl_gateway.deps import gateway_deps
from arl_gateway.environments.service import SIZE_FIELDS, EnvironmentService
from arl_gateway.http.auth import Caller
from arl_wire.actions.action import Name, TemplateName
from arl_wire.environments.environment import EnvironmentInfo
from arl_wire.errors import FieldError, NotFound, ValidationFailed
from arl_wire.validation import StrictModel

__all__ = ["SwerexTarget", "resolve_target"]

CLIENT_WAITS_S = 300.0
"""Seconds until aiohttp's default timeout of a call, which SWE-ReX's client does not change."""
MARGIN_S = 10.0


class _ActionParams(StrictModel):
    step: int | None = Field(default=None, ge=0, le=2**31 - 1)
    cpu: float = 1
    deadline_s: float | None = Field(default=CLIENT_WAITS_S - MARGIN_S, gt=0, le=86400, allow_inf_nan=False)


class _EnvironmentParams(RolloutRef, _ActionParams):
    task: Name = "swerex"
    template: TemplateName | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    pids: int | None = None
    idle_ttl_s: int = 3600


@dataclass(frozen=True, slots=True)
class SwerexTarget:
    """The environment of a call. If `environment` is None, it is the trajectory's, which its first action creates."""

    task: str
    trajectory: str
    action_fields: dict[str, Any]
    """Fields of every action."""
    environment: EnvironmentInfo | None


async def resolve_target(request: Request, caller: Caller) -> SwerexTarget:
    """Resolve the target within the caller's project. Raises NotFound and ValidationFailed."""
    if "id" in request.path_params:
        return await _existing_target(request, caller)
    request.path_params.update(_parse_options(request.path_params.get("options", "")))
    asked = parse_target(request, _EnvironmentParams)
    if asked.trajectory is None:
        raise NotFound("the URL has no trajectory: use /t/TASK/trajectories/TRAJECTORY/swerex")
    sizes = {name: getattr(asked, name) for name in SIZE_FIELDS}
    environment = {"scope": "trajectory", "template": asked.template, "idle_ttl_s": asked.idle_ttl_s}
    given = _action_fields_for(asked, environment, {name: size for name, size in sizes.items() if size is not None})
    return SwerexTarget(asked.task, asked.trajectory, given, None)


async def _existing_target(request: Request, caller: Caller) -> SwerexTarget:
    asked = parse_target(request, _ActionParams)
    environments: EnvironmentService = gateway_deps(request).environments
    try:
        id = UUID(request.path_params["id"])
    except ValueError:
        raise NotFound(f"environment {request.path_params['id'][:64]!r} does not exist") from None
    known = await environments.get(id, caller)
    sizes = {name: getattr(known, name) for name in SIZE_FIELDS}
    given = _action_fields_for(asked, {"id": str(id), "scope": "trajectory"}, sizes)
    return SwerexTarget(known.task, known.trajectory, given, known)


def _action_fields_for(params: _ActionParams, environment: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        "step": params.step,
        "deadline_s": params.deadline_s,
        "environment": environment,
        "demand": {"cpu": params.cpu, **sizes},
    }


def _parse_options(text: str) -> dict[str, str]:
    """Parse `name=value,name=value`. Raises ValidationFailed."""
    found = dict(each.partition("=")[::2] for each in text.split(",") if each)
    known = _EnvironmentParams.model_fields.keys() - {"task", "trajectory"}
    if wrong := found.keys() - known:
        message = f"option `{min(wrong)[:64]}` does not exist. Available: {', '.join(sorted(known))}"
        raise ValidationFailed(message, errors=[FieldError(field="path.options", message=message)])
    return found

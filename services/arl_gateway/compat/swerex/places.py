"""Where a command of SWE-ReX's is run: an environment that is there, or a trajectory's, made at its first use.

SWE-ReX's client can be given an address and a key and nothing else, so what an environment is made with may stand in
the address: `/t/TASK/trajectories/TRAJECTORY/with/template=py312,memory_mib=2048/swerex`.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastapi import Request
from pydantic import Field

from arl_gateway.auth import Caller
from arl_gateway.compat.places import Whose, said_by
from arl_gateway.environments import SIZES, Environments
from arl_wire.actions import Name, TemplateName
from arl_wire.base import Strict
from arl_wire.environments import Environment
from arl_wire.errors import FieldError, NotFound, ValidationFailed

__all__ = ["Place", "place_of"]

CLIENT_WAITS_S = 300.0
"""aiohttp's own limit for a whole call: SWE-ReX's client sets none."""
MARGIN_S = 10.0


class _Asked(Strict):
    step: int | None = Field(default=None, ge=0, le=2**31 - 1)
    cpu: float = 1
    deadline_s: float | None = Field(default=CLIENT_WAITS_S - MARGIN_S, gt=0, le=86400, allow_inf_nan=False)


class _AskedAnew(Whose, _Asked):
    task: Name = "swerex"
    template: TemplateName | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    pids: int | None = None
    idle_ttl_s: int = 3600


@dataclass(frozen=True, slots=True)
class Place:
    """`environment` is the one that is named; None is the trajectory's, which its first action makes."""

    task: str
    trajectory: str
    given: dict[str, Any]
    """Of each action."""
    environment: Environment | None


async def place_of(request: Request, caller: Caller) -> Place:
    """Of the caller's project alone. Raises NotFound and ValidationFailed."""
    if "id" in request.path_params:
        return await _there(request, caller)
    request.path_params.update(_options(request.path_params.get("options", "")))
    asked = said_by(request, _AskedAnew)
    if asked.trajectory is None:
        raise NotFound("there is no trajectory in the address")
    sizes = {name: getattr(asked, name) for name in SIZES}
    environment = {"scope": "trajectory", "template": asked.template, "idle_ttl_s": asked.idle_ttl_s}
    given = _given(asked, environment, {name: size for name, size in sizes.items() if size is not None})
    return Place(asked.task, asked.trajectory, given, None)


async def _there(request: Request, caller: Caller) -> Place:
    asked = said_by(request, _Asked)
    environments: Environments = request.app.state.environments
    try:
        id = UUID(request.path_params["id"])
    except ValueError:
        raise NotFound(f"there is no environment {request.path_params['id'][:64]!r}") from None
    known = await environments.get(id, caller)
    sizes = {name: getattr(known, name) for name in SIZES}
    given = _given(asked, {"id": str(id), "scope": "trajectory"}, sizes)
    return Place(known.task, known.trajectory, given, known)


def _given(asked: _Asked, environment: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        "step": asked.step,
        "deadline_s": asked.deadline_s,
        "environment": environment,
        "demand": {"cpu": asked.cpu, **sizes},
    }


def _options(text: str) -> dict[str, str]:
    """`name=value,name=value`."""
    found = dict(each.partition("=")[::2] for each in text.split(",") if each)
    known = _AskedAnew.model_fields.keys() - {"task", "trajectory"}
    if wrong := found.keys() - known:
        message = f"`{min(wrong)[:64]}` is none of {', '.join(sorted(known))}"
        raise ValidationFailed(message, errors=[FieldError(field="path.with", message=message)])
    return found

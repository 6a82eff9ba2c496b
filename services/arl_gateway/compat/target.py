"""Resolution of a request's service, task and trajectory from its path, query, headers or `model`.

Clients of these routes can set a URL and rarely more, so the URL may contain all of them:
`/t/{task}/reward-services/{service}/get_reward?trajectory=…&step=…`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from pydantic import Field, ValidationError

from arl_gateway.deps import gateway_deps
from arl_gateway.reward_services.service_directory import ServiceDirectory, ServiceEntry
from arl_kit.app import validation_failed
from arl_wire.actions.action import Name
from arl_wire.errors import FieldError, NotFound
from arl_wire.reward_services.kinds import VERIFIERS
from arl_wire.scores import ServiceName
from arl_wire.validation import StrictModel

__all__ = ["RewardTarget", "RolloutRef", "parse_target", "resolve_target"]

HEADER_PREFIX = "tangram-"
MAX_SHOWN_MODEL = 128
"""Characters of an unknown `model` shown in an error."""
ParamsT = TypeVar("ParamsT", bound=StrictModel)


@dataclass(frozen=True, slots=True)
class RewardTarget:
    """An existing service, and the rollout of the request."""

    service: ServiceEntry
    task: str
    trajectory: str | None
    step: int | None
    unscored: float | None = None
    """Score for items that cannot be scored because of their text; None reports an error instead."""


class RolloutRef(StrictModel):
    """The rollout of a request."""

    trajectory: Name | None = None
    step: int | None = Field(default=None, ge=0, le=2**31 - 1)


class TargetParams(RolloutRef):
    """The parameters that select a service and the rollout of a request."""

    service: ServiceName | None = None
    task: Name = "score"
    unscored: float | None = Field(default=None, allow_inf_nan=False)


async def resolve_target(request: Request, kinds: Sequence[str], *, model: str | None = None) -> RewardTarget:
    """Resolve the service and rollout of a request. Raises `NotFound`.

    A service that is named must exist. `model` selects a service if it is the name of one; often it is a path of the
    client's own. Otherwise the default is the only registered service of `kinds`. Built-in services are a default only
    if there is no `model`. Verifiers always exist, so they must be named.
    """
    said = parse_target(request, TargetParams)
    services = {each.name: each for each in await _list_services(request, said.service)}
    named = said.service or (model if model in services else None)
    if named is None:
        service = _default_service(services, kinds, model)
    elif named in services:
        service = services[named]
    else:
        raise _service_not_found(f"reward service {named!r} does not exist", services)
    return RewardTarget(service, said.task, said.trajectory, said.step, said.unscored)


def parse_target(request: Request, fields: type[ParamsT], *, in_query: bool = True) -> ParamsT:
    """Return the parameters of a request. The path has priority, then the query (if `in_query`), then headers."""
    query = request.query_params if in_query else {}
    found: dict[str, Any] = {}
    for name in fields.model_fields:
        given = request.path_params.get(name) or query.get(name) or request.headers.get(HEADER_PREFIX + name)
        if given:
            found[name] = given
    try:
        return fields.model_validate(found)
    except ValidationError as error:
        wrong: list[Any] = error.errors(include_url=False, include_input=False)
        raise validation_failed([{**each, "loc": ("query", *each["loc"])} for each in wrong]) from None


async def _list_services(request: Request, name: str | None) -> Sequence[ServiceEntry]:
    offered: ServiceDirectory = gateway_deps(request).service_directory
    return await offered.list_services(required=name)


def _default_service(services: Mapping[str, ServiceEntry], kinds: Sequence[str], model: str | None) -> ServiceEntry:
    candidates = _candidates_of(list(services.values()), kinds, any_kind=not model)
    if len(candidates) == 1:
        return candidates[0]
    what = "the request names no reward service, and none is the only suitable one"
    if model:
        why = "several registered services are suitable" if candidates else "no suitable service is registered"
        what = f"reward service {model[:MAX_SHOWN_MODEL]!r} does not exist, and {why}"
    raise _service_not_found(
        f"{what}. Name a service with the path prefix /reward-services/NAME",
        services,
        field="model" if model else "service",
    )


def _candidates_of(services: Sequence[ServiceEntry], kinds: Sequence[str], *, any_kind: bool) -> Sequence[ServiceEntry]:
    """Return the registered services of `kinds`. If none is and `any_kind`, return all of `kinds`, or all models."""
    models = [each for each in services if each.kind not in VERIFIERS]
    fitting = [each for each in models if each.kind in kinds]
    registered = [each for each in fitting if each.is_registered]
    return registered or (fitting or models if any_kind else [])


def _service_not_found(problem: str, services: Mapping[str, ServiceEntry], *, field: str = "service") -> NotFound:
    message = (
        f"{problem}. Available: {', '.join(sorted(services)) or 'none'}. Register one with `tangram reward-services"
        " register`"
    )
    return NotFound(message, errors=[FieldError(field=field, message=message)])

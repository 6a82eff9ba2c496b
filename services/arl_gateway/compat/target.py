"""Which service a request means, and for which task and trajectory: by path, query, header or `model`.

Clients of these routes can set a URL and rarely more, so all of it may be in the URL:
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
"""Characters of a `model` that names nothing."""
ParamsT = TypeVar("ParamsT", bound=StrictModel)


@dataclass(frozen=True, slots=True)
class RewardTarget:
    """A service that there is, and whose the request is."""

    service: ServiceEntry
    task: str
    trajectory: str | None
    step: int | None
    unscored: float | None = None
    """The number of an item that its own text keeps from being scored; None is none."""


class RolloutRef(StrictModel):
    """Of which rollout a request is."""

    trajectory: Name | None = None
    step: int | None = Field(default=None, ge=0, le=2**31 - 1)


class TargetParams(RolloutRef):
    service: ServiceName | None = None
    task: Name = "score"
    unscored: float | None = Field(default=None, allow_inf_nan=False)


async def resolve_target(request: Request, kinds: Sequence[str], *, model: str | None = None) -> RewardTarget:
    """A service that is named has to be there. A `model` may be one's name; often it is a path of the client's own.

    Where nothing names one it is the only one of `kinds` that was registered. Those that come along do only where there
    is no `model` either; verifiers are always there, and so have to be named. Raises `NotFound`.
    """
    said = parse_target(request, TargetParams)
    services = {each.name: each for each in await _list_services(request, said.service)}
    named = said.service or (model if model in services else None)
    if named is None:
        service = _default_service(services, kinds, model)
    elif named in services:
        service = services[named]
    else:
        raise _service_not_found(f"there is no reward service {named!r}", services)
    return RewardTarget(service, said.task, said.trajectory, said.step, said.unscored)


def parse_target(request: Request, fields: type[ParamsT], *, in_query: bool = True) -> ParamsT:
    """What is said beside the body: the path says most, then the query, unless that is another's, then headers."""
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
    what = "no reward service is named, and there is not just one that would do"
    if model:
        why = "several that were registered would do" if candidates else "none that would do was registered"
        what = f"there is no reward service {model[:MAX_SHOWN_MODEL]!r}, and {why}"
    raise _service_not_found(
        f"{what}; name it in the path, /reward-services/NAME/…", services, field="model" if model else "service"
    )


def _candidates_of(services: Sequence[ServiceEntry], kinds: Sequence[str], *, any_kind: bool) -> Sequence[ServiceEntry]:
    """Those that were registered, of `kinds`; else, if any will do, those of `kinds`, or any."""
    models = [each for each in services if each.kind not in VERIFIERS]
    fitting = [each for each in models if each.kind in kinds]
    registered = [each for each in fitting if each.is_registered]
    return registered or (fitting or models if any_kind else [])


def _service_not_found(problem: str, services: Mapping[str, ServiceEntry], *, field: str = "service") -> NotFound:
    message = f"{problem}; there is {', '.join(sorted(services)) or 'none'}"
    return NotFound(message, errors=[FieldError(field=field, message=message)])

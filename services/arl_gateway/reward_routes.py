"""The public API of reward services. A route parses, calls and returns."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from arl_gateway.rewards import Rewards
from arl_gateway.routes import ANY, BODY, JSON_BODY, AdminWriter, Reader
from arl_kit.app import documented
from arl_wire.errors import Conflict, NotFound
from arl_wire.scores import ServiceName
from arl_wire.services import RegisterService, RewardService, RewardServiceList, ServiceVerb

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["services"])


async def _rewards(request: Request) -> Rewards:
    rewards: Rewards = request.app.state.rewards
    return rewards


RewardsDep = Annotated[Rewards, Depends(_rewards)]


@router.get("/services", operation_id="list_services", response_model_exclude_none=True, responses=documented(*ANY))
async def list_services(caller: Reader, rewards: RewardsDep) -> RewardServiceList:
    """The reward services that nodes offer, with where their weights are and what they do.

    What they are made of is shown to keys of project `default` with `admin:read`.
    """
    return await rewards.list(caller)


@router.get(
    "/services/{name}",
    operation_id="get_service",
    response_model_exclude_none=True,
    responses=documented(*ANY, NotFound),
)
async def get_service(name: ServiceName, caller: Reader, rewards: RewardsDep) -> RewardService:
    """One reward service."""
    return await rewards.get(name, caller)


@router.post(
    "/services",
    status_code=201,
    operation_id="register_service",
    response_model_exclude_none=True,
    dependencies=JSON_BODY,
    responses=documented(*ANY, *BODY, Conflict),
)
async def register_service(body: RegisterService, caller: AdminWriter, rewards: RewardsDep) -> RewardService:
    """Offer a model on every node that has its files. Needs a key of project `default`."""
    return await rewards.register(body, caller)


@router.post(
    "/services/{name}/{verb}",
    operation_id="change_service",
    response_model_exclude_none=True,
    responses=documented(*ANY, NotFound),
)
async def change_service(
    name: ServiceName, verb: ServiceVerb, caller: AdminWriter, rewards: RewardsDep
) -> RewardService:
    """Load, pin, unpin, drain or resume it. Nodes obey at their next poll: within a second, or 8 where they idle.

    Needs a key of project `default`.
    """
    return await rewards.change(name, verb, caller)


@router.delete(
    "/services/{name}", status_code=204, operation_id="remove_service", responses=documented(*ANY, Conflict, NotFound)
)
async def remove_service(name: ServiceName, caller: AdminWriter, rewards: RewardsDep) -> None:
    """Take a registered service back. Refused while actions wait for it. Needs a key of project `default`."""
    await rewards.remove(name, caller)

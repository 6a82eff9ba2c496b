"""Routes of reward services. A route parses, calls and returns."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, JSON_BODY, AdminWriter, Reader
from arl_gateway.reward_services.service import RewardServiceAdmin
from arl_kit.app import error_responses
from arl_kit.optional_nulls import OptionalNullRoute
from arl_wire.errors import Conflict, NotFound
from arl_wire.reward_services.service import (
    RegisterRewardServiceRequest,
    RewardService,
    RewardServiceListResponse,
    ServiceOperation,
)
from arl_wire.scores import ServiceName

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["reward-services"], route_class=OptionalNullRoute)


async def _reward_services(request: Request) -> RewardServiceAdmin:
    rewards: RewardServiceAdmin = gateway_deps(request).reward_services
    return rewards


RewardServicesDep = Annotated[RewardServiceAdmin, Depends(_reward_services)]


@router.get(
    "/reward-services",
    operation_id="list_reward_services",
    summary="List reward services",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS),
)
async def list_reward_services(caller: Reader, reward_services: RewardServicesDep) -> RewardServiceListResponse:
    """List the reward services, with the location of their weights and their activity.

    Their sources are shown only to keys of project `default` with `admin:read`.
    """
    return await reward_services.list(caller)


@router.get(
    "/reward-services/{name}",
    operation_id="get_reward_service",
    summary="Get a reward service",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def get_reward_service(name: ServiceName, caller: Reader, reward_services: RewardServicesDep) -> RewardService:
    """Return a reward service with its nodes. Returns 404 for an unknown name."""
    return await reward_services.get(name, caller)


@router.post(
    "/reward-services",
    status_code=201,
    operation_id="register_reward_service",
    summary="Register a reward service",
    response_model_exclude_none=True,
    dependencies=JSON_BODY,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, Conflict),
)
async def register_reward_service(
    body: RegisterRewardServiceRequest, caller: AdminWriter, reward_services: RewardServicesDep
) -> RewardService:
    """Register a model on every node that has its files.

    Requires a key of project `default`. Returns 409 if the name is taken.
    """
    return await reward_services.register(body, caller)


@router.post(
    "/reward-services/{name}/{verb}",
    operation_id="change_reward_service",
    summary="Change a reward service",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def change_reward_service(
    name: ServiceName, verb: ServiceOperation, caller: AdminWriter, reward_services: RewardServicesDep
) -> RewardService:
    """Load, pin, unpin, drain or resume a reward service.

    Nodes apply the change at their next poll, within 1 s, or 8 s if idle. Requires a key of project `default`. Returns
    404 for an unknown name.
    """
    return await reward_services.change(name, verb, caller)


@router.delete(
    "/reward-services/{name}",
    status_code=204,
    operation_id="unregister_reward_service",
    summary="Unregister a reward service",
    responses=error_responses(*COMMON_ERRORS, Conflict, NotFound),
)
async def unregister_reward_service(name: ServiceName, caller: AdminWriter, reward_services: RewardServicesDep) -> None:
    """Unregister a reward service.

    Returns 409 while actions are queued for it or if it is built-in. Requires a key of project `default`.
    """
    await reward_services.remove(name, caller)

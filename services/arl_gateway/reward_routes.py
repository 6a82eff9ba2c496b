"""The public API of reward services. A route parses, calls and returns."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from arl_gateway.rewards import Rewards
from arl_gateway.routes import ANY, Reader
from arl_kit.app import documented
from arl_wire.errors import NotFound
from arl_wire.scores import ServiceName
from arl_wire.services import RewardService, RewardServiceList

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["services"])


async def _rewards(request: Request) -> Rewards:
    rewards: Rewards = request.app.state.rewards
    return rewards


RewardsDep = Annotated[Rewards, Depends(_rewards)]


@router.get("/services", operation_id="list_services", responses=documented(*ANY))
async def list_services(caller: Reader, rewards: RewardsDep) -> RewardServiceList:
    """The reward services that nodes offer, with where their weights are and what they do."""
    return await rewards.list()


@router.get("/services/{name}", operation_id="get_service", responses=documented(*ANY, NotFound))
async def get_service(name: ServiceName, caller: Reader, rewards: RewardsDep) -> RewardService:
    """One reward service."""
    return await rewards.get(name)

"""The public API of what the scheduler foresees and finds: plans and stragglers. A route parses, calls and returns."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from arl_gateway.admin.scheduler_reports import CapacityService, StragglerService
from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import COMMON_ERRORS, Admin
from arl_kit.app import error_responses
from arl_wire.actions.explanations import StragglerListResponse
from arl_wire.admin.capacity import CapacityPlan, CapacityPlanQuery
from arl_wire.errors import Conflict

__all__ = ["router"]

router = APIRouter(prefix="/v1/admin", tags=["admin"])


async def _capacity(request: Request) -> CapacityService:
    plans: CapacityService = gateway_deps(request).capacity
    return plans


async def _stragglers(request: Request) -> StragglerService:
    stragglers: StragglerService = gateway_deps(request).stragglers
    return stragglers


@router.get(
    "/capacity",
    operation_id="plan_capacity",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, Conflict),
)
async def plan_capacity(
    question: Annotated[CapacityPlanQuery, Query()],
    caller: Admin,
    capacity: Annotated[CapacityService, Depends(_capacity)],
) -> CapacityPlan:
    """How long what waits now would wait, with other nodes or more actions and without. Nothing of it is done.

    503 while no scheduler leads or another plan is being made; 409 under static provisioning, whose pods are held for
    as long as their trajectories last.
    """
    return await capacity.plan(question)


@router.get(
    "/stragglers",
    operation_id="list_stragglers",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS),
)
async def list_stragglers(
    caller: Admin, stragglers: Annotated[StragglerService, Depends(_stragglers)]
) -> StragglerListResponse:
    """Actions that run far longer than others of their class; where they may be resized they get cores first.

    As of the scheduler's last poll, a second ago at most. 503 while no scheduler leads.
    """
    return await stragglers.list(caller)

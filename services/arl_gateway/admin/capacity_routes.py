"""Routes of capacity plans, the backlog and stragglers. A route parses, calls and returns."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from arl_gateway.admin.scheduler_reports import CapacityService, StragglerService
from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import COMMON_ERRORS, Admin, RootAdmin
from arl_kit.app import error_responses
from arl_wire.actions.explanations import StragglerListResponse
from arl_wire.admin.capacity import BacklogResponse, CapacityPlan, CapacityPlanQuery
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
    summary="Forecast queueing delays",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, Conflict),
)
async def plan_capacity(
    question: Annotated[CapacityPlanQuery, Query()],
    caller: RootAdmin,
    capacity: Annotated[CapacityService, Depends(_capacity)],
) -> CapacityPlan:
    """Forecast the queueing delay of queued actions, with and without other nodes or more actions.

    Nothing is changed. Requires a key of project `default`, because the forecast covers all projects.

    Returns 503 while no scheduler leads or while another plan is computed. Returns 409 under static provisioning,
    where trajectories occupy their pods until they end.
    """
    return await capacity.plan(question)


@router.get(
    "/backlog",
    operation_id="get_backlog",
    summary="Get the backlog",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS),
)
async def get_backlog(caller: RootAdmin, capacity: Annotated[CapacityService, Depends(_capacity)]) -> BacklogResponse:
    """Get the actions and core-seconds that wait for nodes of each kind, and what runs.

    Requires a key of project `default`, because the backlog covers all projects. Returns 503 while no scheduler leads.
    """
    return await capacity.backlog()


@router.get(
    "/stragglers",
    operation_id="list_stragglers",
    summary="List stragglers",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS),
)
async def list_stragglers(
    caller: Admin, stragglers: Annotated[StragglerService, Depends(_stragglers)]
) -> StragglerListResponse:
    """List actions of the project that run far longer than others of their class.

    The data are from the scheduler's last poll, at most a second ago. Returns 503 while no scheduler leads.
    """
    return await stragglers.list(caller)

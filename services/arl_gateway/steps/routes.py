"""Routes of training steps. A route parses, calls and returns."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import COMMON_ERRORS, Reader, Writer
from arl_gateway.steps.service import StepService
from arl_kit.app import error_responses
from arl_wire.actions.action import Name
from arl_wire.errors import NotFound
from arl_wire.steps import StepReport

__all__ = ["router"]

router = APIRouter(prefix="/v1/tasks", tags=["steps"])


async def _steps(request: Request) -> StepService:
    steps: StepService = gateway_deps(request).steps
    return steps


StepsDep = Annotated[StepService, Depends(_steps)]
StepNumber = Annotated[int, Path(ge=0, le=2**31 - 1, description="Number of the training step")]


@router.post(
    "/{task:path}/steps/{step}:end",
    operation_id="end_step",
    summary="End a step",
    status_code=204,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def end_step(task: Name, step: StepNumber, caller: Writer, steps: StepsDep) -> None:
    """End a training step: its open trajectories count as ended, and the scheduler learns their lengths.

    Queued and running actions continue. A step also ends by itself with its last trajectory. Returns 404 if the task
    has no actions.
    """
    await steps.end(task, step, caller)


@router.get(
    "/{task:path}/steps/{step:name}",
    operation_id="get_step",
    summary="Get a step",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def get_step(task: Name, step: StepNumber, caller: Reader, steps: StepsDep) -> StepReport:
    """Return the trajectories of a training step, its projected end, and what its slowest trajectory waited for.

    Only actions with a `trajectory` and a `step` are counted. Returns 404 for an unknown task or step.
    """
    return await steps.report(task, step, caller)

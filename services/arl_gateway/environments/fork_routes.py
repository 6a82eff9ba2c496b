"""Route of forks. A route parses, calls and returns."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request

from arl_gateway.actions.submit_routes import SUBMIT_ERRORS
from arl_gateway.deps import gateway_deps
from arl_gateway.environments.forks import ForkService
from arl_gateway.http.dependencies import COMMON_ERRORS, JSON_BODY, IdempotencyKey, Writer, request_trace
from arl_kit.app import error_responses
from arl_kit.optional_nulls import OptionalNullRoute
from arl_wire.environments.forks import ForkEnvironmentRequest, ForkEnvironmentResponse

__all__ = ["router"]

router = APIRouter(prefix="/v1/environments", tags=["environments"], route_class=OptionalNullRoute)

ForkWait = Annotated[
    float, Query(ge=0, le=600, description="Maximum seconds to wait for all forks after the files were saved")
]


async def _forks(request: Request) -> ForkService:
    return gateway_deps(request).forks


ForksDep = Annotated[ForkService, Depends(_forks)]


@router.post(
    "/{id}:fork",
    operation_id="fork_environment",
    summary="Fork an environment",
    dependencies=JSON_BODY,
    status_code=201,
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, *SUBMIT_ERRORS),
)
async def fork_environment(
    id: UUID,
    body: ForkEnvironmentRequest,
    caller: Writer,
    forks: ForksDep,
    request: Request,
    wait: ForkWait = 55,
    idempotency_key: IdempotencyKey = None,
) -> ForkEnvironmentResponse:
    """Create environments with the files of this one, in order with its actions. Processes are not copied.

    The source is frozen while its files are saved, and continues afterwards. Returns 404 for an unknown environment,
    and 409 if it is not alive. Returns 503 if not all forks exist within `wait`; then none of them remains.
    """
    return await forks.fork(id, body, caller, key=idempotency_key, trace=request_trace(request), wait_s=wait)

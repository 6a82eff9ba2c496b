"""Blocking scores: the result is returned in the same request. Concurrent requests are scored in one action."""

from fastapi import APIRouter, Request, Response

from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, Writer, WriterRoute, model_response, request_trace
from arl_gateway.reward_services.score_coalescer import ScoreCoalescer, ScoreSubmission
from arl_gateway.reward_services.service_directory import ServiceDirectory
from arl_kit.app import error_responses
from arl_kit.internal_api import cancel_on_disconnect
from arl_wire.errors import RewardServiceNotFound, Unavailable
from arl_wire.reward_services.kinds import UNBATCHED_KINDS
from arl_wire.reward_services.service import ScoreRequest, ScoreResponse

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["reward-services"], route_class=WriterRoute)


@router.post(
    "/scores",
    operation_id="score_items",
    summary="Score items",
    response_model=ScoreResponse,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, RewardServiceNotFound),
)
async def score_items(body: ScoreRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Score items and wait for the result.

    Concurrent calls of one task are combined into one durable action. Returns 503 on an infrastructure error or
    timeout; a score that was not computed is never reported as 0.
    """
    scores: ScoreCoalescer = gateway_deps(request).scores
    offered: ServiceDirectory = gateway_deps(request).service_directory
    service = next((each for each in await offered.list_services() if each.name == body.service), None)
    ask = ScoreSubmission(
        service=body.service,
        items=body.items,
        task=body.task,
        trajectory=body.trajectory,
        step=body.step,
        priority=body.priority,
        within_s=body.within_s,
        unbatched=service is not None and service.kind in UNBATCHED_KINDS,
    )
    try:
        scored = await cancel_on_disconnect(request, scores.score(ask, caller, request_trace(request)))
    except Unavailable as error:
        if service is None or service.is_anywhere:
            raise
        message = (
            f"{error.detail}. No node has reward service {body.service!r}; `tangram reward-services list` shows the"
            " reason"
        )
        raise Unavailable(message, retry_after_s=error.retry_after_s) from None
    return model_response(
        ScoreResponse(action=scored.action, first=scored.first, scores=list(scored.entries)), response
    )

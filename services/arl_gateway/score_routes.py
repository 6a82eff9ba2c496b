"""Scores for whoever waits for them in one request. What is asked for meanwhile is scored together."""

from fastapi import APIRouter, Request, Response

from arl_gateway.offered import Offered
from arl_gateway.routes import ANY, BODY, Writer, WriterRoute, trace_of, written
from arl_gateway.scores import Ask, Scores
from arl_kit.app import documented
from arl_kit.hops import unless_gone
from arl_wire.errors import ServiceUnknown, Unavailable
from arl_wire.kinds import ALONE
from arl_wire.scoring import ScoreAnswer, ScoreRequest

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["services"], route_class=WriterRoute)


@router.post(
    "/scores",
    operation_id="score_items",
    response_model=ScoreAnswer,
    responses=documented(*ANY, *BODY, ServiceUnknown),
)
async def score_items(body: ScoreRequest, caller: Writer, request: Request, response: Response) -> Response:
    """Score items and wait for it. Several calls of one task go together as one action, which says whose each is.

    Durable before anything is scored. Where nothing came of it by our fault or in time it is 503; nothing is a 0 that
    was not computed.
    """
    scores: Scores = request.app.state.scores
    offered: Offered = request.app.state.offered
    service = next((each for each in await offered.services() if each.name == body.service), None)
    ask = Ask(
        service=body.service,
        items=body.items,
        task=body.task,
        trajectory=body.trajectory,
        step=body.step,
        priority=body.priority,
        within_s=body.within_s,
        alone=service is not None and service.kind in ALONE,
    )
    try:
        scored = await unless_gone(request, scores.score(ask, caller, trace_of(request)))
    except Unavailable as error:
        if service is None or service.is_anywhere:
            raise
        message = f"{error.detail}: no node has {body.service}, and `tangram services list` says why"
        raise Unavailable(message, retry_after_s=error.retry_after_s) from None
    return written(ScoreAnswer(action=scored.action, first=scored.first, scores=list(scored.entries)), response)

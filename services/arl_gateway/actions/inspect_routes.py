"""Routes of traces and explanations. A route parses, calls and returns."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Request

from arl_gateway.actions.explanations import ExplanationService
from arl_gateway.actions.traces import TraceService
from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import COMMON_ERRORS, Reader
from arl_kit.app import error_responses
from arl_wire.actions.explanations import ActionExplanation
from arl_wire.actions.traces import ActionTrace
from arl_wire.errors import NotFound

__all__ = ["explain_router", "trace_router"]


trace_router = APIRouter(prefix="/v1/actions", tags=["actions"])


async def _traces(request: Request) -> TraceService:
    traces: TraceService = gateway_deps(request).traces
    return traces


@trace_router.get(
    "/{id}/trace",
    operation_id="get_trace",
    summary="Get the trace of an action",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def get_trace(id: UUID, caller: Reader, traces: Annotated[TraceService, Depends(_traces)]) -> ActionTrace:
    """Return the timeline of an action in any state: queueing, every attempt, run and settling.

    Start and end times are the timestamps of its rows. A configured collector receives the same spans. Returns 404 for
    an unknown id.
    """
    return await traces.get(id, caller)


explain_router = APIRouter(prefix="/v1/actions", tags=["actions"])


async def _explanations(request: Request) -> ExplanationService:
    explanations: ExplanationService = gateway_deps(request).explanations
    return explanations


@explain_router.get(
    "/{id}/explain",
    operation_id="explain_action",
    summary="Explain an action",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def explain_action(
    id: UUID, caller: Reader, explanations: Annotated[ExplanationService, Depends(_explanations)]
) -> ActionExplanation:
    """Explain why a queued action waits: missing resources, actions ahead of it, estimates and the deciding rule.

    For any other action, the response has its allocation and timestamps. Returns 503 while the scheduler cannot answer.
    """
    return await explanations.get(id, caller)

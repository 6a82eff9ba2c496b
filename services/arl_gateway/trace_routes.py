"""The public API of traces. A route parses, calls and returns."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Request

from arl_gateway.routes import COMMON_ERRORS, Reader
from arl_gateway.traces import TraceService
from arl_kit.app import error_responses
from arl_wire.errors import NotFound
from arl_wire.traces import ActionTrace

__all__ = ["trace_router"]

trace_router = APIRouter(prefix="/v1/actions", tags=["actions"])


async def _traces(request: Request) -> TraceService:
    traces: TraceService = request.app.state.traces
    return traces


@trace_router.get(
    "/{id}/trace",
    operation_id="get_trace",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def get_trace(id: UUID, caller: Reader, traces: Annotated[TraceService, Depends(_traces)]) -> ActionTrace:
    """Where an action's time went: its waiting, every attempt, its run and its settling, in any state.

    Ends are the timestamps of its rows. These are the spans that are exported where a collector is configured.
    """
    return await traces.get(id, caller)

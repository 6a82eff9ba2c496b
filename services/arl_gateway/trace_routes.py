"""The public API of traces. A route parses, calls and returns."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Request

from arl_gateway.routes import ANY, Reader
from arl_gateway.traces import Traces
from arl_kit.app import documented
from arl_wire.errors import NotFound
from arl_wire.traces import ActionTrace

__all__ = ["router"]

router = APIRouter(prefix="/v1/actions", tags=["actions"])


async def _traces(request: Request) -> Traces:
    traces: Traces = request.app.state.traces
    return traces


@router.get(
    "/{id}/trace",
    operation_id="get_trace",
    response_model_exclude_none=True,
    responses=documented(*ANY, NotFound),
)
async def get_trace(id: UUID, caller: Reader, traces: Annotated[Traces, Depends(_traces)]) -> ActionTrace:
    """Where an action's time went: its waiting, every attempt, its run and its settling, in any state.

    Ends are the timestamps of its rows. These are the spans that are exported where a collector is configured.
    """
    return await traces.get(id, caller)

"""The public API of explanations. A route parses, calls and returns."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Request

from arl_gateway.explanations import ExplanationService
from arl_gateway.routes import COMMON_ERRORS, Reader
from arl_kit.app import error_responses
from arl_wire.errors import NotFound
from arl_wire.explain import ActionExplanation

__all__ = ["explain_router"]

explain_router = APIRouter(prefix="/v1/actions", tags=["actions"])


async def _explanations(request: Request) -> ExplanationService:
    explanations: ExplanationService = request.app.state.explanations
    return explanations


@explain_router.get(
    "/{id}/explain",
    operation_id="explain_action",
    response_model_exclude_none=True,
    responses=error_responses(*COMMON_ERRORS, NotFound),
)
async def explain_action(
    id: UUID, caller: Reader, explanations: Annotated[ExplanationService, Depends(_explanations)]
) -> ActionExplanation:
    """Why a queued action waits: what it lacks, how many go first, what is expected of it, and the rule that decides.

    Of any other action: what it holds or held, and when. 503 while the scheduler can't say.
    """
    return await explanations.get(id, caller)

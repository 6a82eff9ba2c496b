"""Submission of several actions in one request, and waiting for several actions."""

from typing import Literal
from uuid import UUID

from pydantic import BaseModel, Field

from arl_wire.actions.action import Action, SubmitActionRequest
from arl_wire.errors import ProblemDetails
from arl_wire.validation import StrictModel

__all__ = [
    "GANG_DESCRIPTION",
    "MAX_GANG_SIZE",
    "BatchItemResult",
    "SubmitBatchRequest",
    "SubmitBatchResponse",
    "WaitRequest",
    "WaitResponse",
]

MAX_GANG_SIZE = 256
GANG_DESCRIPTION = (
    "True if all actions must start at the same time or not at all. A gang has 2 to 256 actions of kind `exec` with"
    " the same task and priority, each in a fresh environment. If one is refused, all are refused. While they are"
    " queued, a cancellation or a passed deadline of one ends all of them (`gang_cancelled`, `gang_deadline`). After"
    " the grant, each action is independent. If one grant is lost, even before its program starts, that action is"
    " queued again and starts alone while the others run. Programs that wait for each other therefore need their own"
    " time limit"
)


class SubmitBatchRequest(StrictModel):
    """A batch of up to 1000 actions. Each is accepted or refused independently."""

    actions: list[SubmitActionRequest] = Field(min_length=1, max_length=1000)
    gang: bool = Field(default=False, description=GANG_DESCRIPTION)


class BatchItemResult(BaseModel):
    """The result of one item: either `id` or `problem`."""

    id: UUID | None = None
    problem: ProblemDetails | None = None


class SubmitBatchResponse(BaseModel):
    """The results in the order of the request."""

    items: list[BatchItemResult]


class WaitRequest(StrictModel):
    """A request to wait until any or all of these actions are settled."""

    ids: list[UUID] = Field(min_length=1, max_length=1000)
    until: Literal["any", "all"] = "all"
    timeout_s: float = Field(default=30, ge=0, le=55, allow_inf_nan=False)


class WaitResponse(BaseModel):
    """The settled actions with results. `pending` are not settled yet; `unknown` ids are not in your project."""

    settled: list[Action]
    pending: list[UUID]
    unknown: list[UUID] = Field(default_factory=list)

"""Submission of several actions in one request."""

from uuid import UUID

from pydantic import BaseModel, Field

from arl_wire.actions.action import SubmitActionRequest
from arl_wire.errors import ProblemDetails
from arl_wire.validation import StrictModel

__all__ = ["GANG_DESCRIPTION", "MAX_GANG_SIZE", "BatchItemResult", "SubmitBatchRequest", "SubmitBatchResponse"]

MAX_GANG_SIZE = 256
GANG_DESCRIPTION = (
    "All of them start in one moment, or none does: 2 to 256 actions of kind `exec`, of one task and priority, each in"
    " a fresh environment. They are also refused together; and while they wait, one that is cancelled or whose deadline"
    " passes takes the others with it (`gang_cancelled`, `gang_deadline`). Granted, each goes its own way: one whose"
    " grant is lost, even before its program starts, is queued again and starts by itself, as late as any other, while"
    " the others run; programs that wait for each other need a time limit of their own"
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

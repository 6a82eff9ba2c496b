"""An action's life as clients see it: the same spans that are exported."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, Field

from arl_core.domain.states import ActionOutcome, ActionState

__all__ = ["ActionTrace", "SpanName", "TraceSpan"]

SpanName = Literal[
    "create action",
    "queue wait",
    "grant",
    "process action",
    "device wait",
    "wake engine",
    "batch",
    "restore weights",
    "completion",
    "endpoint wait",
    "request",
    "settle",
]


class TraceSpan(BaseModel):
    """Something that took its time.

    Waits, grants, attempts and `settle` hang on `create action`. On the `process action` of a score that settled hangs
    what its node did: `device wait`, then `batch` after `batch`, with `restore weights` where the service's weights had
    to come onto the device first; of a judge `wake engine`, and a `completion` for each item. Of more than 64 of these
    the first are here and the last.
    """

    name: SpanName
    kind: Literal["internal", "producer", "consumer"]
    span_id: str = Field(description="16 hexadecimal digits, as in an exported span")
    parent_span_id: str | None = Field(
        default=None, description="Of `create action`: the client's span, if it sent one"
    )
    attempt: int | None = Field(default=None, description="The grant_no that it belongs to")
    begun_at: datetime
    ended_at: datetime | None = Field(default=None, description="Absent while it lasts")
    offset_ms: float = Field(description="Since the action was created")
    duration_ms: float | None = None
    error: str | None = Field(default=None, description="The reason, where it is one of an error")
    attributes: dict[str, str] = Field(default_factory=dict)


class ActionTrace(BaseModel):
    """The waterfall of an action, from its rows: no tracing back end has any part in it."""

    id: UUID
    trace_id: str = Field(description="32 hexadecimal digits; the client's, if it sent a traceparent")
    state: ActionState
    outcome: ActionOutcome | None = None
    duration_ms: float | None = Field(default=None, description="Of the whole; absent while it is not settled")
    spans: list[TraceSpan] = Field(description="`create action` first, then in order of their beginning")

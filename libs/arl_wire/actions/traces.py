"""Timeline of an action for clients: the same spans as the exported ones."""

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
    """A timed span of an action.

    Queue waits, grants, attempts and `settle` are children of `create action`. The `process action` span of a settled
    score has children that its node recorded: `device wait`, then each `batch`, with `restore weights` if the service's
    weights had to be copied to the device first. A judge has `wake engine`, and a `completion` for each item. If there
    are more than 64 of these spans, only the first ones and the last one are included.
    """

    name: SpanName
    kind: Literal["internal", "producer", "consumer"]
    span_id: str = Field(description="16 hexadecimal digits, as in an exported span")
    parent_span_id: str | None = Field(
        default=None,
        description="Id of the parent span. For `create action`, it is the client's span, if the client sent one",
    )
    attempt: int | None = Field(
        default=None, description="Grant number (`grant_no`) of the attempt to which the span belongs"
    )
    started_at: datetime
    ended_at: datetime | None = Field(default=None, description="End of the span. Absent while it is open")
    offset_ms: float = Field(description="Milliseconds from the creation of the action to the start of the span")
    duration_ms: float | None = None
    error: str | None = Field(default=None, description="Reason of the failure. Present only if the span failed")
    attributes: dict[str, str] = Field(default_factory=dict)


class ActionTrace(BaseModel):
    """The waterfall of an action, computed from database rows; it needs no tracing backend."""

    id: UUID
    trace_id: str = Field(description="32 hexadecimal digits; the client's trace id if it sent a `traceparent` header")
    state: ActionState
    outcome: ActionOutcome | None = None
    duration_ms: float | None = Field(
        default=None, description="Milliseconds from the creation of the action until it settled. Absent until then"
    )
    spans: list[TraceSpan] = Field(description="Spans in order of their start; the first is `create action`")

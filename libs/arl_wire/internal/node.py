"""Requests to node managers and their responses. They may change with any version."""

from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "CriticalChangeBatchRequest",
    "CriticalChangePayload",
    "GrantBatchRequest",
    "GrantPayload",
    "OutputPortion",
    "ReadOutputRequest",
    "ReadOutputResponse",
    "ResizeBatchRequest",
    "ResizeBatchResponse",
    "ResizePayload",
    "ResizeResult",
    "WriteInputRequest",
    "WriteInputResponse",
]


class GrantPayload(BaseModel):
    """A granted row: the fence of the attempt, its amounts and its environment."""

    id: UUID
    grant_no: int
    amounts: dict[str, int]
    environment_id: UUID | None = None
    amounts_seq: int = 0
    expected_cpu_s: float | None = None
    """CPU-seconds that the action is expected to use; only for shared cores. Rows do not have it."""
    is_critical: bool = False
    """True if its trajectory is expected to end its step last: the node gives it a greater share of the cores."""


class GrantBatchRequest(BaseModel):
    """The grants of a round for one manager. They arrive faster than by polling the rows."""

    node_epoch: UUID
    grants: list[GrantPayload]


class CriticalChangePayload(BaseModel):
    """A running action whose trajectory became critical, or is no longer critical."""

    id: UUID
    grant_no: int
    is_critical: bool


class CriticalChangeBatchRequest(BaseModel):
    """The changed actions of one manager. A lost request only makes the actions slower or faster than intended."""

    node_epoch: UUID
    changes: list[CriticalChangePayload]


class ResizePayload(BaseModel):
    """A new number of cores for a running action.

    The request changes the action only if `amounts_seq` is higher than before. Otherwise it only returns the current
    amounts.
    """

    id: UUID
    grant_no: int
    cpu_milli: int = Field(ge=1)
    amounts_seq: int = Field(ge=0)


class ResizeBatchRequest(BaseModel):
    """The resizes of a round for one manager."""

    node_epoch: UUID
    resizes: list[ResizePayload]


class ResizeResult(BaseModel):
    """The result of a resize.

    `done`: it is applied, and the resources of a shrink are free. `stale`: another resize came first. `full`: growth
    beyond the free amount; the amounts are unchanged. `absent`: this fence does not run here, or is ending.
    """

    id: UUID
    grant_no: int
    status: Literal["done", "stale", "full", "absent"]
    cpu_milli: int | None = None
    """Current milli-cores of the action; None if it is absent."""
    amounts_seq: int | None = None
    """Resize that set these amounts; 0 for the grant."""
    free_cpu_milli: int
    """Free milli-cores of the node."""


class ResizeBatchResponse(BaseModel):
    """The results in the order of the request, sent after all resizes are applied."""

    answers: list[ResizeResult]


class ReadOutputRequest(BaseModel):
    """A request for the output of an attempt beyond these offsets. The response is sent as soon as there is more
    output.
    """

    id: UUID
    grant_no: int
    stdout: int
    stderr: int


class _Base64Model(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class OutputPortion(_Base64Model):
    """The next part of a stream beyond the requested offset."""

    data: bytes = b""
    kept_bytes: int = 0
    total_bytes: int = 0


class ReadOutputResponse(BaseModel):
    """The output of an attempt.

    `ended`: the attempt is over, and its row soon has all results. `absent`: the attempt does not run here, or not yet.
    """

    status: Literal["running", "ended", "absent"]
    stdout: OutputPortion = OutputPortion()
    stderr: OutputPortion = OutputPortion()


class WriteInputRequest(_Base64Model):
    """Bytes for the standard input of an attempt."""

    id: UUID
    grant_no: int
    data: bytes
    offset: int | None
    end: bool


class WriteInputResponse(BaseModel):
    """The result of writing input.

    `gap`: bytes before that offset are missing. `unopened`: the action was not submitted with `stdin_open`.
    """

    status: Literal["taken", "absent", "unopened", "closed", "full", "gap"]
    offset: int = 0
    """Number of bytes accepted so far."""

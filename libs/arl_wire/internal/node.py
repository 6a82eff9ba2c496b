"""Bodies that node managers receive and answer. They may change with any version."""

from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
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
    id: UUID
    grant_no: int
    amounts: dict[str, int]
    environment_id: UUID | None = None
    amounts_seq: int = 0


class GrantBatchRequest(BaseModel):
    """A faster copy of the rows: one a round and manager."""

    node_epoch: UUID
    grants: list[GrantPayload]


class ResizePayload(BaseModel):
    """New cores for a running action. Only one with a higher `amounts_seq` than the last changes anything.

    Any other asks what it has.
    """

    id: UUID
    grant_no: int
    cpu_milli: int = Field(ge=1)
    amounts_seq: int = Field(ge=0)


class ResizeBatchRequest(BaseModel):
    node_epoch: UUID
    resizes: list[ResizePayload]


class ResizeResult(BaseModel):
    """What became of one resize.

    `done`: it holds, and what a shrink gave back is free. `stale`: another one came before. `full`: a growth beyond
    what is free; it has what it had. `absent`: this fence does not run here, or is being ended.
    """

    id: UUID
    grant_no: int
    status: Literal["done", "stale", "full", "absent"]
    cpu_milli: int | None = None
    """What the action has now; None where it is absent."""
    amounts_seq: int | None = None
    """The resize that this came from; 0 for the grant itself."""
    free_cpu_milli: int
    """Of the node, for others and for a growth."""


class ResizeBatchResponse(BaseModel):
    """In the order of the request, sent once all of it holds."""

    answers: list[ResizeResult]


class ReadOutputRequest(BaseModel):
    """What has this attempt written beyond these offsets? Answered as soon as there is something to say."""

    id: UUID
    grant_no: int
    stdout: int
    stderr: int


class _Base64Model(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class OutputPortion(_Base64Model):
    """Some of what a stream has beyond the offset that was asked for."""

    data: bytes = b""
    kept_bytes: int = 0
    total_bytes: int = 0


class ReadOutputResponse(BaseModel):
    """`ended`: the attempt is over, and its row soon says all. `absent`: it does not run here, or not yet."""

    status: Literal["running", "ended", "absent"]
    stdout: OutputPortion = OutputPortion()
    stderr: OutputPortion = OutputPortion()


class WriteInputRequest(_Base64Model):
    id: UUID
    grant_no: int
    data: bytes
    offset: int | None
    end: bool


class WriteInputResponse(BaseModel):
    """`gap`: bytes before that offset are missing. `unopened`: it was not submitted with `stdin_open`."""

    status: Literal["taken", "absent", "unopened", "closed", "full", "gap"]
    offset: int = 0
    """Bytes taken so far."""

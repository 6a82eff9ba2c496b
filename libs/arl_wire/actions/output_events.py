"""Output of a running action as events, and its input."""

from base64 import b64decode
from typing import Literal

from pydantic import BaseModel, Field, model_validator

from arl_core.domain.states import ActionOutcome, ActionState
from arl_wire.actions.action import Text
from arl_wire.validation import Base64, StrictModel

__all__ = [
    "MAX_INPUT_BYTES",
    "OutputChunk",
    "OutputEnd",
    "OutputRestart",
    "OutputTruncated",
    "SendInputRequest",
    "SendInputResponse",
]

MAX_INPUT_BYTES = 1 << 20
"""Maximum bytes of input that the program has not read yet."""


class OutputChunk(BaseModel):
    """The next bytes of a stream, as event `stdout` or `stderr`. Characters are never split."""

    offset: int = Field(description="Position of the first byte in its stream")
    text: str = Field(description="Bytes as UTF-8 text. Invalid bytes are written as \\xNN")
    base64: str | None = Field(
        default=None, description="The same bytes in base64. Present only if they are not valid UTF-8"
    )

    def content(self) -> bytes:
        """Return the bytes of the chunk."""
        return b64decode(self.base64) if self.base64 is not None else self.text.encode()


class OutputTruncated(BaseModel):
    """The event `truncated`: from here on, the bytes of the stream are counted but not stored."""

    stream: Literal["stdout", "stderr"]
    kept_bytes: int
    total_bytes: int = Field(description="Bytes of the stream so far; the event `end` has the final number")


class OutputRestart(BaseModel):
    """The event `restart`: another attempt began. Discard all earlier output; both streams begin at 0 again."""

    grant_no: int


class OutputEnd(BaseModel):
    """The event `end`, which comes last: the action has settled."""

    state: ActionState
    outcome: ActionOutcome
    reason: str | None = None
    message: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0


class SendInputRequest(StrictModel):
    """Bytes for the standard input of a running action, as `text` or as `base64`."""

    text: Text | None = Field(default=None, max_length=MAX_INPUT_BYTES)
    base64: Base64 | None = Field(default=None, description="Bytes in base64; replaces `text` and allows any bytes")
    offset: int | None = Field(
        default=None,
        ge=0,
        le=2**62,
        description="Number of bytes that were sent to this attempt before. Bytes that the attempt already has are"
        " ignored, so a request can be repeated safely. Absent: the bytes are appended to all earlier ones",
    )
    end: bool = Field(default=False, description="True if no bytes follow; the program then reads end of file")

    @model_validator(mode="after")
    def _check_size(self) -> "SendInputRequest":
        if self.text is not None and self.base64 is not None:
            raise ValueError("give only one of text and base64")
        if len(self.content()) > MAX_INPUT_BYTES:
            raise ValueError(f"more than {MAX_INPUT_BYTES} bytes: send the input in several requests")
        return self

    def content(self) -> bytes:
        """Return the bytes to write; empty if the request only closes the input."""
        return self.base64 if self.base64 is not None else (self.text or "").encode()


class SendInputResponse(BaseModel):
    """The accepted input. The program receives it as soon as it reads."""

    offset: int = Field(description="Bytes sent to this attempt so far; use it as `offset` of the next request")

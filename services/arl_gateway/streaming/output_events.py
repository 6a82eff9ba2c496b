"""Conversion of output chunks to server-sent events, whose ids are positions to resume from. No I/O."""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Literal, Self

from fastapi.sse import format_sse_event
from pydantic import BaseModel

from arl_wire.actions.action import Action, OutputStream
from arl_wire.actions.output_events import OutputChunk, OutputEnd, OutputRestart, OutputTruncated
from arl_wire.errors import BadRequest, FieldError

__all__ = ["OutputEvents", "StreamName", "stream_content"]

StreamName = Literal["stdout", "stderr"]


class OutputEvents:
    """The position of a client in an attempt's output.

    An offset above the kept bytes means that the client was informed of the truncation.
    """

    def __init__(self, grant_no: int = 0, stdout: int = 0, stderr: int = 0) -> None:
        self.grant_no = grant_no
        """Grant number of the attempt; 0 before the first."""
        self._sent: dict[StreamName, int] = {"stdout": stdout, "stderr": stderr}
        self._incomplete: dict[StreamName, bytes] = {"stdout": b"", "stderr": b""}
        """Bytes of an incomplete character, read and not yet sent."""

    @classmethod
    def resume_after(cls, event_id: str | None) -> Self:
        """Return the position after an event id. Raises `BadRequest`."""
        if not event_id:
            return cls()
        try:
            grant_no, stdout, stderr = (int(part) for part in event_id.split(":"))
            if min(grant_no, stdout, stderr) < 0:
                raise ValueError
        except ValueError:
            message = "is not the id of an event of this stream"
            raise BadRequest(
                f"Last-Event-ID {message}", errors=[FieldError(field="header.Last-Event-ID", message=message)]
            ) from None
        return cls(grant_no, stdout, stderr)

    def offset(self, stream: StreamName) -> int:
        """Return the offset from which to read more."""
        return self._sent[stream] + len(self._incomplete[stream])

    def start_attempt(self, grant_no: int) -> Iterator[bytes]:
        """Follow an attempt. If another attempt was followed, yield a `restart` event."""
        if self.grant_no not in (0, grant_no):
            self._sent = {"stdout": 0, "stderr": 0}
            self._incomplete = {"stdout": b"", "stderr": b""}
            self.grant_no = grant_no
            yield self._event("restart", OutputRestart(grant_no=grant_no))
        self.grant_no = grant_no

    def add_data(
        self, stream: StreamName, data: bytes, *, kept_bytes: int, total_bytes: int, is_complete: bool
    ) -> Iterator[bytes]:
        """Yield events for bytes from `offset` on. `is_complete` means that the stream will not grow."""
        is_cut = total_bytes > kept_bytes
        held = self._incomplete[stream] + data
        at_end = self._sent[stream] + len(held) >= kept_bytes and (is_complete or is_cut)
        whole = held if at_end else _complete_characters(held)
        self._incomplete[stream] = held[len(whole) :]
        if whole:
            chunk = _chunk(self._sent[stream], whole)
            self._sent[stream] += len(whole)
            yield self._event(stream, chunk)
        if is_cut and self._sent[stream] == kept_bytes:
            self._sent[stream] = total_bytes
            cut = OutputTruncated(stream=stream, kept_bytes=kept_bytes, total_bytes=total_bytes)
            yield self._event("truncated", cut)

    def end_event(self, action: Action) -> bytes:
        """Return the last event of a settled action."""
        if action.outcome is None:
            raise ValueError("the action has not settled")
        said = OutputEnd(state=action.state, outcome=action.outcome, reason=action.reason, message=action.message)
        if (result := action.result) is not None:
            streams = {"stdout_bytes": result.stdout.total_bytes, "stderr_bytes": result.stderr.total_bytes}
            said = said.model_copy(update={"exit_code": result.exit_code, "signal": result.signal, **streams})
        return self._event("end", said)

    def _event(self, name: str, data: BaseModel) -> bytes:
        at = f"{self.grant_no}:{self._sent['stdout']}:{self._sent['stderr']}"
        return format_sse_event(data_str=data.model_dump_json(exclude_none=True), event=name, id=at)


def stream_content(stream: OutputStream) -> bytes:
    """Return the bytes of a stream of a result."""
    if stream.base64 is not None:
        return b64decode(stream.base64)
    return stream.text.encode()


def _chunk(offset: int, data: bytes) -> OutputChunk:
    try:
        return OutputChunk(offset=offset, text=data.decode())
    except UnicodeDecodeError:
        text = data.decode(errors="backslashreplace")
        return OutputChunk(offset=offset, text=text, base64=b64encode(data).decode())


def _complete_characters(data: bytes) -> bytes:
    """Return the data without an incomplete UTF-8 character at the end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >> 6 == 0b10:
            continue
        length = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return data[:-back] if length > back else data
    return data

"""Streaming of output and input of running actions. A broken stream resumes after its last event."""

import asyncio
import codecs
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import httpx
from pydantic import BaseModel

from arl_tangram.operations import (
    RETRYABLE_STATUSES,
    Operation,
    RetryDelay,
    SdkRequest,
    SdkResponse,
    call_with_retry,
    error_from_response,
    get,
)
from arl_tangram.options import invalid_field
from arl_wire.actions.output_events import (
    OutputChunk,
    OutputEnd,
    OutputRestart,
    OutputTruncated,
    SendInputRequest,
    SendInputResponse,
)
from arl_wire.errors import NotRunning

__all__ = [
    "OutputData",
    "OutputDecoder",
    "OutputEvent",
    "OutputEventReader",
    "send_input",
    "stream_output",
    "stream_output_async",
]

_STREAMS: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
STREAM_TIMEOUT = httpx.Timeout(30.0, read=60.0)
"""Timeouts of a stream. The server sends data at least every 15 s."""
FIRST_RETRY_DELAY_S, MAX_RETRY_DELAY_S, MAX_POLL_DELAY_S = 0.1, 5.0, 1.0


@dataclass(frozen=True, slots=True)
class OutputData:
    """The next bytes of a stream."""

    stream: Literal["stdout", "stderr"]
    offset: int
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode(errors="backslashreplace")


OutputEvent = OutputData | OutputTruncated | OutputRestart | OutputEnd
_EVENT_TYPES: dict[str, type[OutputTruncated] | type[OutputRestart] | type[OutputEnd]] = {
    "truncated": OutputTruncated,
    "restart": OutputRestart,
    "end": OutputEnd,
}


class OutputDecoder:
    """A decoder of output to text. A character that is split between two events is not broken."""

    def __init__(self, stream: Literal["stdout", "stderr"] | None) -> None:
        if stream not in (None, *_STREAMS):
            raise invalid_field("stream", f"must be stdout, stderr or None, got {stream!r}")
        self._streams = _STREAMS if stream is None else (stream,)
        self._reset()

    def decode(self, event: OutputEvent) -> str:
        """Return the text of an event; empty if it has none or belongs to another stream.

        The end returns what is left of a character that was never completed. A new attempt starts afresh.
        """
        if isinstance(event, OutputRestart):
            self._reset()
        if isinstance(event, OutputEnd):
            return "".join(decoder.decode(b"", final=True) for decoder in self._decoders.values())
        if not isinstance(event, OutputData) or event.stream not in self._decoders:
            return ""
        return self._decoders[event.stream].decode(event.data)

    def _reset(self) -> None:
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("backslashreplace") for name in self._streams}


class OutputEventReader:
    """A parser that splits bytes into events and remembers the id of the last one."""

    def __init__(self) -> None:
        self.last_id: str | None = None
        self.ended = False
        self._buffer = b""

    def reset(self) -> None:
        """Discard a partial event before a new response. The server sends the event again."""
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[OutputEvent]:
        *blocks, self._buffer = (self._buffer + data).split(b"\n\n")
        for block in blocks:
            fields = dict(_parse_field(line) for line in block.split(b"\n"))
            if (event := _parse_event(fields)) is not None:
                self.last_id = fields["id"]
                self.ended = isinstance(event, OutputEnd)
                yield event


class _StreamRetry:
    """The retry state of a stream, until it ends or the retry timeout passes."""

    def __init__(self, id: UUID, retry_timeout_s: float) -> None:
        self.path = f"/v1/actions/{id}/logs"
        self.reader = OutputEventReader()
        self._retry_timeout_s = retry_timeout_s
        self._last_data_at = time.monotonic()
        self._delay_s = FIRST_RETRY_DELAY_S

    @property
    def headers(self) -> dict[str, str]:
        self.reader.reset()
        return {"last-event-id": self.reader.last_id} if self.reader.last_id is not None else {}

    def receive(self, data: bytes) -> Iterator[OutputEvent]:
        self._last_data_at, self._delay_s = time.monotonic(), FIRST_RETRY_DELAY_S
        yield from self.reader.feed(data)

    def delay_after(self, reply: SdkResponse) -> float:
        """Return the seconds until the next try. Raises the error of the reply if there is none."""
        is_final = reply.status not in (0, 200) and reply.status not in RETRYABLE_STATUSES
        if is_final or (reply.status != 200 and time.monotonic() - self._last_data_at >= self._retry_timeout_s):
            raise error_from_response(reply)
        pause_s, self._delay_s = self._delay_s, min(2 * self._delay_s, MAX_RETRY_DELAY_S)
        return max(pause_s, reply.retry_after_s or 0.0)


def stream_output(http: httpx.Client, id: UUID, *, retry_timeout_s: float) -> Iterator[OutputEvent]:
    """Yield events up to and including the end."""
    retry = _StreamRetry(id, retry_timeout_s)
    while not retry.reader.ended:
        try:
            with http.stream("GET", retry.path, headers=retry.headers, timeout=STREAM_TIMEOUT) as response:
                reply = SdkResponse(
                    response.status_code, b"" if response.is_success else response.read(), _retry_after_s(response)
                )
                for data in response.iter_bytes() if response.is_success else ():
                    yield from retry.receive(data)
        except httpx.TransportError as error:
            reply = SdkResponse(0, f"{type(error).__name__}: {error}".encode())
        if not retry.reader.ended:
            time.sleep(retry.delay_after(reply))


async def stream_output_async(
    http: httpx.AsyncClient, id: UUID, *, retry_timeout_s: float
) -> AsyncIterator[OutputEvent]:
    """Yield events up to and including the end."""
    retry = _StreamRetry(id, retry_timeout_s)
    while not retry.reader.ended:
        try:
            async with http.stream("GET", retry.path, headers=retry.headers, timeout=STREAM_TIMEOUT) as response:
                content = b"" if response.is_success else await response.aread()
                reply = SdkResponse(response.status_code, content, _retry_after_s(response))
                if response.is_success:
                    async for data in response.aiter_bytes():
                        for event in retry.receive(data):
                            yield event
        except httpx.TransportError as error:
            reply = SdkResponse(0, f"{type(error).__name__}: {error}".encode())
        if not retry.reader.ended:
            await asyncio.sleep(retry.delay_after(reply))


def send_input(
    id: UUID, content: bytes | str, *, end: bool, offset: int | None, retry_timeout_s: float
) -> Operation[int]:
    """Send input at `offset`, so that no retry sends it twice. If `offset` is None, ask the server for it first."""
    if offset is None:
        offset = yield from _input_offset_once_running(id, retry_timeout_s)
    given = {"text": content} if isinstance(content, str) else {"base64": b64encode(content)}
    return (
        yield from _send_once(
            id, SendInputRequest.model_validate({**given, "offset": offset, "end": end}), retry_timeout_s
        )
    )


def _input_offset_once_running(id: UUID, retry_timeout_s: float) -> Operation[int]:
    """Wait until the action runs and return its input offset. The queueing delay may be long."""
    pause_s = FIRST_RETRY_DELAY_S
    while True:
        try:
            return (yield from _send_once(id, SendInputRequest(text=""), retry_timeout_s))
        except NotRunning:
            if (yield from get(id, wait_s=0, retry_timeout_s=retry_timeout_s)).settled_at is not None:
                raise
        yield RetryDelay(pause_s)
        pause_s = min(2 * pause_s, MAX_POLL_DELAY_S)


def _send_once(id: UUID, body: BaseModel, retry_timeout_s: float) -> Operation[int]:
    call = SdkRequest(method="POST", path=f"/v1/actions/{id}/input", body=body)
    return SendInputResponse.model_validate_json((yield from call_with_retry(call, retry_timeout_s))).offset


def _parse_field(line: bytes) -> tuple[str, str]:
    name, _, value = line.decode().partition(": ")
    return name, value


def _parse_event(fields: dict[str, str]) -> OutputEvent | None:
    """Return None for a comment and for event types that a later version adds."""
    match fields.get("event"):
        case "stdout" | "stderr" as stream:
            chunk = OutputChunk.model_validate_json(fields["data"])
            return OutputData(stream, chunk.offset, chunk.content())
        case str(name) if name in _EVENT_TYPES:
            return _EVENT_TYPES[name].model_validate_json(fields["data"])
    return None


def _retry_after_s(response: httpx.Response) -> float | None:
    retry_after = response.headers.get("retry-after", "")
    return float(retry_after) if retry_after.isdigit() else None

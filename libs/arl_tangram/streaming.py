"""Output while it is written, and input for what runs. A stream that breaks off goes on after its last event."""

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import httpx
from pydantic import BaseModel

from arl_tangram.operations import RETRY_STATUS, Call, Operation, Pause, Reply, answered, error_of, get
from arl_wire.errors import NotRunning
from arl_wire.output import InputTaken, OutputChunk, OutputEnd, OutputRestart, OutputTruncated, SendInput

__all__ = ["EventReader", "Output", "OutputEvent", "follow", "follow_async", "send_input"]

TIMEOUT = httpx.Timeout(30.0, read=60.0)
"""Something is heard at least every 15 s."""
FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_LOOK_S = 0.1, 5.0, 1.0


@dataclass(frozen=True, slots=True)
class Output:
    """The next bytes of a stream."""

    stream: Literal["stdout", "stderr"]
    offset: int
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode(errors="backslashreplace")


OutputEvent = Output | OutputTruncated | OutputRestart | OutputEnd
_OTHERS: dict[str, type[OutputTruncated] | type[OutputRestart] | type[OutputEnd]] = {
    "truncated": OutputTruncated,
    "restart": OutputRestart,
    "end": OutputEnd,
}


class EventReader:
    """Cuts bytes into events, and remembers the last one."""

    def __init__(self) -> None:
        self.last_id: str | None = None
        self.ended = False
        self._buffer = b""

    def begin(self) -> None:
        """Another answer: half an event of the last one is sent again."""
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[OutputEvent]:
        *blocks, self._buffer = (self._buffer + data).split(b"\n\n")
        for block in blocks:
            fields = dict(_field(line) for line in block.split(b"\n"))
            if (event := _event(fields)) is not None:
                self.last_id = fields["id"]
                self.ended = isinstance(event, OutputEnd)
                yield event


class _Try:
    """One answer after the other, until the stream ends or patience does."""

    def __init__(self, id: UUID, patience_s: float) -> None:
        self.path = f"/v1/actions/{id}/output"
        self.reader = EventReader()
        self._patience_s = patience_s
        self._came = time.monotonic()
        self._pause_s = FIRST_PAUSE_S

    @property
    def headers(self) -> dict[str, str]:
        self.reader.begin()
        return {"last-event-id": self.reader.last_id} if self.reader.last_id is not None else {}

    def took(self, data: bytes) -> Iterator[OutputEvent]:
        self._came, self._pause_s = time.monotonic(), FIRST_PAUSE_S
        yield from self.reader.feed(data)

    def pause_after(self, reply: Reply) -> float:
        """Seconds until the next try. Raises what the reply stands for where there is none."""
        is_final = reply.status not in (0, 200) and reply.status not in RETRY_STATUS
        if is_final or (reply.status != 200 and time.monotonic() - self._came >= self._patience_s):
            raise error_of(reply)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return max(pause_s, reply.retry_after_s or 0.0)


def follow(http: httpx.Client, id: UUID, *, patience_s: float) -> Iterator[OutputEvent]:
    """Up to and with the end."""
    tries = _Try(id, patience_s)
    while not tries.reader.ended:
        try:
            with http.stream("GET", tries.path, headers=tries.headers, timeout=TIMEOUT) as response:
                reply = Reply(response.status_code, b"" if response.is_success else response.read(), _later(response))
                for data in response.iter_bytes() if response.is_success else ():
                    yield from tries.took(data)
        except httpx.TransportError as error:
            reply = Reply(0, f"{type(error).__name__}: {error}".encode())
        if not tries.reader.ended:
            time.sleep(tries.pause_after(reply))


async def follow_async(http: httpx.AsyncClient, id: UUID, *, patience_s: float) -> AsyncIterator[OutputEvent]:
    """Up to and with the end."""
    tries = _Try(id, patience_s)
    while not tries.reader.ended:
        try:
            async with http.stream("GET", tries.path, headers=tries.headers, timeout=TIMEOUT) as response:
                content = b"" if response.is_success else await response.aread()
                reply = Reply(response.status_code, content, _later(response))
                if response.is_success:
                    async for data in response.aiter_bytes():
                        for event in tries.took(data):
                            yield event
        except httpx.TransportError as error:
            reply = Reply(0, f"{type(error).__name__}: {error}".encode())
        if not tries.reader.ended:
            await asyncio.sleep(tries.pause_after(reply))


def send_input(id: UUID, content: bytes | str, *, end: bool, offset: int | None, patience_s: float) -> Operation[int]:
    """With the number of bytes sent before, asked for where the caller does not say, so that no try sends twice."""
    if offset is None:
        offset = yield from _sent_once_it_runs(id, patience_s)
    given = {"text": content} if isinstance(content, str) else {"base64": b64encode(content)}
    return (yield from _sent(id, SendInput.model_validate({**given, "offset": offset, "end": end}), patience_s))


def _sent_once_it_runs(id: UUID, patience_s: float) -> Operation[int]:
    """Its queue may be long."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return (yield from _sent(id, SendInput(text=""), patience_s))
        except NotRunning:
            if (yield from get(id, wait_s=0, patience_s=patience_s)).settled_at is not None:
                raise
        yield Pause(pause_s)
        pause_s = min(2 * pause_s, LONGEST_LOOK_S)


def _sent(id: UUID, body: BaseModel, patience_s: float) -> Operation[int]:
    call = Call(method="POST", path=f"/v1/actions/{id}/input", body=body)
    return InputTaken.model_validate_json((yield from answered(call, patience_s))).offset


def _field(line: bytes) -> tuple[str, str]:
    name, _, value = line.decode().partition(": ")
    return name, value


def _event(fields: dict[str, str]) -> OutputEvent | None:
    """None for a comment, and for what a later version may add."""
    match fields.get("event"):
        case "stdout" | "stderr" as stream:
            chunk = OutputChunk.model_validate_json(fields["data"])
            return Output(stream, chunk.offset, chunk.content())
        case str(name) if name in _OTHERS:
            return _OTHERS[name].model_validate_json(fields["data"])
    return None


def _later(response: httpx.Response) -> float | None:
    retry_after = response.headers.get("retry-after", "")
    return float(retry_after) if retry_after.isdigit() else None

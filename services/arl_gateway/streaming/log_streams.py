"""Live output and input of running actions.

The launcher keeps the bytes. They are read by offset, one chunk at a time, and no faster than the client receives them.
A slow client therefore needs no memory here, and a lost response is read again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel

from arl_core.domain.states import ActionState
from arl_gateway.actions import queries
from arl_gateway.actions.views import action_from_row
from arl_gateway.actions.waiters import ActionWaiters, ActionWatch
from arl_gateway.http.auth import Caller
from arl_gateway.streaming.output_events import OutputEvents, StreamName, stream_content
from arl_gateway.streaming.sse import EventSubscription, with_heartbeats
from arl_kit.batcher import Batcher
from arl_kit.service_client import ServiceClient
from arl_kit.service_tokens import node_audience
from arl_store.tx import PostgresStore, Row, is_temporary
from arl_wire.actions.output_events import SendInputRequest, SendInputResponse
from arl_wire.errors import (
    Conflict,
    FieldError,
    InputClosed,
    InputFull,
    NotFound,
    NotRunning,
    TangramError,
    Unavailable,
)
from arl_wire.internal.node import (
    OutputPortion,
    ReadOutputRequest,
    ReadOutputResponse,
    WriteInputRequest,
    WriteInputResponse,
)

__all__ = ["NODE_CALL_TIMEOUT_S", "LogStreams", "StreamLimiter"]

log = logging.getLogger(__name__)

NODE_CALL_TIMEOUT_S = 20.0
"""Seconds: longer than a manager blocks a request."""
FIRST_POLL_S, MAX_POLL_S = 0.05, 1.0
"""Seconds between polls, doubled while nothing happens. Only settling wakes the waiter; polling finds other changes."""
ROWS_PER_QUERY = 16
"""Rows in one query, each with up to two MiB of output."""
CHUNK_BYTES = 64 << 10
RUNNING_POLL_S = 0.02
"""Seconds between reads of a running action, so that a line-by-line program does not cause a call per line."""
STREAM_RETRY_AFTER_S = 5
"""Seconds to wait before a retry, if too many outputs are followed."""
STREAMS: tuple[StreamName, StreamName] = ("stdout", "stderr")

ResponseT = TypeVar("ResponseT", bound=BaseModel)


class StreamLimiter:
    """A limit on concurrently followed outputs, in total and per project."""

    def __init__(self, limit: int, *, project_limit: int) -> None:
        self._limit, self._project_limit = limit, project_limit
        self._active: Counter[int] = Counter()

    @property
    def active(self) -> int:
        """Return the number of open streams."""
        return self._active.total()

    def acquire(self, project_id: int) -> Callable[[], None]:
        """Reserve a stream. Return a function that releases it, idempotently. Raises Unavailable if none is free."""
        if self.active >= self._limit:
            raise Unavailable(
                f"this gateway already has {self._limit} output streams, its maximum; try again",
                retry_after_s=STREAM_RETRY_AFTER_S,
            )
        if self._active[project_id] >= self._project_limit:
            message = f"this project already has {self._project_limit} output streams, its maximum; try again"
            raise Unavailable(message, retry_after_s=STREAM_RETRY_AFTER_S)
        self._active[project_id] += 1
        held = [project_id]

        def leave() -> None:
            """Release the stream; a second call does nothing."""
            if held:
                self._active[held.pop()] -= 1

        return leave


class LogStreams:
    """Streams of output to clients, and input from them."""

    def __init__(
        self, store: PostgresStore, peers: ServiceClient, waiters: ActionWaiters, limiter: StreamLimiter
    ) -> None:
        self._store = store
        self._peers = peers
        self._waiters = waiters
        self._limiter = limiter
        self._draining = asyncio.Event()
        self._reads: Batcher[tuple[int, UUID], Row | None] = Batcher(self._read_rows, max_batch=ROWS_PER_QUERY)

    def drain(self) -> None:
        """End every stream. The clients reconnect to another gateway."""
        self._draining.set()

    async def open_stream(self, id: UUID, caller: Caller, *, last_event_id: str | None) -> EventSubscription:
        """Return the events of an action's output after `last_event_id`. Errors are raised before the first event.

        The stream counts against the limits until it is released.
        """
        events = OutputEvents.resume_after(last_event_id)
        await self._fetch_row(id, caller)
        leave = self._limiter.acquire(caller.project_id)
        steady = _end_on_temporary_error(self._stream_events(id, caller, events))
        return EventSubscription(with_heartbeats(steady, self._draining), self._draining, leave)

    def follow(self, id: UUID, caller: Caller) -> AsyncGenerator[bytes, None]:
        """Return the events of an action's output for a protocol of the gateway itself, without a limit on streams."""
        return self._stream_events(id, caller, OutputEvents())

    async def send_input(self, id: UUID, caller: Caller, body: SendInputRequest) -> SendInputResponse:
        """Send input to the running attempt. Input is not durable."""
        row = await self._fetch_row(id, caller)
        if row.state != ActionState.RUNNING:
            raise NotRunning(f"action {id} is {row.state}: only a running action accepts input")
        asked = WriteInputRequest(id=id, grant_no=row.grant_no, data=body.content(), offset=body.offset, end=body.end)
        answer = await self._call_node(row, "input", asked, WriteInputResponse.model_validate_json)
        match answer.status:
            case "taken":
                return SendInputResponse(offset=answer.offset)
            case "absent":
                raise NotRunning(f"action {id} has not started yet or has just ended")
            case "unopened":
                raise InputClosed(f"action {id} was submitted without `stdin_open` and accepts no input")
            case "closed":
                raise InputClosed(f"action {id} accepts no more input: its input was ended, or the program closed it")
            case "full":
                raise InputFull(f"action {id} has not read its earlier input; try again", retry_after_s=1)
            case "gap":
                message = f"offset must be at most {answer.offset}, the number of bytes sent so far"
                raise Conflict(message, errors=[FieldError(field="offset", message=message)])

    async def _stream_events(self, id: UUID, caller: Caller, events: OutputEvents) -> AsyncGenerator[bytes, None]:
        pause_s = FIRST_POLL_S
        with self._waiters.watch([id]) as watch:
            while True:
                row = await self._fetch_row(id, caller)
                if row.state == ActionState.SETTLED:
                    for event in _remaining_events(row, events):
                        yield event
                    return
                if row.state == ActionState.RUNNING:
                    async for event in self._running_events(row, events):
                        pause_s = FIRST_POLL_S
                        yield event
                await _wait_for_poll(watch, pause_s)
                pause_s = min(2 * pause_s, MAX_POLL_S)

    async def _running_events(self, row: Row, events: OutputEvents) -> AsyncGenerator[bytes, None]:
        """Yield the events of a running attempt. Return when the row must be read again."""
        for event in events.start_attempt(row.grant_no):
            yield event
        while True:
            offsets = {stream: events.offset(stream) for stream in STREAMS}
            try:
                asked = ReadOutputRequest(id=row.id, grant_no=row.grant_no, **offsets)
                answer = await self._call_node(row, "output", asked, ReadOutputResponse.model_validate_json)
            except Unavailable:
                return
            for stream in STREAMS:
                said: OutputPortion = getattr(answer, stream)
                if answer.status != "absent" and said.total_bytes:
                    counts = {"kept_bytes": said.kept_bytes, "total_bytes": said.total_bytes}
                    for event in events.add_data(stream, said.data, **counts, is_complete=False):
                        yield event
            if answer.status != "running":
                return
            if max(len(answer.stdout.data), len(answer.stderr.data)) < CHUNK_BYTES:
                await asyncio.sleep(RUNNING_POLL_S)

    async def _call_node(self, row: Row, path: str, body: BaseModel, parse: Callable[[bytes], ResponseT]) -> ResponseT:
        url, audience = f"{row.node_url}/internal/{path}", node_audience(row.node, row.node_credential_id)
        return parse(await self._peers.call(url, body, audience=audience))

    async def _fetch_row(self, id: UUID, caller: Caller) -> Row:
        row = await self._reads.submit((caller.project_id, id))
        if row is None:
            raise NotFound(f"action {id} does not exist in this project")
        return row

    async def _read_rows(self, wanted: Sequence[tuple[int, UUID]]) -> Sequence[Row | Exception | None]:
        async with self._store.read() as tx:
            rows = await queries.actions_by_id(tx, sorted({id for _, id in wanted}))
        found = {(row.project_id, row.id): row for row in rows}
        return [found.get(key) for key in wanted]


async def _end_on_temporary_error(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """End the stream quietly on a temporary error. The client then resumes after its last event."""
    try:
        async for event in events:
            yield event
    except Exception as error:
        if not is_temporary(error) and not isinstance(error, TangramError):
            raise
        log.warning("an output stream ends early: %r", error)
    finally:
        await events.aclose()


async def _wait_for_poll(watch: ActionWatch, pause_s: float) -> None:
    if watch.ended:
        # An ended watch returns at once; the stream is about to end.
        await asyncio.sleep(pause_s)
    else:
        await watch.wait_for_change(pause_s)


def _remaining_events(row: Row, events: OutputEvents) -> Iterator[bytes]:
    """Yield the stored output that the client has not received, then the end event."""
    action = action_from_row(row)
    if (result := action.result) is not None:
        yield from events.start_attempt(result.grant_no)
        for stream in STREAMS:
            shown = getattr(result, stream)
            kept = stream_content(shown)
            while data := kept[events.offset(stream) : events.offset(stream) + CHUNK_BYTES]:
                over = events.offset(stream) + len(data) >= len(kept)
                counts = {"kept_bytes": len(kept), "total_bytes": shown.total_bytes}
                yield from events.add_data(stream, data, **counts, is_complete=over)
            yield from events.add_data(
                stream, b"", kept_bytes=len(kept), total_bytes=shown.total_bytes, is_complete=True
            )
    yield events.end_event(action)

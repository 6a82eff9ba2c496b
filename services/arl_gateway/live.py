"""Actions while they run: what they write, as it is written, and what they are given to read.

The bytes come from the launcher that keeps them anyway. They are asked for by offset, a portion at a time and no faster
than the client takes them, so nobody's pace costs anybody memory; and what a lost answer said is asked for again.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel

from arl_core.states import State
from arl_gateway import repository
from arl_gateway.auth import Caller
from arl_gateway.output_events import OutputEvents, Stream, content_of
from arl_gateway.places import Places
from arl_gateway.sse import Following, kept_alive
from arl_gateway.views import action_of
from arl_gateway.waiters import Waiters, Watch
from arl_kit.batcher import Batcher
from arl_kit.peers import Peers
from arl_store.tx import Row, Store, is_temporary
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
from arl_wire.internal import InputAnswer, InputBody, OutputAnswer, OutputAsk, Portion
from arl_wire.output import InputTaken, SendInput

__all__ = ["ASK_S", "Live"]

log = logging.getLogger(__name__)

ASK_S = 20.0
"""Longer than a manager holds a question."""
FIRST_LOOK_S, LOOK_S = 0.05, 1.0
"""Only settling wakes; other edges are found by looking, the less often the longer nothing happens."""
READ_AT_ONCE = 16
"""Rows in one query, each with up to two MiB of output."""
PORTION = 64 << 10
GATHER_S = 0.02
"""Between two looks at a running action: a program that writes line by line is not asked for each line."""
STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")

Answer = TypeVar("Answer", bound=BaseModel)


class Live:
    def __init__(self, store: Store, peers: Peers, waiters: Waiters, places: Places) -> None:
        self._store = store
        self._peers = peers
        self._waiters = waiters
        self._places = places
        self._draining = asyncio.Event()
        self._reads: Batcher[tuple[int, UUID], Row | None] = Batcher(self._read_many, max_batch=READ_AT_ONCE)

    def drain(self) -> None:
        """Every stream ends now; whoever follows comes back to another gateway."""
        self._draining.set()

    async def output(self, id: UUID, caller: Caller, *, last_event_id: str | None) -> Following:
        """The events of an action's output, from where the client left off. Refused before the first of them.

        Whoever gets them has a place from now on, until it is left.
        """
        events = OutputEvents.after(last_event_id)
        await self._row(id, caller)
        leave = self._places.take(caller.project_id)
        steady = _ending_early(self._events(id, caller, events))
        return Following(kept_alive(steady, self._draining), self._draining, leave)

    async def input(self, id: UUID, caller: Caller, body: SendInput) -> InputTaken:
        """Durable nowhere: it is for the attempt that runs now."""
        row = await self._row(id, caller)
        if row.state != State.RUNNING:
            raise NotRunning(f"action {id} is {row.state}; only a running one reads input")
        asked = InputBody(id=id, grant_no=row.grant_no, data=body.content(), offset=body.offset, end=body.end)
        answer = await self._ask(row, "input", asked, InputAnswer.model_validate_json)
        match answer.status:
            case "taken":
                return InputTaken(offset=answer.offset)
            case "absent":
                raise NotRunning(f"action {id} is about to start, or has just ended")
            case "unopened":
                raise InputClosed(f"action {id} was submitted without stdin_open")
            case "closed":
                raise InputClosed(f"action {id} reads no more: its input was ended, or the program closed it")
            case "full":
                raise InputFull(f"action {id} has not read what it was sent; try again", retry_after_s=1)
            case "gap":
                message = f"the attempt was sent {answer.offset} bytes so far"
                raise Conflict(message, errors=[FieldError(field="offset", message=message)])

    async def _events(self, id: UUID, caller: Caller, events: OutputEvents) -> AsyncGenerator[bytes, None]:
        pause_s = FIRST_LOOK_S
        with self._waiters.watching([id]) as watch:
            while True:
                row = await self._row(id, caller)
                if row.state == State.SETTLED:
                    for event in _rest(row, events):
                        yield event
                    return
                if row.state == State.RUNNING:
                    async for event in self._while_it_runs(row, events):
                        pause_s = FIRST_LOOK_S
                        yield event
                await _look_later(watch, pause_s)
                pause_s = min(2 * pause_s, LOOK_S)

    async def _while_it_runs(self, row: Row, events: OutputEvents) -> AsyncGenerator[bytes, None]:
        """Returns when the row has to be looked at again."""
        for event in events.begin(row.grant_no):
            yield event
        while True:
            offsets = {stream: events.offset(stream) for stream in STREAMS}
            try:
                asked = OutputAsk(id=row.id, grant_no=row.grant_no, **offsets)
                answer = await self._ask(row, "output", asked, OutputAnswer.model_validate_json)
            except Unavailable:
                return
            for stream in STREAMS:
                said: Portion = getattr(answer, stream)
                if answer.status != "absent" and said.total_bytes:
                    counts = {"kept_bytes": said.kept_bytes, "total_bytes": said.total_bytes}
                    for event in events.take(stream, said.data, **counts, over=False):
                        yield event
            if answer.status != "running":
                return
            if max(len(answer.stdout.data), len(answer.stderr.data)) < PORTION:
                await asyncio.sleep(GATHER_S)

    async def _ask(self, row: Row, path: str, body: BaseModel, read: Callable[[bytes], Answer]) -> Answer:
        return read(await self._peers.call(f"{row.node_url}/internal/{path}", body))

    async def _row(self, id: UUID, caller: Caller) -> Row:
        row = await self._reads.submit((caller.project_id, id))
        if row is None:
            raise NotFound(f"there is no action {id}")
        return row

    async def _read_many(self, wanted: Sequence[tuple[int, UUID]]) -> Sequence[Row | Exception | None]:
        async with self._store.read() as tx:
            rows = await repository.actions_by_id(tx, sorted({id for _, id in wanted}))
        found = {(row.project_id, row.id): row for row in rows}
        return [found.get(key) for key in wanted]


async def _ending_early(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Without what goes wrong on the way: the stream only ends, and the client goes on from where it was."""
    try:
        async for event in events:
            yield event
    except Exception as error:
        if not is_temporary(error) and not isinstance(error, TangramError):
            raise
        log.warning("a stream of output ends early: %r", error)
    finally:
        await events.aclose()


async def _look_later(watch: Watch, pause_s: float) -> None:
    if watch.ended:
        # Nobody is woken any more; the stream is about to end.
        await asyncio.sleep(pause_s)
    else:
        await watch.changed(pause_s)


def _rest(row: Row, events: OutputEvents) -> Iterator[bytes]:
    """What the row keeps of the accepted attempt and the client has not got, then the end."""
    action = action_of(row)
    if (result := action.result) is not None:
        yield from events.begin(result.grant_no)
        for stream in STREAMS:
            shown = getattr(result, stream)
            kept = content_of(shown)
            while data := kept[events.offset(stream) : events.offset(stream) + PORTION]:
                over = events.offset(stream) + len(data) >= len(kept)
                counts = {"kept_bytes": len(kept), "total_bytes": shown.total_bytes}
                yield from events.take(stream, data, **counts, over=over)
            yield from events.take(stream, b"", kept_bytes=len(kept), total_bytes=shown.total_bytes, over=True)
    yield events.end(action)

"""The public API of actions while they run. A route parses, calls and returns."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Request, Response

from arl_gateway.live import Live
from arl_gateway.routes import ANY, BODY, JSON_BODY, Reader, Writer
from arl_gateway.sse import EventStream
from arl_kit.app import documented
from arl_wire.errors import BadRequest, Conflict, InputClosed, InputFull, NotFound, NotRunning
from arl_wire.output import InputTaken, SendInput

__all__ = ["router"]

TEXT = {"type": "string"}
EVENT = {
    "type": "object",
    "required": ["event", "data", "id"],
    "properties": dict.fromkeys(("event", "data", "id"), TEXT),
}
EVENTS: dict[str, Any] = {"text/event-stream": {"itemSchema": EVENT}}
LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", description="Of the last event that was seen; what follows it is sent")
]

router = APIRouter(prefix="/v1/actions", tags=["actions"])


async def _live(request: Request) -> Live:
    live: Live = request.app.state.live
    return live


LiveService = Annotated[Live, Depends(_live)]


@router.get(
    "/{id}/output",
    operation_id="follow_output",
    response_class=Response,
    responses={200: {"description": "Server-sent events", "content": EVENTS}, **documented(*ANY, NotFound, BadRequest)},
)
async def follow_output(
    id: UUID, caller: Reader, live: LiveService, response: Response, last_event_id: LastEventId = None
) -> Response:
    """Output as it is written, in any state: a queued action is waited for, of a settled one what is kept is sent.

    `stdout` and `stderr` carry `{"offset", "text"}`, with `base64` where the bytes are not UTF-8. `truncated`: the rest
    of a stream is counted and not kept (`{"stream", "kept_bytes", "total_bytes"}`). `restart`: another attempt began,
    and both streams begin at 0 again. `end` is the last: state, outcome, exit code and how much there was in all.
    """
    following = await live.output(id, caller, last_event_id=last_event_id)
    headers = {**dict(response.headers), "cache-control": "no-store", "x-accel-buffering": "no"}
    return EventStream(following, headers=headers)


@router.post(
    "/{id}/input",
    operation_id="send_input",
    dependencies=JSON_BODY,
    responses=documented(*ANY, *BODY, NotFound, Conflict, NotRunning, InputClosed, InputFull),
)
async def send_input(id: UUID, body: SendInput, caller: Writer, live: LiveService) -> InputTaken:
    """Write to the standard input of a running action that was submitted with `stdin_open`; `end` closes it.

    It belongs to the attempt that runs now: one that is retried begins with `stdin` again. With `offset` a repeated
    request gives the program nothing twice; 409 `conflict` where bytes before it are missing.
    """
    return await live.input(id, caller, body)

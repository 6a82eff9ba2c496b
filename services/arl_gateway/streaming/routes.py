"""Routes of running actions. A route parses, calls and returns."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Request, Response

from arl_gateway.deps import gateway_deps
from arl_gateway.http.dependencies import BODY_ERRORS, COMMON_ERRORS, JSON_BODY, Reader, Writer
from arl_gateway.streaming.log_streams import LogStreams
from arl_gateway.streaming.sse import EventStream
from arl_kit.app import error_responses
from arl_kit.optional_nulls import OptionalNullRoute
from arl_wire.actions.output_events import SendInputRequest, SendInputResponse
from arl_wire.errors import BadRequest, Conflict, InputClosed, InputFull, NotFound, NotRunning

__all__ = ["router"]

TEXT_SCHEMA = {"type": "string"}
EVENT_SCHEMA = {
    "type": "object",
    "required": ["event", "data", "id"],
    "properties": dict.fromkeys(("event", "data", "id"), TEXT_SCHEMA),
}
EVENT_STREAM_CONTENT: dict[str, Any] = {
    "text/event-stream": {
        "schema": {"type": "string", "description": "Server-sent events; `x-itemSchema` describes each"},
        "x-itemSchema": EVENT_SCHEMA,
    }
}
"""OpenAPI 3.2 calls it `itemSchema`; generators for 3.1 refuse that keyword."""
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        description="Id of the last event that the client received; the stream continues after it",
    ),
]

router = APIRouter(prefix="/v1/actions", tags=["actions"], route_class=OptionalNullRoute)


async def _log_streams(request: Request) -> LogStreams:
    live: LogStreams = gateway_deps(request).log_streams
    return live


LogStreamsDep = Annotated[LogStreams, Depends(_log_streams)]


@router.get(
    "/{id}/logs",
    operation_id="stream_logs",
    summary="Stream the output of an action",
    response_class=Response,
    responses={
        200: {"description": "Server-sent events", "content": EVENT_STREAM_CONTENT},
        **error_responses(*COMMON_ERRORS, NotFound, BadRequest),
    },
)
async def stream_logs(
    id: UUID, caller: Reader, log_streams: LogStreamsDep, response: Response, last_event_id: LastEventId = None
) -> Response:
    """Stream an action's output as server-sent events.

    For a queued action, the stream waits; for a settled one, it has the stored output. `stdout` and `stderr` contain
    `{"offset", "text"}`, and `base64` if the bytes are not UTF-8. `truncated` means that the rest of a stream is
    counted and not stored (`{"stream", "kept_bytes", "total_bytes"}`). `restart` means that another attempt started,
    and both streams start at 0. `end` is the last event: state, outcome, exit code and total sizes.
    """
    following = await log_streams.open_stream(id, caller, last_event_id=last_event_id)
    headers = {**dict(response.headers), "cache-control": "no-store", "x-accel-buffering": "no"}
    return EventStream(following, headers=headers)


@router.post(
    "/{id}/input",
    operation_id="send_input",
    summary="Send input to an action",
    dependencies=JSON_BODY,
    responses=error_responses(*COMMON_ERRORS, *BODY_ERRORS, NotFound, Conflict, NotRunning, InputClosed, InputFull),
)
async def send_input(id: UUID, body: SendInputRequest, caller: Writer, log_streams: LogStreamsDep) -> SendInputResponse:
    """Write to the standard input of a running action that was submitted with `stdin_open`; `end` closes it.

    The input belongs to the current attempt; a retry starts with `stdin` only. With `offset`, a repeated request writes
    nothing twice. Returns 409 `conflict` if bytes before the offset are missing.
    """
    return await log_streams.send_input(id, caller, body)

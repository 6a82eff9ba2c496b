"""The middleware for all requests: trace context, limits of the body's size, time and shape, and request metrics."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping

from opentelemetry.context import attach, detach
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arl_kit.http_server.json_limits import JsonLimitExceeded, JsonScanner, JsonTooDeep
from arl_kit.metrics import Metrics
from arl_kit.telemetry import current_traceparent, new_traceparent
from arl_kit.telemetry.propagation import extract_context, remote_parent, traceparent_of
from arl_wire.errors import BadRequest, RequestTimeout, TangramError, TooLarge

__all__ = ["TRACEPARENT_KEY", "OpaqueBodyBytes", "RequestEnvelope"]

MIN_BODY_BYTES_PER_S = 64 << 10
"""Bytes per second. Each received byte extends the time limit of a request body at this rate."""
TRACEPARENT_KEY = "tangram.traceparent"
"""Key of the trace context in the scope. The handler of unexpected errors runs outside the context."""

ErrorResponse = Callable[[TangramError, str], ASGIApp]

FRAMED_JSON = b"application/connect+json"
"""A stream of messages in binary frames; its reader limits each message."""


class OpaqueBodyBytes(int):
    """A maximum of bytes of a body that is passed on to another server. Its JSON is not checked."""


class RequestEnvelope:
    """The outermost middleware of a service.

    Args:
        bounds: Maximum bytes of a body by regular expression of the path. The first match counts. `OpaqueBodyBytes`
            are bodies for other servers.
        body_timeout_s: Seconds for a body, plus one second for each 64 KiB.
        limit_json: Whether JSON bodies are checked by `JsonScanner`. Bodies between services are not.
        too_large: Returns the error for a body above a number of bytes.
        respond: Returns the response for an error and a trace context.
    """

    def __init__(
        self,
        app: ASGIApp,
        bounds: Mapping[str, int],
        body_timeout_s: float,
        limit_json: bool,
        metrics: Metrics,
        too_large: Callable[[str], TangramError],
        respond: ErrorResponse,
    ) -> None:
        self._app = app
        self._bounds = [(re.compile(path), most) for path, most in bounds.items()]
        self._timeout_s = body_timeout_s
        self._limit_json = limit_json
        self._metrics = metrics
        self._too_large = too_large
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        context = extract_context(headers)
        parent = remote_parent(context)
        traceparent = traceparent_of(parent) if parent is not None else new_traceparent()
        scope[TRACEPARENT_KEY] = traceparent
        token = current_traceparent.set(traceparent)
        attached = attach(context)
        announced = headers.get(b"content-length", b"0")
        most = next(most for path, most in self._bounds if path.match(scope["path"]))
        answer = _ResponseRecorder(send, traceparent)
        try:
            if announced.isdigit() and int(announced) > most:
                await self._respond(self._too_large(_size_problem(most)), traceparent)(scope, receive, answer.send)
                return
            content_type = headers.get(b"content-type", b"").lower()
            has_json = self._limit_json and b"json" in content_type and content_type != FRAMED_JSON
            is_read = not isinstance(most, OpaqueBodyBytes)
            body = _LimitedBody(receive, max_bytes=most, timeout_s=self._timeout_s, has_json=has_json and is_read)
            await self._app(scope, body.receive, answer.send)
        finally:
            detach(attached)
            current_traceparent.reset(token)
            answer.record(self._metrics, scope)


class _LimitedBody:
    """A request body with limits. Its time starts at the first read, because earlier delays are not the client's.

    It raises `HTTPException`, because FastAPI passes on only this kind of exception from reading a body.
    """

    def __init__(self, receive: Receive, *, max_bytes: int, timeout_s: float, has_json: bool) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._json = JsonScanner() if has_json else None
        self._seen = 0
        self._is_complete = False
        self._began = 0.0

    async def receive(self) -> Message:
        """Receive the next message. Raises `HTTPException` if the body exceeds a limit."""
        if self._is_complete:
            # After the body, the only message is the client's disconnect. It needs no time limit.
            return await self._receive()
        self._began = self._began or time.monotonic()
        left_s = self._began + self._timeout_s + self._seen / MIN_BODY_BYTES_PER_S - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                message = await self._receive()
        except TimeoutError:
            problem = "the body was not received in time; send the request again"
            raise HTTPException(RequestTimeout.status, problem) from None
        self._is_complete = not message.get("more_body", False)
        self._check(message.get("body", b""))
        return message

    def _check(self, part: bytes) -> None:
        self._seen += len(part)
        if self._seen > self._max_bytes:
            raise HTTPException(TooLarge.status, _size_problem(self._max_bytes))
        if self._json is not None:
            try:
                self._json.feed(part)
            except JsonLimitExceeded as error:
                raise HTTPException(TooLarge.status, f"the JSON body {error}") from None
            except JsonTooDeep as error:
                raise HTTPException(BadRequest.status, f"the JSON body {error}") from None


def _size_problem(max_bytes: int) -> str:
    return f"the body must have at most {max_bytes} bytes: send fewer or smaller files"


class _ResponseRecorder:
    """A recorder of the status and duration of one response. A response that never starts counts as 500."""

    def __init__(self, send: Send, traceparent: str) -> None:
        self._send = send
        self._traceparent = traceparent
        self._status = 500
        self._started_at = time.monotonic()

    async def send(self, message: Message) -> None:
        """Send a message; the trace context is added to the headers of the response, unless it has one of its own."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if not any(name == b"traceparent" for name, _ in message["headers"]):
                message["headers"] = [*message["headers"], (b"traceparent", self._traceparent.encode())]
        await self._send(message)

    def record(self, metrics: Metrics, scope: Scope) -> None:
        """Record the request in the metrics under its route template."""
        template = getattr(scope.get("route"), "path", "none")
        seconds = time.monotonic() - self._started_at
        metrics.observe_request(method=scope["method"], route=template, status=self._status, seconds=seconds)

"""The check of the API key before a request body is read, on every route.

The framework parses a body before it runs the dependencies that authenticate. Without this check, callers without a
key could make the gateway parse large bodies.
"""

import asyncio
from contextlib import suppress

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arl_gateway.compat.e2b.access import ENVD_PREFIX, PORT_HOSTS_PREFIX, PORTS_PREFIX, authenticate_sandbox
from arl_gateway.deps import gateway_deps
from arl_gateway.http.auth import Caller
from arl_gateway.ports.signed_urls import SIGNED_PREFIX

__all__ = ["KeyCheck", "authenticated_caller"]

MAX_DRAINED_BYTES = 64 << 10
"""Bytes of a body without a valid key that are read, so that its sender can read the response."""
DRAIN_TIMEOUT_S = 5.0
MAX_LINGER_BYTES = 8 << 20
LINGER_S = 1.0
"""Seconds between the response to a longer body and the close of its connection."""
SANDBOX_PREFIXES = (f"{ENVD_PREFIX}/", f"{PORTS_PREFIX}/")
OPAQUE_PREFIXES = (PORT_HOSTS_PREFIX, SIGNED_PREFIX)
"""Paths whose routes authenticate requests without a key, and pass on their bodies unread."""
E2B_KEY_PREFIX = "e2b_"
"""Prefix that old clients of E2B demand of a key."""
_RESULT = "tangram.caller"


class KeyCheck:
    """A middleware that authenticates requests with a body. A body without a valid key is not passed on.

    The route then gets an empty body, and its own authentication fails with the error that its clients understand.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(scope) or scope["path"].startswith(OPAQUE_PREFIXES):
            await self._app(scope, receive, send)
            return
        try:
            if scope["path"].startswith(SANDBOX_PREFIXES):
                await authenticate_sandbox(Request(scope))
            else:
                await authenticated_caller(Request(scope))
        except Exception:  # noqa: BLE001 - the route raises it again, where the error handlers apply
            is_drained = await _drain(scope, receive)
            await self._app(scope, _no_body, send if is_drained else _closing(receive, send))
            return
        await self._app(scope, receive, send)


async def authenticated_caller(request: Request) -> Caller:
    """Return the caller of a request, authenticated once. Raises `Unauthenticated`."""
    known: Caller | Exception | None = request.scope.get(_RESULT)
    if isinstance(known, Exception):
        raise known
    if known is not None:
        return known
    headers = request.headers
    key = headers.get("x-api-key")
    said = headers.get("authorization") or (f"Bearer {_without_e2b_prefix(key)}" if key is not None else None)
    try:
        caller = await gateway_deps(request).authenticator.authenticate(said)
    except Exception as error:
        request.scope[_RESULT] = error
        raise
    request.scope[_RESULT] = caller
    return caller


def _without_e2b_prefix(key: str) -> str:
    """Return our key for a key in the form of E2B's: `e2b_X` is the key `tk_X`."""
    return key if not key.startswith(E2B_KEY_PREFIX) else "tk_" + key.removeprefix(E2B_KEY_PREFIX).removeprefix("tk_")


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )


async def _drain(scope: Scope, receive: Receive) -> bool:
    """Read and discard a short body. Return False if it is longer or arrives slowly."""
    announced = dict(scope["headers"]).get(b"content-length", b"")
    if announced.isdigit() and int(announced) > MAX_DRAINED_BYTES:
        return False
    return await _discard(receive, MAX_DRAINED_BYTES, DRAIN_TIMEOUT_S)


async def _discard(receive: Receive, max_bytes: int, timeout_s: float) -> bool:
    """Read and discard a body. Return True if it has ended, and False if more of it follows."""
    seen = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while seen <= max_bytes:
                message = await receive()
                seen += len(message.get("body", b""))
                if not message.get("more_body"):
                    return True
    return False


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def _closing(receive: Receive, send: Send) -> Send:
    """Return a `send` that closes the connection after the response.

    A close with unread bytes resets the connection, and the client may lose the response. So the last message waits a
    moment for the client to read the response and to disconnect.
    """

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        elif not message.get("more_body"):
            await send({**message, "more_body": True})
            await _discard(receive, MAX_LINGER_BYTES, LINGER_S)
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return sent

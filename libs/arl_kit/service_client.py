"""Calls to other services: JSON over one pooled client, with a token for the receiver."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, urlsplit

import aiohttp
from pydantic import BaseModel

from arl_kit.service_tokens import CLOCK_TOLERANCE_S, TokenIssuer
from arl_kit.telemetry.propagation import context_headers
from arl_wire.errors import ProblemDetails, Unavailable, error_from_problem

__all__ = ["ServiceClient"]

MAX_STREAMS, STREAM_CONNECT_TIMEOUT_S, STREAM_CHUNK_BYTES = 256, 10.0, 256 << 10
MAX_PROBLEM_BYTES = 64 << 10
NOTIFY_TIMEOUT_S = 5.0
"""Seconds until a notification is dropped. The receiver has polled by then; what no poll reads is lost."""

log = logging.getLogger(__name__)


class ServiceClient:
    """A client for calls to other services, one per process. `call` raises the peer's error; `notify` never raises.

    `audience` is the peer's name: its token is valid nowhere else. Redirects are not followed.
    """

    def __init__(self, tokens: TokenIssuer, *, timeout_s: float = 15.0, max_per_service: int = 16) -> None:
        """Create a client. `max_per_service` keeps calls to an unresponsive service from blocking calls to others."""
        self._tokens = tokens
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=3.0)
        self._max_per_service = max_per_service
        self._session: aiohttp.ClientSession | None = None
        self._stream_session: aiohttp.ClientSession | None = None
        """Separate session, so that long streams do not block calls."""
        self._notifications: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the connections. Must run in the event loop that uses them."""
        self._session = aiohttp.ClientSession(
            headers={"content-type": "application/json"},
            timeout=self._timeout,
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=self._max_per_service, keepalive_timeout=30),
        )
        self._stream_session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, connect=STREAM_CONNECT_TIMEOUT_S),
            connector=aiohttp.TCPConnector(limit=MAX_STREAMS, force_close=True),
        )

    async def stop(self) -> None:
        """Cancel pending notifications and close the connections."""
        for task in tuple(self._notifications):
            task.cancel()
        await asyncio.gather(*self._notifications, return_exceptions=True)
        for session in (self._session, self._stream_session):
            if session is not None:
                await session.close()

    async def call(self, url: str, body: BaseModel | str, *, audience: str) -> bytes:
        """Return the body of a 2xx response; `body` may be JSON already.

        Raises `Unavailable` if the peer is unreachable.

        The call carries the trace of the current request or loop. A batch of several requests carries the trace of the
        first.
        """
        if self._session is None:
            raise RuntimeError("call() needs start() first")
        content = body if isinstance(body, str) else body.model_dump_json()
        try:
            async with self._session.post(
                url, data=content.encode(), headers=self._headers(audience), allow_redirects=False
            ) as response:
                answer = await response.read()
                if response.status < 300:
                    return answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"a service of this installation is not reachable ({type(error).__name__}); try again", retry_after_s=1
            ) from error
        raise _error_from_response(answer, response.status, audience)

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str], body: AsyncIterator[bytes] | None = None, *, audience: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream the body of a 2xx response.

        Raises as `call` does, also while the response is read, and any error from reading `body`.
        """
        if self._stream_session is None:
            raise RuntimeError("stream() needs start() first")
        raised: list[BaseException] = []
        sent = _record_errors(body, raised) if body is not None else None
        try:
            async with self._stream_session.post(
                url, data=sent, headers={**headers, **self._headers(audience)}, allow_redirects=False
            ) as response:
                if response.status >= 300:
                    raise _error_from_response(await response.read(), response.status, audience)
                yield response.content.iter_chunked(STREAM_CHUNK_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if raised:
                raise raised[0] from None
            raise Unavailable(
                f"a service of this installation ended the connection ({type(error).__name__}); try again",
                retry_after_s=1,
            ) from error

    async def open_tunnel(self, url: str, *, audience: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection for plain bytes with `GET` and `Upgrade: tcp`. The caller must close it.

        Raises as `call` does.
        """
        try:
            async with asyncio.timeout(STREAM_CONNECT_TIMEOUT_S):
                return await self._open_tunnel(urlsplit(url), audience)
        except (TimeoutError, OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise Unavailable(
                f"a service of this installation is not reachable ({type(error).__name__}); try again", retry_after_s=1
            ) from error

    async def _open_tunnel(self, url: SplitResult, audience: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        is_tls = url.scheme == "https"
        reader, writer = await asyncio.open_connection(url.hostname, url.port or (443 if is_tls else 80), ssl=is_tls)
        try:
            fields = {"host": url.netloc, "connection": "upgrade", "upgrade": "tcp", **self._headers(audience)}
            lines = [f"GET {url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
            writer.write("\r\n".join(lines).encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(head[0].split(" ")[1])
            if status == HTTPStatus.SWITCHING_PROTOCOLS:
                return reader, writer
            answered = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            length = min(int(answered.get("content-length", "0")), MAX_PROBLEM_BYTES)
            raise _error_from_response(await reader.readexactly(length), status, audience)
        except BaseException:
            writer.close()
            raise

    def notify(self, url: str, body: BaseModel, *, audience: str) -> None:
        """Send a notification in the background, best effort. A lost one delays the receiver until its next poll."""
        task = asyncio.create_task(self._notify(url, body, audience))
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    async def _notify(self, url: str, body: BaseModel, audience: str) -> None:
        try:
            async with asyncio.timeout(NOTIFY_TIMEOUT_S):
                await self.call(url, body, audience=audience)
        except Exception as error:  # noqa: BLE001 - the receiver's poll is the fallback
            log.debug("notification to %s failed: %s", url, error)

    def _headers(self, audience: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self._tokens.token_for(audience)}", **context_headers()}


async def _record_errors(body: AsyncIterator[bytes], raised: list[BaseException]) -> AsyncIterator[bytes]:
    """Record errors of the request body, so that they are not reported as the peer's errors."""
    try:
        async for chunk in body:
            yield chunk
    except Exception as error:
        raised.append(error)
        raise


def _error_from_response(content: bytes, status: int, audience: str) -> Exception:
    """Return the error of a response.

    A rejected service token is an infrastructure error, not an error of the client's key.
    """
    if status == HTTPStatus.UNAUTHORIZED:
        log.error(
            "%s rejects this service's token: its TANGRAM_CALLER_KEYS must be made for that name from"
            " TANGRAM_SERVICE_TOKEN here, and the clocks may differ by at most %d s",
            audience,
            CLOCK_TOLERANCE_S,
        )
        return Unavailable(
            "services of this installation reject each other's tokens; the administrator finds details in their logs",
            retry_after_s=5,
        )
    try:
        return error_from_problem(ProblemDetails.model_validate_json(content))
    except ValueError:
        detail: dict[str, Any] = {
            "title": "Error",
            "status": status,
            "detail": f"a service of this installation answered with status {status}",
            "code": "error",
        }
        return error_from_problem(ProblemDetails(**detail))

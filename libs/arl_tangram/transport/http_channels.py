"""HTTP clients for each process and each event loop, created on first use.

Two processes that share a connection read each other's responses, and a client of a closed event loop cannot respond.
Therefore a channel may be created before a fork, used by several `asyncio.run` calls, and pickled for another process.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from arl_tangram.transport.connection import ConnectionConfig
from arl_tangram.transport.shared_wait import FetchSettled, SharedWait
from arl_wire.cells import CELL_HEADER

if TYPE_CHECKING:
    from aiohttp import ClientSession

__all__ = ["AsyncHttpChannel", "SyncHttpChannel", "add_trace_context", "add_trace_context_async"]

MAX_CONNECTIONS = 2000
CONNECTION_LIMITS = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=200)
LOOPBACK_PREFIXES = ("127.", "localhost", "::1")

log = logging.getLogger(__name__)


class SyncHttpChannel:
    """A blocking HTTP client that is safe to share between threads."""

    def __init__(self, connection: ConnectionConfig) -> None:
        self._connection = connection
        self._owner_pid = 0
        self._client: httpx.Client | None = None
        self._client_lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._connection,)

    @property
    def http(self) -> httpx.Client:
        if self._owner_pid != os.getpid():
            # A thread of the parent may have locked the old lock at the fork.
            self._client, self._client_lock, self._owner_pid = None, threading.Lock(), os.getpid()
        if self._client is None:
            with self._client_lock:
                if self._client is None:
                    self._client = httpx.Client(
                        **_client_options(self._connection),
                        limits=CONNECTION_LIMITS,
                        event_hooks={"request": [add_trace_context]},
                    )
        return self._client

    def close(self) -> None:
        """Close the client of this process. Connections of a parent process stay open."""
        if self._client is not None and self._owner_pid == os.getpid():
            self._client.close()


@dataclass(slots=True)
class _LoopState:
    """The client and the shared wait of one event loop."""

    client: httpx.AsyncClient
    shared_wait: SharedWait
    sessions: "list[ClientSession]"

    def detach(self) -> None:
        """Detach the sessions. Their loop belongs to another process or has ended, so they cannot be closed."""
        for session in self.sessions:
            session.detach()


class AsyncHttpChannel:
    def __init__(self, connection: ConnectionConfig) -> None:
        self._connection = connection
        self._owner_pid = 0
        self._loop_states: dict[asyncio.AbstractEventLoop, _LoopState] = {}
        self.dedicated_waits = 0
        """Number of calls that wait for an action on a dedicated connection."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._connection,)

    @property
    def http(self) -> httpx.AsyncClient:
        """Return the client of the running event loop."""
        return self._current_loop_state().client

    def shared_wait(self, fetch_settled: FetchSettled) -> SharedWait:
        """Return the shared wait of the running event loop, which calls `fetch_settled`."""
        wait = self._current_loop_state().shared_wait
        wait.fetch_settled = fetch_settled
        return wait

    async def close(self) -> None:
        """Close the client of the running event loop. Connections of other event loops stay open."""
        here = self._loop_states.pop(asyncio.get_running_loop(), None) if self._owner_pid == os.getpid() else None
        if here is not None:
            await here.shared_wait.close()
            await here.client.aclose()

    def _current_loop_state(self) -> _LoopState:
        if self._owner_pid != os.getpid():
            for other in self._loop_states.values():
                other.detach()
            self._loop_states, self._owner_pid, self.dedicated_waits = {}, os.getpid(), 0
        loop = asyncio.get_running_loop()
        if (here := self._loop_states.get(loop)) is None:
            self._drop_closed_loops()
            sessions: list[ClientSession] = []
            client = httpx.AsyncClient(
                **_client_options(self._connection),
                transport=_make_transport(self._connection.url, sessions),
                event_hooks={"request": [add_trace_context_async]},
            )
            here = self._loop_states[loop] = _LoopState(client, SharedWait(), sessions)
        return here

    def _drop_closed_loops(self) -> None:
        """Forget clients of closed loops, because a client references its loop."""
        for loop in [loop for loop in self._loop_states if loop.is_closed()]:
            self._loop_states.pop(loop).detach()


def _client_options(connection: ConnectionConfig) -> dict[str, Any]:
    """Return the client options. A proxy is not used for this machine: it would receive the key."""
    cell = {CELL_HEADER: str(connection.cell)} if connection.cell is not None else {}
    return {
        "base_url": connection.url,
        "headers": {"authorization": f"Bearer {connection.api_key}", **cell},
        "trust_env": not _is_loopback(connection.url),
    }


def _is_loopback(url: str) -> bool:
    return (urlsplit(url).hostname or "").startswith(LOOPBACK_PREFIXES)


def _make_transport(url: str, sessions: "list[ClientSession]") -> httpx.AsyncBaseTransport:
    """Return a transport for many concurrent calls.

    The pool of httpx scans all its connections for each call, which takes 7 CPU-ms with 32 connections.
    """
    # The import takes as long as all others together, so only asynchronous clients pay for it.
    from aiohttp import ClientSession, DummyCookieJar, TCPConnector
    from httpx_aiohttp import AiohttpTransport

    class Connector(TCPConnector):
        made_in = os.getpid()

        def __del__(self, *_: Any) -> None:
            """Skip the clean-up in a child: it would remove the parent's sockets from the selector, which a fork
            shares.
            """
            if os.getpid() == self.made_in and not self._loop.is_closed():
                super().__del__()

    def session() -> ClientSession:
        # Reading the certificates takes 20 CPU-ms.
        ssl = httpx.create_ssl_context() if url.startswith("https:") else True
        connector = Connector(limit=MAX_CONNECTIONS, ssl=ssl)
        trust_env = not _is_loopback(url) and bool(getproxies())
        made = ClientSession(connector=connector, cookie_jar=DummyCookieJar(), trust_env=trust_env)
        sessions.append(made)
        return made

    return AiohttpTransport(client=session)


def add_trace_context(request: httpx.Request) -> None:
    """Write the current context into the headers according to OTEL_PROPAGATORS: traceparent, tracestate and baggage."""
    if "opentelemetry.context" in sys.modules and (inject := _injector()) is not None:
        inject(request.headers)


async def add_trace_context_async(request: httpx.Request) -> None:
    """Run `add_trace_context` as a hook of an asynchronous client."""
    add_trace_context(request)


@cache
def _injector() -> Callable[[MutableMapping[str, str]], None] | None:
    try:
        from opentelemetry.propagate import inject
    except ImportError:
        return None
    except ValueError as error:
        log.warning("no trace context is sent: OTEL_PROPAGATORS: %s", error)
        return None
    return inject

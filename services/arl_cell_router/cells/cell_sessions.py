"""HTTP sessions to the gateway of a cell: one for requests of clients, and one for the health checks."""

import socket
from dataclasses import dataclass
from typing import Any

import aiohttp

__all__ = ["CONNECT_TIMEOUT_S", "PoolWait", "open_session"]

CONNECT_TIMEOUT_S = 3.0
"""Seconds to get a connection: to wait for a free one of the pool and to open it."""
KEEPALIVE_S = 30.0
LOST_HOST_S = 20
"""Seconds after which a connection to a machine that vanished fails, also while nothing is sent."""
OWN_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that the HTTP client would add. The router sends those of its client only."""


@dataclass(slots=True)
class PoolWait:
    """The wait of a request for a free connection. Pass it to the session as `trace_request_ctx`."""

    is_waiting: bool = False


def open_session(max_connections: int) -> aiohttp.ClientSession:
    """Return a session with its own pool of connections. It forwards bodies as they are."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S),
        connector=aiohttp.TCPConnector(
            limit=max_connections, keepalive_timeout=KEEPALIVE_S, socket_factory=_watched_socket
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=OWN_HEADERS,
        trace_configs=[_trace_of_the_pool()],
    )


def _trace_of_the_pool() -> aiohttp.TraceConfig:
    """Return the trace that keeps `PoolWait` up to date."""

    async def begin(session: aiohttp.ClientSession, context: Any, params: Any) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.is_waiting = True

    async def end(session: aiohttp.ClientSession, context: Any, params: Any) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.is_waiting = False

    trace = aiohttp.TraceConfig()
    trace.on_connection_queued_start.append(begin)
    trace.on_connection_queued_end.append(end)
    return trace


def _watched_socket(address: Any) -> socket.socket:
    """Return a socket that notices the loss of the other machine by keep-alive probes."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, LOST_HOST_S // 4)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, LOST_HOST_S // 4)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_HOST_S * 1000)
    return made

"""Limits of client connections: time for headers, size of headers, stalled responses, and numbers of connections.

Uvicorn closes a connection that is idle after a response. It never closes one that sends no request or half of one.
"""

import asyncio
import resource
from collections import Counter, OrderedDict, defaultdict
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from arl_kit.http_server.upgrade_requests import UpgradeIgnoringProtocol

__all__ = ["ConnectionLimits", "ConnectionTable", "LimitedHttpProtocol", "limited_protocol"]

HEADER_TIMEOUT_S = 15.0
"""Seconds from the start of a connection, or from the first byte of a later request, to the end of the headers."""
STALLED_RESPONSE_S = 60.0
"""Seconds that a response may wait for a client that reads nothing."""
MAX_HEADER_BYTES = 64 << 10
MAX_UNREAD_BYTES = 256 << 20
"""Bytes of a body that are discarded after an early response, so that its sender can read the response. More of them
close the connection, and so does the time of a header.
"""
MAX_HALF_OPEN_PER_ADDRESS = 512
"""Connections of one address without a complete header above which the oldest is closed for a new one."""
MIN_HALF_OPEN_S = 2.0
"""Seconds for which a connection without a complete header is never closed for another of its address."""
MAX_CONNECTIONS = 16_384
RESERVED_FILES = 256
"""File descriptors that are not available to clients: databases, other services, logs, files."""


class ConnectionLimits:
    """The limits of one server. The defaults are those of the module; the total also fits the open-file limit."""

    def __init__(
        self,
        *,
        header_timeout_s: float = HEADER_TIMEOUT_S,
        stalled_response_s: float = STALLED_RESPONSE_S,
        max_header_bytes: int = MAX_HEADER_BYTES,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        max_half_open_per_address: int = MAX_HALF_OPEN_PER_ADDRESS,
        min_half_open_s: float = MIN_HALF_OPEN_S,
        max_connections: int | None = None,
    ) -> None:
        self.header_timeout_s = header_timeout_s
        self.stalled_response_s = stalled_response_s
        self.max_header_bytes = max_header_bytes
        self.max_unread_bytes = max_unread_bytes
        self.max_half_open_per_address = max_half_open_per_address
        self.min_half_open_s = min_half_open_s
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files - RESERVED_FILES)
        self.max_connections = max_connections if max_connections is not None else max(64, most)


class ConnectionTable:
    """The connections of one server: those without a complete request header by address, and those that are idle.

    New connections have priority over connections that do nothing, so a client that opens many cannot exclude others.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.count = 0
        self._per_address: Counter[str] = Counter()
        self._half_open: defaultdict[str, OrderedDict[LimitedHttpProtocol, None]] = defaultdict(OrderedDict)
        self._idle: defaultdict[str, OrderedDict[LimitedHttpProtocol, None]] = defaultdict(OrderedDict)

    def admit(self, connection: "LimitedHttpProtocol") -> bool:
        """Count a new connection, and close one that does nothing if there are too many. Return False if all work."""
        self.count += 1
        self._per_address[connection.address] += 1
        self.mark_half_open(connection)
        if self.count <= self.limits.max_connections:
            return True
        victim = self._oldest_inactive(connection)
        if victim is not None:
            victim.close_now()
        return victim is not None

    def mark_half_open(self, connection: "LimitedHttpProtocol") -> None:
        """Note that a connection waits for the rest of a header. Close an old one of the address above its limit.

        A server accepts many connections before it reads their requests, so young ones may have sent theirs.
        """
        _discard(self._idle, connection)
        waiting = self._half_open[connection.address]
        waiting[connection] = None
        if len(waiting) > self.limits.max_half_open_per_address and (oldest := next(iter(waiting))).is_old():
            oldest.close_now()

    def mark_active(self, connection: "LimitedHttpProtocol") -> None:
        """Note that the header of a request is complete."""
        _discard(self._idle, connection)
        _discard(self._half_open, connection)

    def mark_idle(self, connection: "LimitedHttpProtocol") -> None:
        """Note that a response is complete and no request waits."""
        _discard(self._half_open, connection)
        self._idle[connection.address][connection] = None

    def remove(self, connection: "LimitedHttpProtocol") -> None:
        """Forget a closed connection."""
        self.count -= 1
        self._per_address[connection.address] -= 1
        if not self._per_address[connection.address]:
            del self._per_address[connection.address]
        self.mark_active(connection)

    def _oldest_inactive(self, newest: "LimitedHttpProtocol") -> "LimitedHttpProtocol | None":
        """Return an idle or half-open connection of the address that has the most connections, or else of any."""
        busiest, _ = self._per_address.most_common(1)[0]
        for address in (busiest, *self._idle, *self._half_open):
            for table in (self._idle, self._half_open):
                oldest = next(iter(table.get(address, ())), None)
                if oldest is not None and oldest is not newest:
                    return oldest
        return None


def _discard(
    table: defaultdict[str, OrderedDict["LimitedHttpProtocol", None]], connection: "LimitedHttpProtocol"
) -> None:
    waiting = table.get(connection.address)
    if waiting is not None:
        waiting.pop(connection, None)
        if not waiting:
            del table[connection.address]


class LimitedHttpProtocol(UpgradeIgnoringProtocol):
    """Uvicorn's connection with the limits of a `ConnectionTable`."""

    table: ConnectionTable
    address = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._unread_bytes = self._trailer_bytes = 0
        self._opened_at = 0.0
        self._in_header = self._header_continues = True
        self._in_body = False
        self._is_counted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, or close it with 503 if the server has too many active ones."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._is_counted = True
        self._opened_at = self.loop.time()
        if self.table.admit(self):
            self._start_header_timer()
        else:
            self._refuse(503, "Too many connections. Try again later.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timers()
        if self._is_counted:
            self._is_counted = False
            self.table.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes | memoryview) -> None:
        """Parse the data, and limit the size of headers and of bodies that nothing reads."""
        was_unread = self._has_unread_body()
        self._header_continues = self._in_header
        super().data_received(data)
        if self._header_continues:
            self._header_bytes += len(data)
            if self._header_bytes > self.table.limits.max_header_bytes:
                self._refuse(431, "The header of the request is too large.")
        elif self._trailer_bytes > self.table.limits.max_header_bytes:
            self.close_now()
        elif was_unread:
            self._unread_bytes += len(data)
            if self._unread_bytes > self.table.limits.max_unread_bytes:
                self.close_now()

    def on_message_begin(self) -> None:
        """Start the limits of a header."""
        super().on_message_begin()
        self._in_header, self._header_bytes = True, 0
        self._start_header_timer()
        if self._is_between_requests():
            self.table.mark_half_open(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the header. Fields after a chunked body are dropped, and limited like a header."""
        if self._in_header:
            super().on_header(name, value)
        else:
            self._trailer_bytes += len(name) + len(value) + len(": \r\n")

    def on_headers_complete(self) -> None:
        """Stop the limits of headers and start the request."""
        self._in_header, self._in_body, self._unread_bytes, self._trailer_bytes = False, True, 0, 0
        self._header_continues = False
        self._stop_header_timer()
        self.table.mark_active(self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note the end of the body."""
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Note an idle connection, or start the next request. A body that still arrives has the time of a header."""
        super().on_response_complete()
        if self._is_counted and not self._in_header and self._is_between_requests():
            self.table.mark_idle(self)
            if self._in_body:
                self._start_header_timer()

    def pause_writing(self) -> None:
        """Close the connection if its client does not continue to read."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.table.limits.stalled_response_s, self.close_now)

    def resume_writing(self) -> None:
        """Continue a response."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def is_old(self) -> bool:
        """Return True if the connection has had time to send a header."""
        return self.loop.time() - self._opened_at >= self.table.limits.min_half_open_s

    def close_now(self) -> None:
        """Close the connection without a response."""
        if self._is_counted:
            self.table.mark_active(self)
        self.transport.abort()

    def _is_between_requests(self) -> bool:
        return (self.cycle is None or self.cycle.response_complete) and not self.pipeline

    def _has_unread_body(self) -> bool:
        return self._in_body and self._is_between_requests()

    def _start_header_timer(self) -> None:
        self._stop_header_timer()
        self._header_timer = self.loop.call_later(self.table.limits.header_timeout_s, self.close_now)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_timers(self) -> None:
        self._stop_header_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _refuse(self, status: int, message: str) -> None:
        self._stop_timers()
        if not self.transport.is_closing():
            content = message.encode()
            head = b"content-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(content)
            self.transport.write(STATUS_LINE[status] + head + content)
            self.transport.close()


def limited_protocol(limits: ConnectionLimits) -> type[LimitedHttpProtocol]:
    """Return a protocol class for one server, for uvicorn's option `http`."""
    return type("ServerHttpProtocol", (LimitedHttpProtocol,), {"table": ConnectionTable(limits)})

"""The network of one environment: its policy, its listening sockets, its connections and their use."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from json import dumps
from typing import Any

from arl_core.network.policy import NetworkPolicy
from arl_cpu.egress.dialer import Dialer, TargetRefused

__all__ = ["ConnectionHandler", "EnvironmentGate", "GateConnection"]

_MAX_CONNECTIONS = 256
"""Connections of one environment at once."""
_MAX_LOOKUPS = 32
"""Names of one environment that are resolved at once."""
_MAX_REFUSALS = 32
"""Refused targets that a result lists."""
_MAX_HOST = 255
_IDLE_S = 300.0
_CLOSE_S = 5.0
"""Seconds in which what is written must reach a peer before the connection is dropped."""
_LIMIT_BYTES = 64 << 10
_CHUNK = 64 << 10


class GateConnection:
    """One connection of a program and, once it is made, the connection to its target."""

    def __init__(self, gate: "EnvironmentGate", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.gate, self.reader, self.writer = gate, reader, writer
        self.target: tuple[str, int] | None = None
        self._upstream: asyncio.StreamWriter | None = None
        self._loop = asyncio.get_running_loop()
        self._active_at = self._loop.time()
        self._idle_timer = self._loop.call_later(_IDLE_S, self._check_idle)

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a target that the policy allows. Raises TargetRefused, ResolveFailed and OSError."""
        if not self.gate.policy.allows(host, port):
            raise TargetRefused(host, port, "not_allowed")
        self.target = host, port
        reader, writer = await self.gate.dialer.connect(host, port)
        self._upstream = writer
        if not self.gate.policy.allows(host, port):  # it changed meanwhile
            raise TargetRefused(host, port, "not_allowed")
        return reader, writer

    async def relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        check_first: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        """Copy both directions until both have ended. `check_first` returns the first bytes of the program."""

        async def send() -> None:
            if check_first is not None:
                await self._forward(await check_first(), writer, self.gate.count_sent)
            while data := await self.reader.read(_CHUNK):
                await self._forward(data, writer, self.gate.count_sent)
            with suppress(OSError, NotImplementedError):
                writer.write_eof()

        async def receive() -> None:
            while data := await reader.read(_CHUNK):
                await self._forward(data, self.writer, self.gate.count_received)
            with suppress(OSError, NotImplementedError):
                self.writer.write_eof()

        async with asyncio.TaskGroup() as directions:
            directions.create_task(send())
            directions.create_task(receive())

    async def send_first(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        """Send bytes to the target before the relay begins."""
        await self._forward(data, writer, self.gate.count_sent)

    def abort(self) -> None:
        """Close both connections at once."""
        self._idle_timer.cancel()
        for each in (self.writer, self._upstream):
            if each is not None:
                each.transport.abort()

    def close(self) -> None:
        """Close both connections after what is written."""
        self._idle_timer.cancel()
        for each in (self.writer, self._upstream):
            if each is not None:
                with suppress(OSError, RuntimeError):
                    each.close()

    async def finish(self) -> None:
        """Close both connections, and drop them if a peer does not read the rest."""
        self.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                for each in (self.writer, self._upstream):
                    if each is not None:
                        with suppress(OSError):
                            await each.wait_closed()
        except TimeoutError:
            pass
        finally:
            self.abort()

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
        self._active_at = self._loop.time()
        if data:
            count(len(data))
            writer.write(data)
            await writer.drain()
            self._active_at = self._loop.time()

    def _check_idle(self) -> None:
        rest_s = self._active_at + _IDLE_S - self._loop.time()
        if rest_s <= 0:
            self.abort()
        else:
            self._idle_timer = self._loop.call_later(rest_s, self._check_idle)


ConnectionHandler = Callable[[GateConnection], Awaitable[None]]


class EnvironmentGate:
    """The network of one environment. Only its programs reach its sockets, so each connection belongs to it."""

    def __init__(self, id: str, policy: NetworkPolicy, dialer: Dialer) -> None:
        self.id, self.policy, self.dialer = id, policy, dialer
        self.lookups = asyncio.Semaphore(_MAX_LOOKUPS)
        self._servers: list[asyncio.Server] = []
        self._datagrams: list[asyncio.DatagramTransport] = []
        self._connections: set[GateConnection] = set()
        self._is_closed = False
        self._sent = self._received = self._more = 0
        self._refusals: dict[tuple[str, int, str], int] = {}

    async def serve(self, listener: socket.socket, handler: ConnectionHandler) -> None:
        """Serve the connections of a listening socket."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._handle(GateConnection(self, reader, writer), handler)

        self._servers.append(await asyncio.start_server(accept, sock=listener, limit=_LIMIT_BYTES))

    async def serve_datagrams(self, bound: socket.socket, protocol: asyncio.DatagramProtocol) -> None:
        """Serve the datagrams of a socket."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: protocol, sock=bound)
        self._datagrams.append(transport)

    def set_policy(self, policy: NetworkPolicy) -> None:
        """Change the policy, and close the connections that it refuses."""
        self.policy = policy
        for each in tuple(self._connections):
            if each.target is not None and not policy.allows(*each.target):
                self.refuse(*each.target, "not_allowed")
                each.abort()

    def close(self) -> None:
        """Close all sockets and connections. Those that were accepted a moment ago reach nothing."""
        self._is_closed, self.policy = True, NetworkPolicy()
        while self._servers:
            self._servers.pop().close()
        while self._datagrams:
            self._datagrams.pop().abort()
        for each in tuple(self._connections):
            each.abort()

    @property
    def connection_count(self) -> int:
        """The connections that are open, or not yet dropped."""
        return len(self._connections)

    def continue_usage(self, earlier: "EnvironmentGate") -> None:
        """Report the use of an earlier gate of the environment as well."""
        self._sent, self._received, self._more = earlier._sent, earlier._received, earlier._more
        self._refusals = earlier._refusals

    def count_sent(self, size: int) -> None:
        """Count bytes that a program sent."""
        self._sent += size

    def count_received(self, size: int) -> None:
        """Count bytes that a program received."""
        self._received += size

    def refuse(self, host: str, port: int, reason: str) -> None:
        """Record a refusal; the first one of a target is logged."""
        key = host[:_MAX_HOST], port, reason
        if key in self._refusals:
            self._refusals[key] += 1
        elif len(self._refusals) < _MAX_REFUSALS:
            self._refusals[key] = 1
            entry = {"event": "network_refused", "environment": self.id, "host": key[0], "port": port, "reason": reason}
            sys.stdout.write(dumps(entry) + "\n")
            sys.stdout.flush()
        else:
            self._more += 1

    def take_usage(self) -> dict[str, Any]:
        """Return the use since the last call, in the form of `NetworkUsage`."""
        refusals = [
            {"host": host, "port": port, "reason": reason, "count": count}
            for (host, port, reason), count in self._refusals.items()
        ]
        usage = {
            "sent_bytes": self._sent,
            "received_bytes": self._received,
            "refusals": refusals,
            "more_refusals": self._more,
        }
        self._sent = self._received = self._more = 0
        self._refusals = {}
        return usage

    async def _handle(self, connection: GateConnection, handler: ConnectionHandler) -> None:
        """Serve one connection. An error ends only this connection."""
        if self._is_closed:
            connection.abort()
            return
        if len(self._connections) >= _MAX_CONNECTIONS:
            self.refuse("", 0, "too_many")
            connection.abort()
            return
        self._connections.add(connection)
        try:
            await handler(connection)
        except* (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # one side has ended the connection or sends too much
        except* TargetRefused as refused:
            for each in _leaves(refused):
                self.refuse(each.host, each.port, each.reason)
        finally:
            await connection.finish()
            self._connections.discard(connection)


def _leaves(group: BaseExceptionGroup[TargetRefused]) -> list[TargetRefused]:
    found: list[TargetRefused] = []
    for each in group.exceptions:
        found += _leaves(each) if isinstance(each, BaseExceptionGroup) else [each]
    return found

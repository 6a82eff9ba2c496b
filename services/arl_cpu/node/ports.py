"""Connections to servers inside environments, opened for the gateway.

A connection needs no cores. The gateway ensures that an action of the environment runs, because a server of a resting
environment is frozen. The kernel accepts connections for it meanwhile.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from arl_cpu.contract.environment_access import EnvironmentSocketError
from arl_cpu.contract.executor import Executor
from arl_kit.http_server.takeover import RELAY_CHUNK_BYTES, close_connection
from arl_wire.errors import Conflict, NothingListens, RequirementNotEnforced, TangramError, Unavailable

__all__ = ["EnvironmentPorts"]

MAX_CONNECTIONS = 2048
MAX_CONNECTIONS_PER_ENVIRONMENT = 256
CONNECT_TIMEOUT_S = 5.0
"""Seconds until the server's queue of connections must have room."""
LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""Addresses of the environment at which a server is searched, in this order."""
ERRORS_BY_CODE: dict[str, type[TangramError]] = {"lost": Conflict, "not_enforced": RequirementNotEnforced}


class EnvironmentPorts:
    """The open connections of this node by environment."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._open: Counter[UUID] = Counter()
        self._per_project: Counter[int] = Counter()
        self._creating: dict[UUID, asyncio.Lock] = {}
        """Locks of the environments with connections. The launcher creates one socket after the other for all."""
        self.draining = asyncio.Event()
        """Set when the manager stops. All connections then end."""

    @asynccontextmanager
    async def connect(
        self, project: int, environment: UUID, port: int
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect to a server that listens on the port inside the environment. Raises TangramError."""
        self._check_limits(project, environment)
        self._open[environment] += 1
        self._per_project[project] += 1
        try:
            connected = await self._connect(environment, port)
            reader, writer = await asyncio.open_connection(sock=connected, limit=RELAY_CHUNK_BYTES)
            try:
                yield reader, writer
            finally:
                await close_connection(writer, 0)
        finally:
            self._open[environment] -= 1
            if not self._open[environment]:
                del self._open[environment]
                self._creating.pop(environment, None)
            self._per_project[project] -= 1
            if not self._per_project[project]:
                del self._per_project[project]

    def _check_limits(self, project: int, environment: UUID) -> None:
        """Leave room for others: a project has at most half of the connections that other projects do not use."""
        used, in_all = self._per_project[project], self._open.total()
        if self._open[environment] >= MAX_CONNECTIONS_PER_ENVIRONMENT:
            raise Unavailable(f"environment {environment} has too many open connections; try again", retry_after_s=1)
        if used >= (MAX_CONNECTIONS - (in_all - used)) // 2:
            raise Unavailable("the project has too many open connections on this node; try again", retry_after_s=1)

    async def _connect(self, environment: UUID, port: int) -> socket.socket:
        try:
            for family, address in LOOPBACKS:
                connection = await self._create_socket(environment, family)
                if connection is None:
                    continue
                try:
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        await asyncio.get_running_loop().sock_connect(connection, (address, port))
                    return connection
                except OSError as error:
                    connection.close()
                    if isinstance(error, TimeoutError):
                        raise Unavailable(
                            f"the server on port {port} accepts no connections", retry_after_s=1
                        ) from None
                except BaseException:
                    connection.close()
                    raise
        except EnvironmentSocketError as refused:
            raise ERRORS_BY_CODE.get(refused.code, Unavailable)(str(refused)) from None
        except (ConnectionError, TimeoutError) as lost:
            raise Unavailable(f"the launcher is not available: {lost}", retry_after_s=1) from None
        raise NothingListens(f"Nothing listens on port {port} in environment {environment}")

    async def _create_socket(self, environment: UUID, family: socket.AddressFamily) -> socket.socket | None:
        """Return a socket inside the environment, or None if the host lacks the family of addresses."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S), self._creating.setdefault(environment, asyncio.Lock()):
                return await self._executor.create_socket(environment, family)
        except EnvironmentSocketError as refused:
            if refused.code != "no_family":
                raise
            return None

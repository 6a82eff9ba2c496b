"""MCP sessions and their environments: one environment for each session, which ends with it.

Over stdio, the process is the session. Over HTTP, a client that begins with `initialize` gets a session. Protocol
versions from 2026 on have no sessions over HTTP, so their clients name a trajectory in the address instead.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID

from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from arl_tangram.adapters.environment_programs import AsyncEnvironmentPrograms
from arl_tangram.async_client import AsyncTangram
from arl_wire.errors import Conflict, TangramError, Unauthenticated

__all__ = ["ApiKeyVerifier", "McpOptions", "McpSessions", "ToolSession", "trajectory_in_address"]

TRAJECTORY_PARAMETER = "trajectory"
VERIFY_RETRY_S = 2.0
VERIFIED_S = 60.0
"""Seconds for which a key that the gateway accepted is not checked again. Each call sends the key to the gateway."""
MAX_VERIFIED_KEYS = 1000
CLOSE_TIMEOUT_S = 4.0
"""Seconds to end an environment. `mcp` waits for 5 s at the end of a connection."""
MAX_ENDED = 10_000
"""Trajectories without an environment that are remembered, the latest ones."""


@dataclass(frozen=True, kw_only=True)
class McpOptions:
    """Options of `tangram mcp`: the environment of each session, and the demand of its commands."""

    task: str = "mcp"
    trajectory: str | None = None
    template: str | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    cpu: float = 1.0
    timeout_s: float = 120.0
    idle_ttl_s: int = 1800
    """Seconds without a call after which an environment ends, and with it a session over HTTP."""
    shell: str = "bash"
    """Program that runs commands, with `-c`."""


class ToolSession:
    """One MCP session. Its first tool call creates the environment."""

    def __init__(self, client: AsyncTangram, options: McpOptions, trajectory: str | None) -> None:
        self._client = client
        self._options = options
        self._trajectory = trajectory
        self._creating = asyncio.Lock()
        self._programs: AsyncEnvironmentPrograms | None = None
        self._calls = 0
        self._used_at = time.monotonic()

    def is_unused(self, *, since: float) -> bool:
        """Return True if no call runs and none has run since this monotonic time."""
        return self._calls == 0 and self._used_at < since

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a tool call, so that the session stays open during it."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._used_at = time.monotonic()

    async def programs(self) -> AsyncEnvironmentPrograms:
        """Return the environment, which exists afterwards. Raises the errors of its creation."""
        async with self._creating:
            if self._programs is None:
                names = ("task", "template", "memory_mib", "disk_mib", "idle_ttl_s")
                given: dict[str, Any] = {name: getattr(self._options, name) for name in names}
                created = await self._client.environment(**given | {"trajectory": self._trajectory})
                self._programs = AsyncEnvironmentPrograms(created, cpu=self._options.cpu)
            return self._programs

    async def close(self) -> None:
        """End the environment, if there is one. If the gateway does not answer, it ends after `idle_ttl_s`."""
        try:
            if self._programs is not None:
                with suppress(TangramError, TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await self._programs.environment.end()
        finally:
            await self._client.close()


class McpSessions:
    """The sessions of one server, and the way from a request to its session."""

    def __init__(self, url: str, api_key: str | None, options: McpOptions) -> None:
        """Serve stdio with the key `api_key`, or HTTP with the key of each request if it is None."""
        self._url = url
        self._api_key = api_key
        self._options = options
        self._named: dict[tuple[str, str], ToolSession] = {}
        self._ended: dict[tuple[str, str], None] = {}
        """Named trajectories whose environments ended after `idle_ttl_s` without a call."""
        self._own: ToolSession | None = None

    @asynccontextmanager
    async def lifespan(self, _: MCPServer[Any]) -> AsyncIterator["McpSessions"]:
        """Close the sessions that belong to no MCP connection at the end of the server."""
        try:
            yield self
        finally:
            left = [*self._named.values(), *([self._own] if self._own is not None else [])]
            self._named.clear()
            await asyncio.gather(*(session.close() for session in left))

    async def session_of(self, context: ServerRequestContext[Any, Any]) -> ToolSession:
        """Return the session of a request. Raises `ToolError` if the protocol has none and the address names none."""
        if context.request is None:
            if self._own is None:
                self._own = self._open(self._api_key, self._options.trajectory)
            return self._own
        token: AccessToken = context.request.user.access_token
        trajectory = trajectory_in_address(context)
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return await self._named_session(token, trajectory)
        # The only way to the connection's storage and to its end, which `mcp` documents for cleanup.
        connection = context.session._connection
        if (session := connection.state.get("tangram")) is None:
            session = connection.state["tangram"] = self._open(token.token, trajectory)
            connection.exit_stack.push_async_callback(session.close)
        assert isinstance(session, ToolSession)
        return session

    async def _named_session(self, token: AccessToken, trajectory: str | None) -> ToolSession:
        if trajectory is None:
            raise ToolError(
                "This protocol version has no sessions. Add ?trajectory=NAME to the address of the server: all calls"
                " with one name use one environment"
            )
        await self._close_unused()
        key = (token.client_id, trajectory)
        if key in self._ended:
            raise Conflict(
                f"the environment of trajectory {trajectory} ended after {self._options.idle_ttl_s} s without a call:"
                " begin with another name"
            )
        if key not in self._named:
            self._named[key] = self._open(token.token, trajectory)
        return self._named[key]

    async def _close_unused(self) -> None:
        """Forget sessions whose environments have ended after `idle_ttl_s` without a call."""
        oldest = time.monotonic() - self._options.idle_ttl_s
        unused = [key for key, session in self._named.items() if session.is_unused(since=oldest)]
        self._ended |= dict.fromkeys(unused)
        for key in list(self._ended)[:-MAX_ENDED]:
            del self._ended[key]
        await asyncio.gather(*(self._named.pop(key).close() for key in unused))

    def _open(self, api_key: str | None, trajectory: str | None) -> ToolSession:
        return ToolSession(AsyncTangram(self._url, api_key), self._options, trajectory)


class ApiKeyVerifier:
    """Accept the API keys that the gateway accepts. It is a `TokenVerifier` of the package `mcp`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._accepted: dict[str, float] = {}

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the identity of a key, or None if it is invalid.

        If the gateway does not answer, the key passes: it is sent to the gateway with each call, which then fails.
        """
        client_id = sha256(token.encode()).hexdigest()
        if self._accepted.get(client_id, 0.0) < time.monotonic() and not await self._is_valid(token, client_id):
            return None
        return AccessToken(token=token, client_id=client_id, scopes=[])

    async def _is_valid(self, token: str, client_id: str) -> bool:
        try:
            async with AsyncTangram(self._url, token, retry_timeout_s=VERIFY_RETRY_S) as client:
                await client.get_environment(UUID(int=0))
        except Unauthenticated:
            self._accepted.pop(client_id, None)
            return False
        except TangramError as error:
            if error.status >= 500:
                return True
        if len(self._accepted) >= MAX_VERIFIED_KEYS:
            self._accepted.clear()
        self._accepted[client_id] = time.monotonic() + VERIFIED_S
        return True


def trajectory_in_address(context: ServerRequestContext[Any, Any]) -> str | None:
    """Return the trajectory that the address of an HTTP request names."""
    return context.request.query_params.get(TRAJECTORY_PARAMETER) or None if context.request is not None else None

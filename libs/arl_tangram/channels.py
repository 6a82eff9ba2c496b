"""HTTP clients of one process and one event loop, made anew where another one asks.

Two processes that share a connection read each other's answers, and one whose event loop has ended answers nobody. So
a client may be made before a fork, be used by one `asyncio.run` after another, and be pickled for another process.
"""

import asyncio
import os
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies
from weakref import WeakKeyDictionary

import httpx

from arl_tangram.connection import Connection
from arl_tangram.shared_wait import Ask, SharedWait

__all__ = ["AsyncChannel", "Channel"]

CONNECTIONS = 2000
LIMITS = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=200)
LOOPBACK = ("127.", "localhost", "::1")


class Channel:
    """Its client is safe to share between threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._process = 0
        self._client: httpx.Client | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._connection,)

    @property
    def http(self) -> httpx.Client:
        if self._client is None or self._process != os.getpid():
            self._client = httpx.Client(**_options(self._connection), limits=LIMITS)
            self._process = os.getpid()
        return self._client

    def close(self) -> None:
        """What a parent process has open is left to it."""
        if self._client is not None and self._process == os.getpid():
            self._client.close()


class AsyncChannel:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._process = 0
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()
        self._waits: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedWait] = WeakKeyDictionary()
        self.running = 0
        """Calls that wait for the outcome of an action, each by a connection of its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._connection,)

    @property
    def http(self) -> httpx.AsyncClient:
        """That of the running event loop."""
        if self._process != os.getpid():
            self._clients, self._waits = WeakKeyDictionary(), WeakKeyDictionary()
            self._process, self.running = os.getpid(), 0
        loop = asyncio.get_running_loop()
        if (client := self._clients.get(loop)) is None:
            transport = _transport(self._connection.url)
            client = self._clients[loop] = httpx.AsyncClient(**_options(self._connection), transport=transport)
        return client

    def shared_wait(self, ask: Ask) -> SharedWait:
        """That of the running event loop; `ask`: how it asks if it is the first."""
        loop = asyncio.get_running_loop()
        return self._waits.get(loop) or self._waits.setdefault(loop, SharedWait(ask))

    async def close(self) -> None:
        """What other event loops have open is left to them."""
        if self._process != os.getpid():
            return
        loop = asyncio.get_running_loop()
        if (wait := self._waits.pop(loop, None)) is not None:
            await wait.close()
        if (client := self._clients.pop(loop, None)) is not None:
            await client.aclose()


def _options(connection: Connection) -> dict[str, Any]:
    """A proxy of the environment is not meant for this machine, and would be told the key."""
    return {
        "base_url": connection.url,
        "headers": {"authorization": f"Bearer {connection.api_key}"},
        "trust_env": not _is_loopback(connection.url),
    }


def _is_loopback(url: str) -> bool:
    return (urlsplit(url).hostname or "").startswith(LOOPBACK)


def _transport(url: str) -> httpx.AsyncBaseTransport:
    """For many calls at once: httpx's own pool looks at all its connections for each call, 7 CPU-ms with 32 of them."""
    # Only who needs it pays for the import, which takes as long as that of all the rest.
    from aiohttp import ClientSession, DummyCookieJar, TCPConnector
    from httpx_aiohttp import AiohttpTransport

    def session() -> ClientSession:
        # Its certificates take 20 CPU-ms to read.
        ssl = httpx.create_ssl_context() if url.startswith("https:") else True
        connector = TCPConnector(limit=CONNECTIONS, ssl=ssl)
        trust_env = not _is_loopback(url) and bool(getproxies())
        return ClientSession(connector=connector, cookie_jar=DummyCookieJar(), trust_env=trust_env)

    return AiohttpTransport(client=session)

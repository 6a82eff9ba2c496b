"""Wake-ups over NOTIFY, without payload and coalesced. Polling is the fallback.

One NOTIFY per transaction locks the whole database at commit (563 inserts per second were measured). One NOTIFY in
flight on a separate connection costs the writers nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import asyncpg

__all__ = ["SETTLED_CHANNEL", "WakeListener", "WakeNotifier"]

SETTLED_CHANNEL = "tangram_settled"
LISTENER_CHECK_S = 20.0
RECONNECT_S = 1.0
CONNECT_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class _DedicatedConnection:
    """A task with a dedicated connection that reconnects after every loss."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the task that keeps the connection."""
        self._task = asyncio.create_task(self._run_forever(), name=self._name)

    async def stop(self) -> None:
        """End the task and close the connection."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run_forever(self) -> None:
        while True:
            try:
                await self._run_once()
            except Exception as error:  # noqa: BLE001 - a new connection follows any error
                log.warning("%s lost its connection: %s", self._name, type(error).__name__)
            await asyncio.sleep(RECONNECT_S)

    async def _run_once(self) -> None:
        connection = await asyncpg.connect(
            self._url, timeout=CONNECT_TIMEOUT_S, server_settings={"application_name": self._name}
        )
        try:
            await self._use(connection)
        finally:
            connection.terminate()

    async def _use(self, connection: asyncpg.Connection) -> None:
        raise NotImplementedError


class WakeNotifier(_DedicatedConnection):
    """A sender of notifications. `notify` never waits and never fails; many calls become one NOTIFY."""

    def __init__(self, url: str, *, name: str, channel: str = SETTLED_CHANNEL) -> None:
        super().__init__(url, f"{name}-notifier")
        self._channel = channel
        self._requested = asyncio.Event()

    def notify(self) -> None:
        """Request a notification. Calls before it is sent become one."""
        self._requested.set()

    async def _use(self, connection: asyncpg.Connection) -> None:
        while True:
            await self._requested.wait()
            self._requested.clear()
            try:
                await connection.execute(f"notify {self._channel}", timeout=CONNECT_TIMEOUT_S)
            except BaseException:
                self._requested.set()
                raise


class WakeListener(_DedicatedConnection):
    """A listener that calls `on_wake` after every notification, and after every reconnect because some may be lost."""

    def __init__(self, url: str, *, name: str, on_wake: Callable[[], None], channel: str = SETTLED_CHANNEL) -> None:
        super().__init__(url, f"{name}-listener")
        self._channel = channel
        self._on_wake = on_wake

    async def _use(self, connection: asyncpg.Connection) -> None:
        await connection.add_listener(self._channel, lambda *_: self._on_wake())
        self._on_wake()
        while True:
            await asyncio.sleep(LISTENER_CHECK_S)
            # A half-open connection never reports its end by itself.
            await asyncio.wait_for(connection.execute("select 1"), CONNECT_TIMEOUT_S)

"""The uvicorn server of an app, with a drain callback and little CPU time when idle."""

import asyncio
import gc
import resource
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from arl_kit.http_server.connection_limits import ConnectionLimits, limited_protocol
from arl_kit.settings import ProcessSettings
from arl_kit.telemetry import set_up_logging

__all__ = ["freeze_heap", "serve"]

DRAIN_TIMEOUT_S = 20
TICK_INTERVAL_S = 1.0
"""Maximum age of the Date header in seconds. Uvicorn's ten ticks per second are most of an idle service's CPU time."""

GC_THRESHOLDS = 5_000, 80, 100
"""Garbage collection thresholds: new objects, then collections of the previous generation.

The defaults scan new objects seven times as often, and scan all old objects, such as a million queued actions, whenever
their number has grown by a quarter.
"""


def serve(app: FastAPI, settings: ProcessSettings, *, name: str, on_drain: Callable[[], None] | None = None) -> None:
    """Run until SIGTERM, then finish requests in flight. `on_drain` is called first, to end requests that only wait."""
    set_up_logging(name, settings.log_level)
    freeze_heap()
    _raise_open_file_limit()
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=limited_protocol(ConnectionLimits()),
        ws="none",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
    )
    _DrainingServer(config, on_drain).run()


class _DrainingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_drain: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._on_drain = on_drain
        self._exiting = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server in the running event loop."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def main_loop(self) -> None:
        """Run until the server should exit, with one tick per second."""
        while not await self.on_tick(0):
            try:
                async with asyncio.timeout(TICK_INTERVAL_S):
                    await self._exiting.wait()
            except TimeoutError:
                continue

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal as uvicorn does, and start to drain."""
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        if self._on_drain is not None:
            self._on_drain()
        self._exiting.set()


def _raise_open_file_limit() -> None:
    """Use all files that the process may open. Each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def freeze_heap() -> None:
    """Exclude all current objects from garbage collection, and collect new objects less often.

    Objects without reference cycles are still freed at once.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)

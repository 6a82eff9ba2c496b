"""Everybody who waits for an action, on one query per wake-up."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from uuid import UUID

from arl_gateway import repository
from arl_store.tx import Store

__all__ = ["Waiters"]

log = logging.getLogger(__name__)


class Waiters:
    """Register first, read the row then: whatever settles in between wakes the registered one."""

    def __init__(self, store: Store, *, poll_s: float) -> None:
        self._store = store
        self._poll_s = poll_s
        self._waiting: dict[UUID, set[asyncio.Event]] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._forever(), name="waiters")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def wake(self) -> None:
        """Something settled; ours or not, one query tells."""
        self._woken.set()

    @asynccontextmanager
    async def registered(self, ids: Collection[UUID]) -> AsyncIterator[asyncio.Event]:
        """An event that is set when one of `ids` may have settled."""
        event = asyncio.Event()
        for id in ids:
            self._waiting.setdefault(id, set()).add(event)
        if ids:
            self._woken.set()
        try:
            yield event
        finally:
            for id in ids:
                self._forget(id, event)

    def _forget(self, id: UUID, event: asyncio.Event) -> None:
        events = self._waiting.get(id)
        if events is None:
            return
        events.discard(event)
        if not events:
            del self._waiting[id]

    async def _forever(self) -> None:
        while True:
            try:
                await self._turn()
            except Exception as error:  # noqa: BLE001 - Postgres may be away; whoever waits goes on waiting
                log.warning("looking for settled actions failed: %s", type(error).__name__)
                await asyncio.sleep(self._poll_s)

    async def _turn(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll_s if self._waiting else None):
                await self._woken.wait()
        self._woken.clear()
        if not self._waiting:
            return
        async with self._store.read() as tx:
            settled = await repository.settled_among(tx, list(self._waiting))
        for id in settled:
            for event in self._waiting.pop(id, ()):
                event.set()

"""Waiting for very many actions by one request at a time, so that none waits for a connection."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from arl_tangram.operations import BATCH, WaitTimeout
from arl_wire.actions import Action

__all__ = ["SharedWait"]

CYCLE_S = 1.0
"""So often all of them are asked for, also those that came meanwhile."""
GATHER_S = 0.05
"""Between requests, so that an answer has more than one."""

Ask = Callable[[Sequence[UUID], float], Awaitable[Sequence[Action]]]
"""Those of these ids that have settled, at least one, within so many seconds; raises `WaitTimeout`."""


class SharedWait:
    """Of one event loop."""

    def __init__(self, ask: Ask | None = None, *, cycle_s: float = CYCLE_S) -> None:
        self.ask, self._cycle_s = ask, cycle_s
        self._waiting: dict[UUID, asyncio.Future[Action]] = {}
        """In the order in which they are asked for."""
        self._asking: asyncio.Task[None] | None = None

    async def settled(self, id: UUID) -> Action:
        """Raises what the request raised that asked for it."""
        future = self._waiting.setdefault(id, asyncio.get_running_loop().create_future())
        if self._asking is None:
            self._asking = asyncio.create_task(self._go(), name="shared wait")
        try:
            return await future
        finally:
            self._waiting.pop(id, None)

    async def close(self) -> None:
        """Whoever still waits is cancelled."""
        for future in self._waiting.values():
            future.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait((self._asking,))

    async def _go(self) -> None:
        try:
            while self._waiting:
                await self._ask_once(list(self._waiting)[:BATCH])
                await asyncio.sleep(GATHER_S)
        finally:
            self._asking = None

    async def _ask_once(self, ids: Sequence[UUID]) -> None:
        requests = -(-len(self._waiting) // BATCH)
        assert self.ask is not None
        try:
            found = await self.ask(ids, self._cycle_s / requests)
        except WaitTimeout:
            found = ()
        except Exception as error:  # noqa: BLE001 - whoever waits for one of these hears of it
            for id in ids:
                self._end(id, error)
            return
        for action in found:
            self._end(action.id, action)
        for id in ids:
            if id in self._waiting:
                self._waiting[id] = self._waiting.pop(id)

    def _end(self, id: UUID, said: Action | Exception) -> None:
        future = self._waiting.pop(id, None)
        if future is None or future.done():
            return
        if isinstance(said, Exception):
            future.set_exception(said)
        else:
            future.set_result(said)

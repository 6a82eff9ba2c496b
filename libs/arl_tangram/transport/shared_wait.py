"""Waiting for very many actions by one request at a time, so that none waits for a connection."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from arl_tangram.operations import MAX_BATCH_ITEMS, WaitTimeout
from arl_wire.actions.action import Action

__all__ = ["SharedWait"]

POLL_CYCLE_S = 1.0
"""So often all of them are asked for, also those that came meanwhile."""
POLL_LINGER_S = 0.05
"""Between requests, so that an answer has more than one."""

FetchSettled = Callable[[Sequence[UUID], float], Awaitable[Sequence[Action]]]
"""Those of these ids that have settled, at least one, within so many seconds; raises `WaitTimeout`."""


class SharedWait:
    """Of one event loop."""

    def __init__(self, fetch_settled: FetchSettled | None = None, *, cycle_s: float = POLL_CYCLE_S) -> None:
        self.fetch_settled, self._cycle_s = fetch_settled, cycle_s
        self._futures: dict[UUID, asyncio.Future[Action]] = {}
        """In the order in which they are asked for."""
        self._poll_task: asyncio.Task[None] | None = None

    async def wait_settled(self, id: UUID) -> Action:
        """Raises what the request raised that asked for it."""
        future = self._futures.setdefault(id, asyncio.get_running_loop().create_future())
        if self._poll_task is None:
            self._poll_task = asyncio.create_task(self._poll_loop(), name="shared wait")
        try:
            return await future
        finally:
            self._futures.pop(id, None)

    async def close(self) -> None:
        """Whoever still waits is cancelled."""
        for future in self._futures.values():
            future.cancel()
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.wait((self._poll_task,))

    async def _poll_loop(self) -> None:
        try:
            while self._futures:
                await self._poll_once(list(self._futures)[:MAX_BATCH_ITEMS])
                await asyncio.sleep(POLL_LINGER_S)
        finally:
            self._poll_task = None

    async def _poll_once(self, ids: Sequence[UUID]) -> None:
        requests = -(-len(self._futures) // MAX_BATCH_ITEMS)
        assert self.fetch_settled is not None
        try:
            found = await self.fetch_settled(ids, self._cycle_s / requests)
        except WaitTimeout:
            found = ()
        except Exception as error:  # noqa: BLE001 - whoever waits for one of these hears of it
            for id in ids:
                self._resolve(id, error)
            return
        for action in found:
            self._resolve(action.id, action)
        for id in ids:
            if id in self._futures:
                self._futures[id] = self._futures.pop(id)

    def _resolve(self, id: UUID, result: Action | Exception) -> None:
        future = self._futures.pop(id, None)
        if future is None or future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

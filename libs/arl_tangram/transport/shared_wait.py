"""A wait for many actions with one request at a time, so that no wait needs a separate connection."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from arl_tangram.operations import MAX_BATCH_ITEMS, WaitTimeout
from arl_wire.actions.action import Action

__all__ = ["SharedWait"]

POLL_CYCLE_S = 1.0
"""Seconds in which all actions are polled once, including new ones."""
POLL_LINGER_S = 0.05
"""Seconds between requests, so that a response contains several actions."""

FetchSettled = Callable[[Sequence[UUID], float], Awaitable[Sequence[Action]]]
"""A request for the actions of these ids that have settled, at least one, within some seconds. Raises `WaitTimeout`."""


class SharedWait:
    """The shared wait of one event loop."""

    def __init__(self, fetch_settled: FetchSettled | None = None, *, cycle_s: float = POLL_CYCLE_S) -> None:
        self.fetch_settled, self._cycle_s = fetch_settled, cycle_s
        self._futures: dict[UUID, asyncio.Future[Action]] = {}
        """Futures in the order in which they are polled."""
        self._poll_task: asyncio.Task[None] | None = None

    async def wait_settled(self, id: UUID) -> Action:
        """Wait until the action has settled. Raises the error of the request that polled it."""
        future = self._futures.setdefault(id, asyncio.get_running_loop().create_future())
        if self._poll_task is None:
            self._poll_task = asyncio.create_task(self._poll_loop(), name="shared wait")
        try:
            return await future
        finally:
            self._futures.pop(id, None)

    async def close(self) -> None:
        """Stop polling and cancel all waits."""
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
        except Exception as error:  # noqa: BLE001 - every caller that waits for one of these ids receives the error
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

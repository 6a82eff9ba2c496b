"""Everybody who waits for an action, on one query per wake-up."""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from uuid import UUID

from arl_gateway import repository
from arl_store.tx import Store

__all__ = ["Waiters", "Watch"]

log = logging.getLogger(__name__)


class Watch:
    """Ids that one request waits for, and which of them are known to be settled."""

    def __init__(self, ids: Iterable[UUID]) -> None:
        self.pending = set(ids)
        self.ended = False
        self._changed = asyncio.Event()

    def end(self) -> None:
        """There is no more waiting."""
        self.ended = True
        self._changed.set()

    def settle(self, ids: Iterable[UUID]) -> None:
        self.pending.difference_update(ids)
        self._changed.set()

    async def changed(self, timeout_s: float) -> bool:
        """False if nothing settled in time, or nothing more is waited for."""
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return not self.ended


class Waiters:
    """Register first, read the row then: whatever settles in between wakes the registered one."""

    def __init__(self, store: Store, *, poll_s: float) -> None:
        self._store = store
        self._poll_s = poll_s
        self._watches: dict[UUID, set[Watch]] = {}
        self._woken = asyncio.Event()
        self._watched = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._draining = False
        self.wakes = 0
        """How often something settled, so far."""

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return len({watch for watches in self._watches.values() for watch in watches})

    def start(self) -> None:
        self._task = asyncio.create_task(self._forever(), name="waiters")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def drain(self) -> None:
        """From now on nobody waits: whoever does is answered with the present state, and comes back to another."""
        self._draining = True
        for watch in {watch for watches in self._watches.values() for watch in watches}:
            watch.end()

    def wake(self) -> None:
        """Something settled; ours or not, one query tells."""
        self.wakes += 1
        self._woken.set()

    @contextmanager
    def watching(self, ids: Collection[UUID], *, look: bool = False) -> Iterator[Watch]:
        """What settles from now on is seen. With `look` a query also finds what had settled before."""
        watch = Watch(ids)
        if self._draining:
            watch.end()
        if not self._watches:
            # Wakes so far were for others.
            self._woken.clear()
            self._watched.set()
        if look:
            self._woken.set()
        for id in watch.pending:
            self._watches.setdefault(id, set()).add(watch)
        try:
            yield watch
        finally:
            for id in ids:
                self._forget(id, watch)

    def _forget(self, id: UUID, watch: Watch) -> None:
        watches = self._watches.get(id)
        if watches is None:
            return
        watches.discard(watch)
        if not watches:
            del self._watches[id]

    async def _forever(self) -> None:
        while True:
            try:
                await self._turn()
            except Exception as error:  # noqa: BLE001 - Postgres may be away; whoever waits goes on waiting
                log.warning("looking for settled actions failed: %s", type(error).__name__)
                await asyncio.sleep(self._poll_s)

    async def _turn(self) -> None:
        if not self._watches:
            self._watched.clear()
            await self._watched.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll_s):
                await self._woken.wait()
        self._woken.clear()
        if not self._watches:
            return
        async with self._store.read() as tx:
            settled = await repository.settled_among(tx, list(self._watches))
        for id in settled:
            for watch in self._watches.pop(id, ()):
                watch.settle([id])

"""Waiters for actions, served with one query per wake-up."""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from uuid import UUID

from arl_gateway.actions import queries
from arl_store.tx import PostgresStore

__all__ = ["ActionWaiters", "ActionWatch"]

log = logging.getLogger(__name__)


class ActionWatch:
    """The ids that one request waits for, and which of them are still pending."""

    def __init__(self, ids: Iterable[UUID]) -> None:
        self.pending = set(ids)
        self.ended = False
        self._change_event = asyncio.Event()

    def end(self) -> None:
        """End the wait; later waits return at once."""
        self.ended = True
        self._change_event.set()

    def mark_settled(self, ids: Iterable[UUID]) -> None:
        """Remove settled ids from the pending ones and wake the waiting request."""
        self.pending.difference_update(ids)
        self._change_event.set()

    async def wait_for_change(self, timeout_s: float) -> bool:
        """Wait for a settlement. Return False if nothing settled in time or the watch has ended."""
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._change_event.wait()
        except TimeoutError:
            return False
        self._change_event.clear()
        return not self.ended


class ActionWaiters:
    """Watches by action id.

    Register a watch before reading the row; a settlement in between then wakes the watch.
    """

    def __init__(self, store: PostgresStore, *, poll_s: float) -> None:
        self._store = store
        self._poll_s = poll_s
        self._watches: dict[UUID, set[ActionWatch]] = {}
        self._wake_event = asyncio.Event()
        self._watched_event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._draining = False
        self.wake_count = 0
        """Number of wake-ups so far."""

    @property
    def waiting(self) -> int:
        """Number of requests that wait now."""
        return len({watch for watches in self._watches.values() for watch in watches})

    def start(self) -> None:
        """Start the poller in the running event loop."""
        self._task = asyncio.create_task(self._forever(), name="waiters")

    async def stop(self) -> None:
        """Cancel the poller and wait until it has ended."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def drain(self) -> None:
        """End all watches and refuse new ones. Each waiting request returns the current state, and its client
        retries elsewhere.
        """
        self._draining = True
        for watch in {watch for watches in self._watches.values() for watch in watches}:
            watch.end()

    def wake(self) -> None:
        """Wake the poller: an action settled. One query finds out whether a watch waits for it."""
        self.wake_count += 1
        self._wake_event.set()

    @contextmanager
    def watch(self, ids: Collection[UUID], *, check_now: bool = False) -> Iterator[ActionWatch]:
        """Watch ids; settlements from now on are seen. With `check_now`, a query also finds earlier settlements."""
        watch = ActionWatch(ids)
        if self._draining:
            watch.end()
        if not self._watches:
            # Earlier wake-ups were for other watches.
            self._wake_event.clear()
            self._watched_event.set()
        if check_now:
            self._wake_event.set()
        for id in watch.pending:
            self._watches.setdefault(id, set()).add(watch)
        try:
            yield watch
        finally:
            for id in ids:
                self._remove_watch(id, watch)

    def _remove_watch(self, id: UUID, watch: ActionWatch) -> None:
        watches = self._watches.get(id)
        if watches is None:
            return
        watches.discard(watch)
        if not watches:
            del self._watches[id]

    async def _forever(self) -> None:
        while True:
            try:
                await self._poll_once()
            except Exception as error:  # noqa: BLE001 - Postgres may be away; waiters keep waiting
                log.warning("query of settled actions failed: %s", type(error).__name__)
                await asyncio.sleep(self._poll_s)

    async def _poll_once(self) -> None:
        if not self._watches:
            self._watched_event.clear()
            await self._watched_event.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll_s):
                await self._wake_event.wait()
        self._wake_event.clear()
        if not self._watches:
            return
        async with self._store.read() as tx:
            settled = await queries.settled_among(tx, list(self._watches))
        for id in settled:
            for watch in self._watches.pop(id, ()):
                watch.mark_settled([id])

"""Removal of expired keys and snapshots, old settled actions, and environments that were ended and deleted."""

import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID

from arl_admission import queries
from arl_kit.loops import PollLoop
from arl_store.tx import PostgresStore

__all__ = ["RetentionLoop"]

RemoveBatch = Callable[[datetime | None], Awaitable[int]]

BATCH_SIZE = 1000
MAX_BATCHES_PER_STEP = 20
"""Maximum batches of each kind per step, so that a step is short and the next follows soon."""
BUSY_S = 5.0
IDLE_S = 60.0
PARTITION_INTERVAL_S = 3600.0
NIL_UUID = UUID(int=0)


class RetentionLoop:
    """A loop that removes rows that settled more than `retention_s` seconds ago, in batches of bounded size.

    Unsettled actions remain at any age. A sweep walks through the ids once, so that rows that must stay are read once
    per sweep and not once per batch.
    """

    def __init__(self, store: PostgresStore, *, retention_s: float, batch: int = BATCH_SIZE) -> None:
        self._store = store
        self._retention_s = retention_s
        self._batch = batch
        self._after = NIL_UUID
        self._partitions_dropped_at = float("-inf")
        self._loop = PollLoop("retention", self.step, busy_s=BUSY_S, idle_s=IDLE_S, start_idle=True)

    def start(self) -> None:
        """Start the loop in the running event loop."""
        self._loop.start()

    async def stop(self) -> None:
        """Stop the loop."""
        await self._loop.stop()

    async def step(self, *, now: datetime | None = None) -> bool:
        """Remove batches of each kind. Return True if more remain. `now` defaults to the time of the database."""
        more = [await self._run_batches(self._forget_keys, now), await self._run_batches(self._remove_actions, now)]
        more.append(await self._run_batches(self._forget_environments, now))
        more.append(await self._run_batches(self._expire_snapshots, now))
        await self._drop_partitions(now)
        return any(more)

    async def _run_batches(self, remove: RemoveBatch, now: datetime | None) -> bool:
        for _ in range(MAX_BATCHES_PER_STEP):
            if await remove(now) < self._batch:
                return False
        return True

    async def _forget_keys(self, now: datetime | None) -> int:
        async with self._store.write() as tx:
            return await queries.forget_keys(tx, limit=self._batch, now=now)

    async def _remove_actions(self, now: datetime | None) -> int:
        async with self._store.read() as tx:
            ids = await queries.expired_actions(
                tx, after=self._after, retention_s=self._retention_s, limit=self._batch, now=now
            )
        if ids:
            async with self._store.write() as tx:
                await queries.remove_actions(tx, ids)
        self._after = ids[-1] if len(ids) == self._batch else NIL_UUID
        return len(ids)

    async def _forget_environments(self, now: datetime | None) -> int:
        async with self._store.write() as tx:
            return await queries.forget_environments(tx, retention_s=self._retention_s, limit=self._batch, now=now)

    async def _expire_snapshots(self, now: datetime | None) -> int:
        async with self._store.write() as tx:
            return await queries.expire_snapshots(tx, retention_s=self._retention_s, limit=self._batch, now=now)

    async def _drop_partitions(self, now: datetime | None) -> None:
        if time.monotonic() - self._partitions_dropped_at < PARTITION_INTERVAL_S:
            return
        self._partitions_dropped_at = time.monotonic()
        async with self._store.write() as tx:
            await queries.drop_empty_partitions(tx, retention_s=self._retention_s, now=now)

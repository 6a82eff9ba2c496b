"""The backlog: rows queued before a new leader's first poll, read page by page."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.leader.election import LeaderElection
from arl_scheduler.queries import repository
from arl_scheduler.queries.leader_queries import TermLostError
from arl_scheduler.queries.repository import FIRST_PAGE, PagePosition
from arl_store.tx import PostgresStore
from arl_wire.internal.scheduler import QueuedActionRow

__all__ = ["read_backlog"]

ADMIT_BATCH = 500
"""Rows admitted before other tasks of the event loop run."""


async def read_backlog(
    store: PostgresStore, leadership: LeaderElection, index: SchedulerIndex, *, page_rows: int
) -> None:
    """Read the backlog into the index, while the lease is renewed and requests are answered. Raises `TermLostError`.

    Postgres prepares the next page while one is admitted.
    """

    async def page_after(place: PagePosition) -> tuple[list[QueuedActionRow], PagePosition | None]:
        """Return the rows of a page, and the position of the next page or None."""
        async with store.read() as tx:
            return await repository.queued_before(tx, checkpoint=index.checkpoint, after=place, limit=page_rows)

    reading = asyncio.create_task(page_after(FIRST_PAGE))
    try:
        with _gc_disabled():
            place: PagePosition | None = FIRST_PAGE
            while place is not None:
                if not await leadership.renew_if_due():
                    raise TermLostError
                page, place = await reading
                if place is not None:
                    reading = asyncio.create_task(page_after(place))
                for start in range(0, len(page), ADMIT_BATCH):
                    index.admit(page[start : start + ADMIT_BATCH])
                    await asyncio.sleep(0)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Disable garbage collection, which would take a third of the time: the rows stay and have no cycles.

    After success the rows are frozen. After an error they are not, because the traceback refers to them in a cycle.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()

"""What was queued before a new leader's first poll, read page by page."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from arl_scheduler import repository
from arl_scheduler.index import Index
from arl_scheduler.leader import Leadership
from arl_scheduler.repository import FIRST, Place
from arl_scheduler.terms import TermLost
from arl_store.tx import Store
from arl_wire.internal import QueuedAction

__all__ = ["read_backlog"]

ADMITTED_AT_ONCE = 500
"""Rows between which others get their turn: their reading and their taking in."""


async def read_backlog(store: Store, leadership: Leadership, index: Index, *, page_rows: int) -> None:
    """Into the index. Meanwhile the lease is renewed and requests are answered. Raises `TermLost`.

    Postgres makes the next page while one is taken in.
    """

    async def page_after(place: Place) -> tuple[list[QueuedAction], Place | None]:
        async with store.read() as tx:
            return await repository.queued_before(tx, mark=index.mark, after=place, limit=page_rows)

    reading = asyncio.create_task(page_after(FIRST))
    try:
        with _nothing_collected():
            place: Place | None = FIRST
            while place is not None:
                if not await leadership.renew_if_due():
                    raise TermLost
                page, place = await reading
                if place is not None:
                    reading = asyncio.create_task(page_after(place))
                for start in range(0, len(page), ADMITTED_AT_ONCE):
                    index.admit(page[start : start + ADMITTED_AT_ONCE])
                    await asyncio.sleep(0)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """What is read stays and has no cycles: looking through it again and again would be a third of the time.

    Nor is it looked through later. What failed is: its traceback holds all that was read, in a cycle.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()

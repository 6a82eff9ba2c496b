"""Micro-batches without a timer: flush at once if no flush is in flight, otherwise when that flush returns."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from arl_wire.errors import Unavailable

__all__ = ["Batcher"]

Item = TypeVar("Item")
Result = TypeVar("Result")

Flush = Callable[[Sequence[Item]], Awaitable[Sequence[Result | Exception]]]


class Batcher(Generic[Item, Result]):
    """A queue of items that are flushed in batches.

    `flush` returns one result for each item, in order. An exception in the results is raised to the submitter of that
    item. If `flush` itself raises, all items of the batch get the exception. Beyond `max_waiting` items or
    `max_waiting_weight` bytes in the queue, new items fail with `Unavailable` at once.
    """

    def __init__(
        self,
        flush: Flush[Item, Result],
        *,
        max_batch: int = 500,
        max_weight: int = 8 << 20,
        max_waiting: int | None = None,
        max_waiting_weight: int | None = None,
    ) -> None:
        self._flush = flush
        self._max_batch = max_batch
        self._max_weight = max_weight
        self._max_waiting = max_waiting
        self._max_waiting_weight = max_waiting_weight
        self._waiting_weight = 0
        self._waiting: deque[tuple[Item, int, asyncio.Future[Result]]] = deque()
        self._in_flight: asyncio.Task[None] | None = None

    async def submit(self, item: Item, *, weight: int = 0) -> Result:
        """Queue `item` and return its result. `weight` is its size in bytes; larger items than the limit go alone."""
        return await self.enqueue(item, weight=weight)

    def enqueue(self, item: Item, *, weight: int = 0) -> "asyncio.Future[Result]":
        """Queue `item` and return the future of its result, which is `Unavailable` if the queue is full."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if self._is_full():
            future.set_exception(Unavailable("too many requests are waiting; try again", retry_after_s=1))
            return future
        self._waiting.append((item, weight, future))
        self._waiting_weight += weight
        if self._in_flight is None:
            self._in_flight = asyncio.create_task(self._flush_until_empty())
        return future

    def _is_full(self) -> bool:
        number, weight = self._max_waiting, self._max_waiting_weight
        return (number is not None and len(self._waiting) >= number) or (
            weight is not None and self._waiting_weight > weight
        )

    async def drain(self) -> None:
        """Wait until every submitted item has a result."""
        while self._in_flight is not None:
            await asyncio.shield(self._in_flight)

    async def _flush_until_empty(self) -> None:
        try:
            while self._waiting:
                batch = self._take_batch()
                await self._flush_batch([item for item, _, _ in batch], [future for _, _, future in batch])
        finally:
            self._in_flight = None

    def _take_batch(self) -> list[tuple[Item, int, "asyncio.Future[Result]"]]:
        batch = [self._waiting.popleft()]
        weight = batch[0][1]
        while self._waiting and len(batch) < self._max_batch and weight + self._waiting[0][1] <= self._max_weight:
            batch.append(self._waiting.popleft())
            weight += batch[-1][1]
        self._waiting_weight -= weight
        return batch

    async def _flush_batch(self, items: list[Item], futures: "list[asyncio.Future[Result]]") -> None:
        try:
            answers: Sequence[Result | Exception] = await self._flush(items)
            if len(answers) != len(items):
                raise RuntimeError(f"flush returned {len(answers)} results for {len(items)} items")
        except Exception as error:  # noqa: BLE001 - raised to every submitter of this batch
            answers = [error] * len(items)
        for future, answer in zip(futures, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

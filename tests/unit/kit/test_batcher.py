import asyncio
from collections.abc import Sequence

import pytest

from arl_kit.batcher import Batcher
from arl_wire.errors import Unavailable


class Flushes:
    """A flush function that records batches and returns each one when the test releases it."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Semaphore(0)

    async def flush(self, items: Sequence[int]) -> Sequence[int | Exception]:
        self.batches.append(list(items))
        await self.gate.acquire()
        return [ValueError(str(item)) if item < 0 else item * 10 for item in items]


async def until(condition: object) -> None:
    while not condition():  # type: ignore[operator]
        await asyncio.sleep(0)


async def test_first_item_is_flushed_at_once_and_later_items_batched() -> None:
    flushes = Flushes()
    batcher = Batcher(flushes.flush)
    first = batcher.enqueue(1)
    await until(lambda: flushes.batches)
    others = [batcher.enqueue(number) for number in (2, 3, 4)]
    flushes.gate.release()
    flushes.gate.release()
    assert [await first, *[await other for other in others]] == [10, 20, 30, 40]
    assert flushes.batches == [[1], [2, 3, 4]]


async def test_refused_item_does_not_fail_other_items() -> None:
    flushes = Flushes()
    batcher = Batcher(flushes.flush)
    futures = [batcher.enqueue(number) for number in (1, -2, 3)]
    flushes.gate.release()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert results[0] == 10
    assert isinstance(results[1], ValueError)
    assert results[2] == 30


async def test_failed_flush_raises_error_for_every_item() -> None:
    async def fail(items: Sequence[int]) -> Sequence[int]:
        raise ConnectionError

    futures = [Batcher(fail).enqueue(1)]
    with pytest.raises(ConnectionError):
        await futures[0]


async def test_batch_is_limited_by_count_and_weight() -> None:
    flushes = Flushes()
    batcher = Batcher(flushes.flush, max_batch=2, max_weight=10)
    futures = [batcher.enqueue(number, weight=weight) for number, weight in ((1, 1), (2, 1), (3, 9), (4, 2), (5, 50))]
    for _ in range(4):
        flushes.gate.release()
    await asyncio.gather(*futures)
    assert flushes.batches == [[1, 2], [3], [4], [5]]


async def test_cancelled_caller_does_not_disturb_batch() -> None:
    flushes = Flushes()
    batcher = Batcher(flushes.flush)
    gone, stays = batcher.enqueue(1), batcher.enqueue(2)
    gone.cancel()
    flushes.gate.release()
    assert await stays == 20
    await batcher.drain()


async def test_item_above_waiting_limit_is_refused_at_once() -> None:
    flushes = Flushes()
    batcher = Batcher(flushes.flush, max_waiting=2)
    accepted = [batcher.enqueue(1)]
    await asyncio.sleep(0)
    accepted += [batcher.enqueue(number) for number in (2, 3)]
    with pytest.raises(Unavailable):
        await batcher.enqueue(4)
    for _ in range(2):
        flushes.gate.release()
    assert await asyncio.gather(*accepted) == [10, 20, 30]

"""A poll loop polls at once on request and does not wait for its interval."""

import asyncio

from arl_kit.loops import PollLoop

NEVER_S = 1000.0


async def test_requested_poll_runs_at_once() -> None:
    polled = asyncio.Semaphore(0)

    async def step() -> bool:
        polled.release()
        return True

    loop = PollLoop("asked", step, busy_s=NEVER_S, idle_s=NEVER_S)
    loop.start()
    try:
        async with asyncio.timeout(10):
            await polled.acquire()
            loop.poll_now()
            await polled.acquire()
    finally:
        await loop.stop()


async def test_poll_requested_during_a_poll_runs_afterwards() -> None:
    """The poll in progress may have read older data than the request needs."""
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def step() -> bool:
        begun.release()
        await go_on.wait()
        return True

    loop = PollLoop("asked", step, busy_s=NEVER_S, idle_s=NEVER_S)
    loop.start()
    try:
        async with asyncio.timeout(10):
            await begun.acquire()
            loop.poll_now()
            go_on.set()
            await begun.acquire()
    finally:
        await loop.stop()

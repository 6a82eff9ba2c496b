"""Background loops: woken by hints, polling as truth, backing off when idle."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

__all__ = ["PollLoop"]

log = logging.getLogger(__name__)


class PollLoop:
    """Calls `step` at once when woken, and at the latest after an interval that grows while idle.

    `step` says whether it found work. An exception is logged and counts as idle; the loop goes on.
    """

    def __init__(
        self, name: str, step: Callable[[], Awaitable[bool]], *, busy_s: float = 1.0, idle_s: float = 8.0
    ) -> None:
        self._name = name
        self._step = step
        self._busy_s = busy_s
        self._idle_s = idle_s
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failures = 0

    def wake(self) -> None:
        self._woken.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._forever(), name=self._name)

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _forever(self) -> None:
        interval = self._busy_s
        while True:
            try:
                busy = await self._step()
                self.failures = 0
            except Exception as error:
                busy = False
                self.failures += 1
                log.warning("%s failed: %r", self._name, error, exc_info=self.failures == 1)
            interval = self._busy_s if busy or self.failures else min(interval * 2, self._idle_s)
            if await self._wait(interval):
                interval = self._busy_s

    async def _wait(self, interval: float) -> bool:
        """True if somebody woke us. Jitter keeps many processes from polling in step."""
        try:
            async with asyncio.timeout(interval * random.uniform(0.85, 1.0)):  # noqa: S311 - jitter, no secret
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

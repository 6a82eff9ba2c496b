"""Background loops that poll and back off when idle."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable

from arl_kit.telemetry import current_traceparent, new_traceparent

__all__ = ["PollLoop"]

log = logging.getLogger(__name__)


class PollLoop:
    """A loop that calls `step` at an interval that grows while there is no work.

    `step` returns whether it found work. An exception is logged and counts as idle; the loop continues. With
    `start_idle` the interval starts at its maximum, until `step` finds work.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], Awaitable[bool]],
        *,
        busy_s: float = 1.0,
        idle_s: float = 8.0,
        start_idle: bool = False,
    ) -> None:
        self._name = name
        self._step = step
        self._busy_s = busy_s
        self._idle_s = idle_s
        self._first_interval_s = idle_s if start_idle else busy_s
        self._signal = asyncio.Event()
        self._due_at = 0.0
        self._poll_requested = False
        self._task: asyncio.Task[None] | None = None
        self.failures = 0
        """Number of consecutive failures."""
        self.failures_total = 0

    def poll_soon(self) -> None:
        """Poll within the busy interval, because work has started that a poll must follow."""
        due = time.monotonic() + self._busy_s
        if due < self._due_at:
            self._due_at = due
            self._signal.set()

    def poll_now(self) -> None:
        """Poll at once. A poll in progress is followed by another, because it may have read before the latest write."""
        self._poll_requested = True
        self._due_at = 0.0
        self._signal.set()

    def start(self) -> None:
        """Start the loop in the running event loop."""
        self._task = asyncio.create_task(self._run_forever(), name=self._name)

    async def stop(self) -> None:
        """Cancel the loop and wait until it has ended. Does nothing if it was not started."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run_forever(self) -> None:
        interval = self._first_interval_s
        while True:
            # One trace for all calls and log lines of a step.
            current_traceparent.set(new_traceparent())
            self._poll_requested = False
            try:
                busy = await self._step()
                self.failures = 0
            except Exception as error:
                busy = False
                self.failures += 1
                self.failures_total += 1
                log.warning("%s failed: %r", self._name, error, exc_info=self.failures == 1)
            interval = self._busy_s if busy or self.failures else min(interval * 2, self._idle_s)
            # Jitter keeps many processes from polling in step.
            wait_s = 0.0 if self._poll_requested else interval * random.uniform(0.85, 1.0)  # noqa: S311 - no secret
            self._due_at = time.monotonic() + wait_s
            if await self._wait_until_due():
                interval = self._busy_s

    async def _wait_until_due(self) -> bool:
        """Wait until the poll is due. Return True if it became due earlier than planned."""
        hurried = False
        while (left := self._due_at - time.monotonic()) > 0:
            self._signal.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._signal.wait()
                    hurried = True
        return hurried

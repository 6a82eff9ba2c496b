"""Timers that end sandboxes. The database decides: a timer that fires reads how long the sandbox has left.

A timer costs no queries while it waits. At its start a gateway reads all sandboxes, so another gateway's sandboxes
end too if that gateway is gone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from arl_store.tx import Row

__all__ = ["SandboxExpiry"]

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Seconds until the next attempt after a failure."""
MARGIN_S = 0.01


class SandboxExpiry:
    """Timers by sandbox."""

    def __init__(
        self,
        read: Callable[[UUID | None], Awaitable[Sequence[Row]]],
        end: Callable[[Row], Awaitable[None]],
    ) -> None:
        self._read, self._end = read, end
        self._timers: dict[UUID, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Read all sandboxes and set their timers."""
        self._run(self._check(None))

    def schedule(self, id: UUID, after_s: float) -> None:
        """Check a sandbox after some seconds, and not at an earlier scheduled time."""
        if (earlier := self._timers.pop(id, None)) is not None:
            earlier.cancel()
        loop = asyncio.get_running_loop()
        self._timers[id] = loop.call_later(max(0.0, after_s) + MARGIN_S, lambda: self._run(self._check(id)))

    async def stop(self) -> None:
        """Cancel all timers and checks."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _run(self, check: "Awaitable[None]") -> None:
        task = asyncio.ensure_future(check)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(self, id: UUID | None) -> None:
        if id is not None:
            self._timers.pop(id, None)
        try:
            for row in await self._read(id):
                if row.left_s > 0:
                    self.schedule(row.id, float(row.left_s))
                else:
                    await self._end(row)
        except Exception:
            log.warning("a sandbox could not be ended yet", exc_info=True)
            if id is not None:
                self.schedule(id, RETRY_S)
            else:
                await asyncio.sleep(RETRY_S)
                self.start()

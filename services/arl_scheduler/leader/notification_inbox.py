"""What others told the leader since it last looked: hints, any of which may be lost."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from arl_core.domain.fence import Fence
from arl_scheduler.queries.estimate_queries import RunDuration
from arl_wire.internal.node import ResizeResult
from arl_wire.internal.scheduler import QueuedActionRow

__all__ = ["NotificationInbox", "PendingNotifications"]


@dataclass(slots=True)
class PendingNotifications:
    admitted: list[QueuedActionRow] = field(default_factory=list)
    freed: list[Fence] = field(default_factory=list)
    requeued: set[Fence] = field(default_factory=set)
    runs: dict[Fence, RunDuration] = field(default_factory=dict)
    resized: list[ResizeResult] = field(default_factory=list)
    unanswered: list[Fence] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.admitted or self.freed)


class NotificationInbox:
    def __init__(self) -> None:
        self._pending = PendingNotifications()
        self._wakeup = asyncio.Event()
        self.is_poll_requested = False
        """Somebody says that rows changed which only a poll begun from now on is sure to read."""

    def admitted(self, rows: Iterable[QueuedActionRow]) -> None:
        """A hint. Without rows it says only that a wish was recorded: look soon."""
        rows = list(rows)
        if not rows:
            self.is_poll_requested = True
        self._pending.admitted.extend(rows)
        self._wakeup.set()

    def freed(
        self,
        fences: Iterable[Fence],
        *,
        requeued: Iterable[Fence] = (),
        runs: Mapping[Fence, RunDuration] | None = None,
    ) -> None:
        """A hint. Without fences it says that environments ended, or a node came: look soon.

        What went back to the queue waits for the regular poll, so that a node which refuses what we believe
        to fit is asked once a second and not as fast as it can refuse.
        """
        fences = list(fences)
        if not fences:
            self.is_poll_requested = True
        self._pending.freed.extend(fences)
        self._pending.requeued.update(requeued)
        self._pending.runs.update(runs or {})
        self._wakeup.set()

    def resized(self, responses: Iterable[ResizeResult]) -> None:
        """What managers say of resizes that they were asked for."""
        self._pending.resized.extend(responses)
        self._wakeup.set()

    def unanswered(self, fences: Iterable[Fence]) -> None:
        """Resizes of which nobody knows whether their managers heard."""
        self._pending.unanswered.extend(fences)
        self._wakeup.set()

    def drain(self) -> PendingNotifications:
        self._wakeup.clear()
        mail, self._pending = self._pending, PendingNotifications()
        return mail

    async def wait(self) -> None:
        await self._wakeup.wait()

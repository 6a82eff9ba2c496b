"""What others told the leader since it last looked: hints, any of which may be lost."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from arl_core.fence import Fence
from arl_scheduler.estimate_rows import Run
from arl_wire.internal import QueuedAction, ResizeAnswer

__all__ = ["Mail", "Mailbox"]


@dataclass(slots=True)
class Mail:
    admitted: list[QueuedAction] = field(default_factory=list)
    freed: list[Fence] = field(default_factory=list)
    requeued: set[Fence] = field(default_factory=set)
    runs: dict[Fence, Run] = field(default_factory=dict)
    resized: list[ResizeAnswer] = field(default_factory=list)
    unanswered: list[Fence] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.admitted or self.freed)


class Mailbox:
    def __init__(self) -> None:
        self._mail = Mail()
        self._woken = asyncio.Event()
        self.asked = False
        """Somebody says that rows changed which only a poll begun from now on is sure to read."""

    def admitted(self, rows: Iterable[QueuedAction]) -> None:
        """A hint. Without rows it says only that a wish was recorded: look soon."""
        rows = list(rows)
        if not rows:
            self.asked = True
        self._mail.admitted.extend(rows)
        self._woken.set()

    def freed(
        self, fences: Iterable[Fence], *, requeued: Iterable[Fence] = (), runs: Mapping[Fence, Run] | None = None
    ) -> None:
        """A hint. Without fences it says that environments ended, or a node came: look soon.

        What went back to the queue waits for the regular poll, so that a node which refuses what we believe
        to fit is asked once a second and not as fast as it can refuse.
        """
        fences = list(fences)
        if not fences:
            self.asked = True
        self._mail.freed.extend(fences)
        self._mail.requeued.update(requeued)
        self._mail.runs.update(runs or {})
        self._woken.set()

    def resized(self, answers: Iterable[ResizeAnswer]) -> None:
        """What managers say of resizes that they were asked for."""
        self._mail.resized.extend(answers)
        self._woken.set()

    def unanswered(self, fences: Iterable[Fence]) -> None:
        """Resizes of which nobody knows whether their managers heard."""
        self._mail.unanswered.extend(fences)
        self._woken.set()

    def empty(self) -> Mail:
        self._woken.clear()
        mail, self._mail = self._mail, Mail()
        return mail

    async def wait(self) -> None:
        await self._woken.wait()

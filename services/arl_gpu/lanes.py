"""What an engine is asked, and what is known of it."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from arl_gpu.completions import Completions
from arl_gpu.jobs import Job
from arl_gpu.kinds.judge import Judge
from arl_gpu.kinds.model import Item
from arl_gpu.pauses import Pause
from arl_gpu.settings import EngineSettings

__all__ = ["Lane", "Request"]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One item of an action."""

    job: Job
    at: int
    """The number of the item."""
    judge: Judge

    @property
    def item(self) -> Item:
        return self.job.items[self.at]


@dataclass(slots=True, eq=False)
class Lane:
    """One engine."""

    name: str
    settings: EngineSettings
    completions: Completions
    limit: asyncio.Semaphore
    pause: Pause
    """Before its device's worker is asked again what it died of, or about an engine that did not go to sleep."""
    pending: deque[Request] = field(default_factory=deque)
    """Chosen, and not sent before it is awake."""
    running: int = 0
    is_held: bool = False
    """Requests may be sent."""
    may_count: bool = False
    """Its device's worker may count a hold of ours: from the question on, until it is known that it does not."""
    lacks_room: bool = False
    trouble: str | None = None
    refusal: str | None = None
    """Why it did not sleep when its room was needed; that is no reason not to use it."""
    well_at: float = field(default_factory=time.monotonic)
    """When it was not in trouble last, as far as anybody looked."""
    is_gone: bool = False
    """Nothing listened there, so whatever does later has begun anew."""
    is_unheard: bool = True
    """Its device's worker does not know what it holds, or does without its room, or was not asked yet."""
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_busy(self) -> bool:
        return self.is_held or bool(self.pending and not self.lacks_room)

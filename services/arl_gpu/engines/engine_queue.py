"""Requests to an engine, its state, and the backoff before it is asked again."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from arl_gpu.engines.chat_completions import ChatCompletionClient
from arl_gpu.engines.engine_judge import EngineJudge
from arl_gpu.models.interface import Item
from arl_gpu.queue.score_jobs import ScoreJob
from arl_gpu.settings import EngineSettings

__all__ = ["EngineQueue", "EngineRequest", "ExponentialBackoff"]


class ExponentialBackoff:
    """Each time twice as long as before, up to `longest_s`; over at the beginning."""

    def __init__(self, first_s: float, *, max_s: float) -> None:
        self._first_s, self._max_s = first_s, max_s
        self._next_s, self._ends_at = first_s, 0.0

    @property
    def is_elapsed(self) -> bool:
        return time.monotonic() >= self._ends_at

    def start(self) -> None:
        self._ends_at = time.monotonic() + self._next_s
        self._next_s = min(2 * self._next_s, self._max_s)

    def reset(self) -> None:
        """It is over, and the next one is as short as the first."""
        self._next_s, self._ends_at = self._first_s, 0.0


@dataclass(frozen=True, slots=True, eq=False)
class EngineRequest:
    """One item of an action."""

    job: ScoreJob
    item_index: int
    """The number of the item."""
    judge: EngineJudge

    @property
    def item(self) -> Item:
        return self.job.items[self.item_index]


@dataclass(slots=True, eq=False)
class EngineQueue:
    """One engine."""

    name: str
    settings: EngineSettings
    completions: ChatCompletionClient
    semaphore: asyncio.Semaphore
    backoff: ExponentialBackoff
    """Before its device's worker is asked again what it died of, or about an engine that did not go to sleep."""
    pending: deque[EngineRequest] = field(default_factory=deque)
    """Chosen, and not sent before it is awake."""
    running: int = 0
    is_acquired: bool = False
    """Requests may be sent."""
    may_be_counted: bool = False
    """Its device's worker may count a hold of ours: from the question on, until it is known that it does not."""
    is_waiting_for_room: bool = False
    error: str | None = None
    sleep_error: str | None = None
    """Why it did not sleep when its room was needed; that is no reason not to use it."""
    last_healthy_at: float = field(default_factory=time.monotonic)
    """When it was not in trouble last, as far as anybody looked."""
    is_down: bool = False
    """Nothing listened there, so whatever does later has begun anew."""
    is_state_unconfirmed: bool = True
    """Its device's worker does not know what it holds, or does without its room, or was not asked yet."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_busy(self) -> bool:
        return self.is_acquired or bool(self.pending and not self.is_waiting_for_room)

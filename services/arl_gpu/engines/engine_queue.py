"""Requests to an engine, its state, and the backoff of its checks."""

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
    """A backoff that doubles from `first_s` up to `max_s`. It has elapsed initially."""

    def __init__(self, first_s: float, *, max_s: float) -> None:
        self._first_s, self._max_s = first_s, max_s
        self._next_s, self._ends_at = first_s, 0.0

    @property
    def is_elapsed(self) -> bool:
        """Return True if the backoff is over."""
        return time.monotonic() >= self._ends_at

    def start(self) -> None:
        """Start the next backoff, twice as long as the last one."""
        self._ends_at = time.monotonic() + self._next_s
        self._next_s = min(2 * self._next_s, self._max_s)

    def reset(self) -> None:
        """End the backoff and make the next one as short as the first."""
        self._next_s, self._ends_at = self._first_s, 0.0


@dataclass(frozen=True, slots=True, eq=False)
class EngineRequest:
    """A request for one item of an action."""

    job: ScoreJob
    item_index: int
    """Index of the item in its action."""
    judge: EngineJudge

    @property
    def item(self) -> Item:
        """Return the item of the request."""
        return self.job.items[self.item_index]


@dataclass(slots=True, eq=False)
class EngineQueue:
    """The requests and the state of one engine."""

    name: str
    settings: EngineSettings
    completions: ChatCompletionClient
    semaphore: asyncio.Semaphore
    backoff: ExponentialBackoff
    """Backoff of checks during which the device's worker died, or of an engine that did not sleep."""
    pending: deque[EngineRequest] = field(default_factory=deque)
    """Requests that wait until the engine is awake."""
    running: int = 0
    is_acquired: bool = False
    """True if requests can be sent."""
    may_be_counted: bool = False
    """True if the worker may count this process as a user, from the acquire request until the release."""
    is_waiting_for_room: bool = False
    error: str | None = None
    sleep_error: str | None = None
    """Reason why the engine did not sleep on demand. The engine can still be used."""
    last_healthy_at: float = field(default_factory=time.monotonic)
    """Time of the last check without an error, by the monotonic clock."""
    is_down: bool = False
    """True if the engine refused a connection, so its next response comes from a restarted process."""
    is_state_unconfirmed: bool = True
    """True if the worker does not know the engine's memory state, lacks its memory, or was not asked yet."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_busy(self) -> bool:
        """Return True if the engine is in use or waking up for requests."""
        return self.is_acquired or bool(self.pending and not self.is_waiting_for_room)

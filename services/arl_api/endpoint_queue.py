"""The queue of requests to an endpoint: limits of concurrency and rate, and pauses that the endpoint asks for."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from arl_api.settings import EndpointSettings
from arl_api.verdicts import CallVerdict
from arl_core.control.rate_limits import ConcurrencyWindow, TokenBucket, rate_at_sender

__all__ = ["EndpointQueue"]

ARRIVAL_JITTER_S = 0.05
"""Seconds by which the delays of requests may differ, for example because some wait for a connection."""
REPEAT_THROTTLE_WINDOW_S = 5.0
"""Seconds in which a second throttled response shows that the rate limit is not the reason."""


class EndpointQueue:
    """The queue of all requests of this process to one endpoint, retries included.

    The scheduler counts calls and knows the rate. It does not know the retries and the load that the endpoint accepts.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self.window = ConcurrencyWindow(settings.concurrency)
        rate = rate_at_sender(settings.rate, max_delay_s=ARRIVAL_JITTER_S) if settings.rate is not None else None
        self._bucket = TokenBucket(rate, now=time.monotonic()) if rate is not None else None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._blocked_until = self._throttled_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self.in_flight = 0
        self.requests = 0
        """Number of requests sent."""
        self.throttled = 0
        self.health = "ok"

    @property
    def blocked_for_s(self) -> float:
        """Return the seconds for which the endpoint still accepts no requests."""
        return max(0.0, self._blocked_until - time.monotonic())

    @asynccontextmanager
    async def acquire_slot(self, *, is_retry: bool, ignore_pause: bool = False) -> AsyncIterator[None]:
        """Occupy a slot during a request. Retries go before calls that have not begun.

        With `ignore_pause`, a request does not wait for the end of a pause that the endpoint asked for.
        """
        if ignore_pause and self.in_flight < self.window.size and self.blocked_for_s > 0:
            self._occupy_slot(time.monotonic())
        else:
            await self._wait_for_slot(is_retry=is_retry)
        try:
            yield
        finally:
            self.in_flight -= 1
            self._release_waiting()

    def record_result(self, verdict: CallVerdict, message: str, *, sent_at: float, retry_after_s: float | None) -> None:
        """Record the result of a request sent at `sent_at`. The endpoint asked for `retry_after_s` seconds of pause."""
        now = time.monotonic()
        if verdict in (CallVerdict.ANSWERED, CallVerdict.USER_ERROR):
            self.window.responded(now)
            self.health = "ok"
        else:
            self.health = f"{verdict.value}: {message}"
        if verdict is CallVerdict.THROTTLED:
            self.throttled += 1
            if not self._is_rate_exhausted(now, sent_at=sent_at):
                self.window.throttled(sent=sent_at, now=now)
            self._throttled_at = now
            self._blocked_until = max(self._blocked_until, now + (retry_after_s or 0.0))
        self._release_waiting()

    async def _wait_for_slot(self, *, is_retry: bool) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if is_retry else self._waiting.append)(mine)
        self._release_waiting()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.in_flight -= 1
            self._release_waiting()
            raise

    def _release_waiting(self) -> None:
        """Release as many requests as may be sent now. If only time blocks the next one, schedule another release."""
        now = time.monotonic()
        while self._waiting and self.in_flight < self.window.size and self._available_at(now) <= now:
            mine = self._waiting.popleft()
            if mine.done():  # the waiting call was cancelled
                continue
            self._occupy_slot(now)
            mine.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and self.in_flight < self.window.size:
            self._timer = asyncio.get_running_loop().call_later(
                max(0.0, self._available_at(now) - now), self._release_waiting
            )

    def _occupy_slot(self, now: float) -> None:
        self.in_flight += 1
        if self._bucket is not None:
            self._bucket.take(1, now=now)

    def _is_rate_exhausted(self, now: float, *, sent_at: float) -> bool:
        """Return True if the rate tokens are used up, so that the rate and not the concurrency was too high.

        Return False if a request sent after the last throttled response was throttled again shortly after it.
        """
        is_again = sent_at > self._throttled_at and now - self._throttled_at <= REPEAT_THROTTLE_WINDOW_S
        return self._bucket is not None and self._bucket.available(now) < 1 and not is_again

    def _available_at(self, now: float) -> float:
        if self._bucket is None:
            return self._blocked_until
        return max(self._blocked_until, self._bucket.available_at(1, now=now))

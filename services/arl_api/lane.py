"""An endpoint's turns: so many requests at once, so many a second, and none while it wants none."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from arl_api.settings import EndpointSettings
from arl_api.verdicts import Verdict
from arl_core.rate import TokenBucket, arriving_within
from arl_core.window import Window

__all__ = ["Lane"]

LONGEST_CLOSED_S = 900.0
"""Whatever it asks for: then somebody looks whether it is so."""
LATE_S = 0.05
"""By so much some requests may arrive later than others: they wait for a connection, say."""
AGAIN_S = 5.0
"""Within this time a second answer that it is too much says that what is told of the rate is not the reason."""


class Lane:
    """All requests of this process to one endpoint, those that are tried again too, go by it.

    The scheduler counts calls and knows the rate; what it can't know are further tries, and what the endpoint bears.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self.window = Window(settings.concurrency)
        rate = arriving_within(settings.rate, late_s=LATE_S) if settings.rate is not None else None
        self._bucket = TokenBucket(rate, now=time.monotonic()) if rate is not None else None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed_until = self._throttled_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self.in_flight = 0
        self.requests = 0
        """That were sent."""
        self.throttled = 0
        self.health = "ok"

    @property
    def closed_for_s(self) -> float:
        """How long it has asked for nothing more to be sent."""
        return max(0.0, self._closed_until - time.monotonic())

    @asynccontextmanager
    async def turn(self, *, again: bool) -> AsyncIterator[None]:
        """While a request is under way. Who comes `again` goes before those who have not begun."""
        await self._until_it_is_mine(again=again)
        try:
            yield
        finally:
            self.in_flight -= 1
            self._let_in()

    def learn(self, verdict: Verdict, said: str, *, sent: float, asked_for_s: float | None) -> None:
        """How a request ended that was sent then; `asked_for_s`: in how long the next one may come."""
        now = time.monotonic()
        if verdict in (Verdict.ANSWERED, Verdict.ITS_FAULT):
            self.window.answered(now)
            self.health = "ok"
        else:
            self.health = f"{verdict.value}: {said}"
        if verdict is Verdict.THROTTLED:
            self.throttled += 1
            if not self._is_of_its_rate(now, sent=sent):
                self.window.throttled(sent=sent, now=now)
            self._throttled_at = now
            self._closed_until = max(self._closed_until, now + min(asked_for_s or 0.0, LONGEST_CLOSED_S))
        self._let_in()

    async def _until_it_is_mine(self, *, again: bool) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if again else self._waiting.append)(mine)
        self._let_in()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.in_flight -= 1
            self._let_in()
            raise

    def _let_in(self) -> None:
        """As many as may be sent now; where only time keeps the others, it is looked at again then."""
        now = time.monotonic()
        while self._waiting and self.in_flight < self.window.size and self._opens_at(now) <= now:
            mine = self._waiting.popleft()
            if mine.done():  # whoever waited has gone
                continue
            self.in_flight += 1
            if self._bucket is not None:
                self._bucket.take(1, now=now)
            mine.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and self.in_flight < self.window.size:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, self._opens_at(now) - now), self._let_in)

    def _is_of_its_rate(self, now: float, *, sent: float) -> bool:
        """Its tokens are used up, so that what was too much is how soon it was and not how many there are.

        Unless it is so again, of a request that was sent since that was heard.
        """
        is_again = sent > self._throttled_at and now - self._throttled_at <= AGAIN_S
        return self._bucket is not None and self._bucket.free(now) < 1 and not is_again

    def _opens_at(self, now: float) -> float:
        if self._bucket is None:
            return self._closed_until
        return max(self._closed_until, self._bucket.free_at(1, now=now))

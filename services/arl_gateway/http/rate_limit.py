"""Rate limits of API keys: token buckets in memory, one set per gateway process."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from arl_wire.errors import RateLimited

__all__ = ["RateLimiter"]

MAX_BUCKETS = 10_000


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    updated_at: float


class RateLimiter:
    """A limiter that allows a burst of `quota` requests and refills `quota` in each `window_s`."""

    def __init__(self, *, quota: int, window_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._quota = quota
        self._per_s = quota / window_s
        self._clock = clock
        self._policy = f'"default";q={quota};w={window_s}'
        self._buckets: dict[int, _TokenBucket] = {}

    def acquire(self, key_id: int) -> dict[str, str]:
        """Count one request and return the rate limit headers. Raises `RateLimited`."""
        now = self._clock()
        bucket = self._bucket(key_id, now)
        bucket.tokens = min(self._quota, bucket.tokens + (now - bucket.updated_at) * self._per_s)
        bucket.updated_at = now
        if bucket.tokens < 1:
            wait_s = math.ceil((1 - bucket.tokens) / self._per_s)
            error = RateLimited(f"this API key sent too many requests; try again in {wait_s} s", retry_after_s=wait_s)
            error.headers = self._rate_headers(bucket)
            raise error
        bucket.tokens -= 1
        return self._rate_headers(bucket)

    def _rate_headers(self, bucket: _TokenBucket) -> dict[str, str]:
        full_in_s = math.ceil((self._quota - bucket.tokens) / self._per_s)
        return {"ratelimit-policy": self._policy, "ratelimit": f'"default";r={int(bucket.tokens)};t={full_in_s}'}

    def _bucket(self, key_id: int, now: float) -> _TokenBucket:
        bucket = self._buckets.get(key_id)
        if bucket is not None:
            return bucket
        if len(self._buckets) >= MAX_BUCKETS:
            # A key that was idle for a window has a full bucket, so its bucket can be dropped.
            full_since = now - self._quota / self._per_s
            self._buckets = {id: kept for id, kept in self._buckets.items() if kept.updated_at > full_since}
        return self._buckets.setdefault(key_id, _TokenBucket(self._quota, now))

"""Pauses between jobs that end soon after they were submitted. A shared cluster must not get a job each second."""

import time
from dataclasses import dataclass

__all__ = ["JobBackoff"]

SOON_S = 120.0
"""Seconds after the submission within which the end of a job counts as a failure of its node to run."""
FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 300.0
"""Seconds before the next submission of the pool: after the first failure, and at most."""


@dataclass(frozen=True, slots=True)
class _PoolFailures:
    count: int
    paused_until: float
    """Monotonic time until which the pool submits no job."""
    message: str


class JobBackoff:
    """The failures in a row of each pool, and the pauses that follow from them."""

    def __init__(self) -> None:
        self._failures: dict[str, _PoolFailures] = {}

    def note_end(self, pool: str, *, age_s: float, message: str) -> None:
        """Note that a job ended without being asked to, `age_s` seconds after its submission."""
        if age_s > SOON_S:
            self._failures.pop(pool, None)
            return
        before = self._failures.get(pool)
        count = before.count + 1 if before is not None else 1
        pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(count - 1, 20))
        self._failures[pool] = _PoolFailures(count, time.monotonic() + pause_s, message)

    def note_stable(self, pool: str, *, age_s: float) -> None:
        """Note that a job runs, `age_s` seconds after its submission."""
        if age_s > SOON_S:
            self._failures.pop(pool, None)

    def pause_text(self, pool: str) -> str:
        """Return why the pool submits no job now; empty if it may submit."""
        known = self._failures.get(pool)
        if known is None or time.monotonic() >= known.paused_until:
            return ""
        left_s = known.paused_until - time.monotonic()
        return f"{known.count} jobs in a row ended soon, the next one follows in {left_s:.0f} s: {known.message}"

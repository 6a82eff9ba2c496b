"""The database's time, as the leader follows it between its polls."""

import time

__all__ = ["DatabaseClock"]


class DatabaseClock:
    """Never goes back, however long a poll took whose answer says what time it is."""

    def __init__(self) -> None:
        self._offset_s = 0.0
        self._latest = 0.0

    def set(self, now: float) -> None:
        """It is this time there."""
        self._offset_s = now - time.monotonic()

    def now(self) -> float:
        self._latest = max(self._latest, time.monotonic() + self._offset_s)
        return self._latest

"""How long it takes until something is tried again that costs more than its answer."""

import time

__all__ = ["ExponentialBackoff"]


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

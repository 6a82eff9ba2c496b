"""How many calls at once an endpoint bears: additive increase, multiplicative decrease (Chiu and Jain, 1989)."""

__all__ = ["ConcurrencyWindow"]

_GROWTH_PER_S = 1.0


class ConcurrencyWindow:
    """Halved when the endpoint says that it is too much, and one more for each second in which it answers.

    Times are seconds of any clock that does not go back.
    """

    def __init__(self, max_size: int) -> None:
        if max_size < 1:
            raise ValueError("at least one call at once")
        self._max_size = max_size
        self._size = float(max_size)
        self._changed = float("-inf")
        self._halved = float("-inf")

    @property
    def size(self) -> int:
        """From 1 to the most."""
        return int(self._size)

    def throttled(self, *, sent: float, now: float) -> None:
        """A request that was sent then was too much. Those that were under way when it was halved say nothing new."""
        if sent > self._halved:
            self._size = max(1.0, self._size / 2)
            self._halved = self._changed = now

    def responded(self, now: float) -> None:
        """It took a request. After a pause it is no larger than a second of success makes it."""
        if self._size < self._max_size:
            self._size = min(
                float(self._max_size), self._size + _GROWTH_PER_S * min(1.0, max(0.0, now - self._changed))
            )
            self._changed = now

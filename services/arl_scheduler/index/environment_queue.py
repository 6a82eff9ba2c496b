"""The queued actions of one environment, in order of their ids."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from uuid import UUID

__all__ = ["EnvironmentQueue"]

MAX_GONE = 64
"""Number of removed entries that are not worth a clean-up."""


class EnvironmentQueue:
    """A sorted queue of ids. A removal takes constant time on average, also from a queue of tens of thousands."""

    def __init__(self) -> None:
        self._ids: list[UUID] = []
        """Ids in order, including removed ones."""
        self._live: set[UUID] = set()
        self._start = 0
        """Position of the first entry that may be live."""

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, id: UUID) -> bool:
        return id in self._live

    def __iter__(self) -> Iterator[UUID]:
        return (id for id in islice(self._ids, self._start, None) if id in self._live)

    def add(self, id: UUID) -> None:
        """Add an id. Most ids are later than all others."""
        if id in self._live:
            return
        self._live.add(id)
        if not self._ids or id > self._ids[-1]:
            self._ids.append(id)
            return
        at = bisect_left(self._ids, id)
        if at == len(self._ids) or self._ids[at] != id:
            insort(self._ids, id)
        self._start = min(self._start, at)

    def discard(self, id: UUID) -> None:
        """Remove an id, if it is there."""
        if id not in self._live:
            return
        self._live.remove(id)
        if len(self._ids) > MAX_GONE + 2 * len(self._live):
            self._ids, self._start = list(self), 0

    def first(self) -> UUID | None:
        """Return the earliest id, or None."""
        while self._start < len(self._ids):
            if self._ids[self._start] in self._live:
                return self._ids[self._start]
            self._start += 1
        return None

    def count_before(self, id: UUID) -> int:
        """Return the number of earlier ids. It walks them, so no round calls it."""
        return sum(each < id for each in self)

    def page(self, first: int, limit: int) -> list[UUID]:
        """Return at most `limit` ids from position `first` on."""
        return list(islice(self, first, first + limit))

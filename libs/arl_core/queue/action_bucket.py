"""Buckets of equivalent queued actions, in order of arrival."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID
from weakref import ReferenceType, ref

from arl_core.domain.model import ActionClass, ClassVariant, QueuedAction

__all__ = [
    "CHUNK_SIZE",
    "MAX_SENIORITY_S",
    "ActionBucket",
    "BucketKey",
    "CursorEntry",
    "QueueEntry",
    "arrival_order",
    "effective_arrival",
]

MAX_SENIORITY_S = 60.0
"""Maximum seconds by which an action counts as submitted earlier because its trajectory began earlier."""


def effective_arrival(action: QueuedAction) -> float:
    """Return the start of the action's trajectory, but at most `MAX_SENIORITY_S` before its submission.

    A trajectory waits for each action before the next. The mean action completion time is therefore the mean time that
    trajectories take in addition to thinking. They should end one after another, not all at the end. An action is
    overtaken only by actions submitted less than `MAX_SENIORITY_S` later, so none starves.
    """
    if action.trajectory_started_at is None:
        return action.submitted
    return max(action.trajectory_started_at, action.submitted - MAX_SENIORITY_S)


def arrival_order(action: QueuedAction) -> tuple[int, float, UUID]:
    """Return the sort key: higher priority first, then critical actions, then arrival.

    Ties are broken by id, so that a round is deterministic.
    """
    return (-action.rank, effective_arrival(action), action.id)


class BucketKey(NamedTuple):
    """The key of a bucket of equivalent actions: if one of them fits on no node, none does."""

    cls: ClassVariant
    task: int
    priority: int
    node: int | None
    """Node of the environment, if it exists."""
    makes_environment: bool
    gang: UUID | None = None
    """Id of an action that represents a gang; its bucket contains nothing else."""
    is_critical: bool = False
    """True for actions of critical trajectories."""


@dataclass(slots=True, eq=False)
class QueueEntry:
    """The entry of an action in its bucket."""

    effective_arrival: float
    id: UUID
    bucket: "ReferenceType[ActionBucket]"
    """Weak reference: the leader does not run cycle collection over the index, so it must contain no cycles."""
    action: QueuedAction | None
    """Queued action; None once it is discarded. The entry is removed later."""


CursorEntry = tuple[int, float, UUID, QueueEntry, int, float]
"""Negated rank, sort time in the cursor, id, entry, position in the bucket, size penalty of the bucket."""

CHUNK_SIZE = 1024
"""Entries per chunk; a chunk has fewer than twice as many."""
MAX_REMOVED_AT_START = 64
"""Maximum number of discarded entries at the start of a bucket while it is walked."""
_OFFSET_BITS = 12
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
"""Mask of the offset; a position is the chunk number shifted by `_OFFSET_BITS`, plus the offset in the chunk."""


class ActionBucket:
    """The queued actions of one class and priority that may start on the same nodes, in order of arrival.

    Chunks of bounded length limit how many entries an insertion moves. Appending, discarding and advancing cost O(1)
    amortised; any other insertion costs O(log n).
    """

    def __init__(self, cls: ActionClass, key: BucketKey) -> None:
        self.cls = cls
        self.key = key
        self._negated_rank = -(2 * key.priority + key.is_critical)
        self._chunks: list[list[QueueEntry]] = []
        """Chunks of entries, including discarded entries that are not removed yet."""
        self._entries = self._queued = 0
        self._start = 0
        """Offset in the first chunk before which all entries are discarded."""
        self._head: CursorEntry | None = None
        """Cached head; None after the first action changed."""
        self._self_ref = ref(self)
        self.size_penalty_s = 0.0
        """Cached size penalty and the token it was computed for; set by the caller that creates cursors."""
        self.size_penalty_token: object = None

    def __len__(self) -> int:
        return self._queued

    @property
    def entry_count(self) -> int:
        """Return the number of entries in memory, including discarded ones."""
        return self._entries

    @property
    def first(self) -> QueuedAction:
        """Return the first queued action; the bucket must not be empty."""
        return next(iter(self))

    def __iter__(self) -> Iterator[QueuedAction]:
        """Iterate over the queued actions; the bucket must not change meanwhile."""
        return (entry.action for piece in self._chunks for entry in piece if entry.action is not None)

    def head(self, size_penalty_s: float) -> CursorEntry:
        """Return the first entry for a cursor with this size penalty; the bucket must not be empty."""
        head = self._head
        if head is None or head[5] != size_penalty_s:
            first = self._find_first()
            head = (
                self._negated_rank,
                first.effective_arrival + size_penalty_s,
                first.id,
                first,
                self._start,
                size_penalty_s,
            )
            self._head = head
        return head

    def after(self, head: CursorEntry) -> CursorEntry | None:
        """Return the next queued entry for the same cursor."""
        rank, _, _, _, place, lead_s = head
        begin = (place & _OFFSET_MASK) + 1
        for number in range(place >> _OFFSET_BITS, len(self._chunks)):
            piece = self._chunks[number]
            for at in range(begin, len(piece)):
                entry = piece[at]
                if entry.action is not None:
                    return (
                        rank,
                        entry.effective_arrival + lead_s,
                        entry.id,
                        entry,
                        number << _OFFSET_BITS | at,
                        lead_s,
                    )
            begin = 0
        return None

    def add(self, action: QueuedAction) -> QueueEntry:
        """Add an action in arrival order and return its entry. An action behind all others is appended in O(1)."""
        entry, pieces = QueueEntry(effective_arrival(action), action.id, self._self_ref, action), self._chunks
        last = pieces[-1][-1] if pieces else None
        if (
            last is None
            or entry.effective_arrival > last.effective_arrival
            or (entry.effective_arrival == last.effective_arrival and entry.id > last.id)
        ):
            if not pieces or len(pieces[-1]) >= CHUNK_SIZE:
                pieces.append([])
            pieces[-1].append(entry)
        else:
            self._insert(entry)
        self._entries += 1
        self._queued += 1
        return entry

    def _insert(self, entry: QueueEntry) -> None:
        """Insert an entry before later arrivals."""
        self._head = None
        if self._start:
            del self._chunks[0][: self._start]
            self._entries -= self._start
            self._start = 0
        number = bisect_left(self._chunks, _entry_order(entry), key=lambda piece: _entry_order(piece[-1]))
        piece = self._chunks[number]
        insort(piece, entry, key=_entry_order)
        if len(piece) >= 2 * CHUNK_SIZE:
            self._chunks[number : number + 1] = [piece[:CHUNK_SIZE], piece[CHUNK_SIZE:]]

    def discard(self, entry: QueueEntry) -> None:
        """Discard an entry of this bucket; call it once per entry."""
        entry.action = None
        self._queued -= 1
        if self._head is not None and self._head[3] is entry:
            self._head = None
        if not self._queued or (self._entries > 64 and self._entries > 2 * self._queued):
            self._compact()

    def _find_first(self) -> QueueEntry:
        """Return the first queued entry, and remove discarded entries before it once there are enough."""
        pieces, start = self._chunks, self._start
        while pieces[0][start].action is None:
            start += 1
            if start == len(pieces[0]):
                self._entries -= start
                start = 0
                del pieces[0]
        if start >= MAX_REMOVED_AT_START:
            del pieces[0][:start]
            self._entries -= start
            start = 0
        self._start = start
        return pieces[0][start]

    def _compact(self) -> None:
        waiting = [entry for piece in self._chunks for entry in piece if entry.action is not None]
        self._chunks = [waiting[start : start + CHUNK_SIZE] for start in range(0, len(waiting), CHUNK_SIZE)]
        self._entries, self._start, self._head = len(waiting), 0, None


def _entry_order(entry: QueueEntry) -> tuple[float, UUID]:
    return (entry.effective_arrival, entry.id)

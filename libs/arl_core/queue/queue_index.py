"""Queued actions in buckets of equivalent actions, in an order that a round can walk without changes."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple
from uuid import UUID
from weakref import ReferenceType, ref

from arl_core.domain.model import ActionClass, QueuedAction, ResourceShape
from arl_core.queue.quotas import QuotaRoom

__all__ = [
    "CHUNK_SIZE",
    "MAX_SENIORITY_S",
    "ActionBucket",
    "BucketKey",
    "QueueCursor",
    "QueueEntry",
    "QueueIndex",
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
    """Return the sort key: higher priority first, then arrival; ties by id, so that a round is deterministic."""
    return (-action.priority, effective_arrival(action), action.id)


class BucketKey(NamedTuple):
    """The key of a bucket of equivalent actions: if one of them fits on no node, none does."""

    cls: int
    task: int
    priority: int
    node: int | None
    """Node of the environment, if it exists."""
    makes_environment: bool
    gang: UUID | None = None
    """Id of an action that represents a gang; its bucket contains nothing else."""


@dataclass(slots=True, eq=False)
class QueueEntry:
    """The entry of an action in its bucket."""

    effective_arrival: float
    id: UUID
    bucket: "ReferenceType[ActionBucket]"
    """Weak reference: the leader does not run cycle collection over the index, so it must contain no cycles."""
    action: QueuedAction | None
    """Queued action; None once it is discarded. The entry is removed later."""


_CursorEntry = tuple[int, float, UUID, QueueEntry, int, float]
"""Negated priority, sort time in the cursor, id, entry, position in the bucket, size penalty of the bucket."""

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
        self._chunks: list[list[QueueEntry]] = []
        """Chunks of entries, including discarded entries that are not removed yet."""
        self._entries = self._queued = 0
        self._start = 0
        """Offset in the first chunk before which all entries are discarded."""
        self._head: _CursorEntry | None = None
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

    def head(self, size_penalty_s: float) -> _CursorEntry:
        """Return the first entry for a cursor with this size penalty; the bucket must not be empty."""
        head = self._head
        if head is None or head[5] != size_penalty_s:
            first = self._find_first()
            head = (
                -self.key.priority,
                first.effective_arrival + size_penalty_s,
                first.id,
                first,
                self._start,
                size_penalty_s,
            )
            self._head = head
        return head

    def after(self, head: _CursorEntry) -> _CursorEntry | None:
        """Return the next queued entry for the same cursor."""
        priority, _, _, _, place, lead_s = head
        begin = (place & _OFFSET_MASK) + 1
        for number in range(place >> _OFFSET_BITS, len(self._chunks)):
            piece = self._chunks[number]
            for at in range(begin, len(piece)):
                entry = piece[at]
                if entry.action is not None:
                    return (
                        priority,
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


class QueueCursor:
    """A cursor over non-empty buckets: higher priority first, then arrival plus the size penalty of the bucket.

    The buckets must not change meanwhile. Creation costs O(buckets) and each step O(log n). If `room` is given, an
    action without room is skipped with the rest of its bucket. Advancing past an action consumes its room.
    """

    head: QueuedAction | None
    """Next action; None at the end."""
    effective_arrival: float
    """Effective arrival of the head."""
    size_penalty_s: float
    """Size penalty of the head's bucket."""

    def __init__(
        self,
        buckets: Iterable[ActionBucket],
        size_penalties_s: Iterable[float] | None = None,
        *,
        room: QuotaRoom | None = None,
    ) -> None:
        self._room = room
        if size_penalties_s is None:
            self._heads = [bucket.head(0.0) for bucket in buckets]
        else:
            self._heads = [bucket.head(lead_s) for bucket, lead_s in zip(buckets, size_penalties_s, strict=True)]
        heapify(self._heads)
        self._update_head()

    @property
    def bucket(self) -> ActionBucket:
        """Return the bucket of the head; at the end, the last bucket."""
        bucket = self._entry.bucket()
        assert bucket is not None  # a cursor never outlives its buckets
        return bucket

    def advance(self) -> None:
        """Advance to the next action."""
        if self._room is not None and self.head is not None:
            self._room.consume(self.head)
        heads, bucket = self._heads, self._entry.bucket()
        assert bucket is not None  # a cursor never outlives its buckets
        following = bucket.after(heads[0])
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, following)
        self._update_head()

    def skip_bucket(self) -> None:
        """Skip the rest of the head's bucket."""
        heappop(self._heads)
        self._update_head()

    def _update_head(self) -> None:
        heads, room = self._heads, self._room
        while heads:
            _, _, _, entry, _, self.size_penalty_s = heads[0]
            self._entry, self.effective_arrival, self.head = entry, entry.effective_arrival, entry.action
            if room is None or self.head is None or room.has_room(self.head):
                return
            heappop(heads)
        self.head = None


class QueueIndex:
    """An index of all queued actions. Each id is in at most one bucket."""

    def __init__(self) -> None:
        self._by_node: dict[int | None, dict[BucketKey, ActionBucket]] = {}
        self._by_task: dict[int, dict[BucketKey, ActionBucket]] = {}
        self._on_devices: dict[BucketKey, ActionBucket] = {}
        self._cores: Counter[int] = Counter()
        self._entries: dict[UUID, QueueEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, action_id: UUID) -> bool:
        return action_id in self._entries

    def bucket_of(self, action_id: UUID) -> ActionBucket | None:
        """Return the bucket of a queued action; None if the action is unknown."""
        entry = self._entries.get(action_id)
        return entry.bucket() if entry is not None else None

    def nodes(self) -> Iterator[int | None]:
        """Return the nodes of the actions' environments; None if some actions have no node yet."""
        return iter(self._by_node)

    def buckets_on(self, node: int | None) -> Iterator[ActionBucket]:
        """Return the buckets of actions that can only start on this node; for None, of those without a node."""
        return iter(self._by_node.get(node, {}).values())

    def buckets(self) -> Iterator[ActionBucket]:
        """Yield all buckets, in no particular order."""
        return (bucket for buckets in self._by_node.values() for bucket in buckets.values())

    def on_devices(self) -> Collection[ActionBucket]:
        """Return the buckets of actions that need whole devices."""
        return self._on_devices.values()

    def by_task(self) -> dict[int, Iterable[ActionBucket]]:
        """Return the other buckets by task."""
        return {task: buckets.values() for task, buckets in self._by_task.items()}

    def cores_needed(self) -> Collection[int]:
        """Return the distinct minimum milli-cores of the buckets in `by_task`."""
        return self._cores.keys()

    def in_order(self) -> Iterator[QueuedAction]:
        """Yield all actions by `arrival_order`; the index must not change meanwhile."""
        walk = QueueCursor(self.buckets())
        while (action := walk.head) is not None:
            yield action
            walk.advance()

    def add(self, action: QueuedAction) -> None:
        """Add a queued action, or replace a known one with the same id."""
        if action.id in self._entries:
            self.discard(action.id)
        environment = action.environment
        node = environment.node if environment is not None else None
        gang = action.id if action.gang_members else None
        makes_environment = environment is not None and node is None
        key = BucketKey(action.cls.key, action.task, action.priority, node, makes_environment, gang)
        buckets = self._by_node.setdefault(node, {})
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = ActionBucket(action.cls, key)
            self._add_bucket(bucket)
        self._entries[action.id] = bucket.add(action)

    def discard(self, action_id: UUID) -> None:
        """Remove an action; an unknown id is ignored."""
        entry = self._entries.pop(action_id, None)
        if entry is None:
            return
        bucket = entry.bucket()
        assert bucket is not None  # the index references the bucket while it has entries
        bucket.discard(entry)
        if not bucket:
            node = bucket.key.node
            del self._by_node[node][bucket.key]
            if not self._by_node[node]:
                del self._by_node[node]
            self._remove_bucket(bucket)

    def _add_bucket(self, bucket: ActionBucket) -> None:
        if bucket.cls.shape is ResourceShape.GROUP:
            self._on_devices[bucket.key] = bucket
            return
        self._by_task.setdefault(bucket.key.task, {})[bucket.key] = bucket
        self._cores[bucket.cls.demand.minimum.get(_CORES, 0)] += 1

    def _remove_bucket(self, bucket: ActionBucket) -> None:
        if bucket.cls.shape is ResourceShape.GROUP:
            del self._on_devices[bucket.key]
            return
        task, cores = bucket.key.task, bucket.cls.demand.minimum.get(_CORES, 0)
        del self._by_task[task][bucket.key]
        if not self._by_task[task]:
            del self._by_task[task]
        self._cores[cores] -= 1
        if not self._cores[cores]:
            del self._cores[cores]


_CORES = "cpu_milli"

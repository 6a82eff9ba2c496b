"""Waiting actions in buckets of what is alike, in an order that a round can walk without changing it."""

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
"""How much earlier, at most, an action counts as submitted because its trajectory began earlier."""


def effective_arrival(action: QueuedAction) -> float:
    """When it counts as submitted: as its trajectory began, but at most `SENIORITY_S` before it was submitted.

    A trajectory waits for each of its actions before the next, so the mean action completion time is the mean time
    that trajectories take beside thinking: they should end one after another, not all at the end. An action is
    overtaken only by those submitted less than `SENIORITY_S` later, so none starves.
    """
    if action.trajectory_started_at is None:
        return action.submitted
    return max(action.trajectory_started_at, action.submitted - MAX_SENIORITY_S)


def arrival_order(action: QueuedAction) -> tuple[int, float, UUID]:
    """Higher priority first, then who came first; ties by id, so that a round is deterministic."""
    return (-action.priority, effective_arrival(action), action.id)


class BucketKey(NamedTuple):
    """What is alike waits together: where one of a bucket fits nowhere, none does."""

    cls: int
    task: int
    priority: int
    node: int | None
    """Where its environment lives."""
    makes_environment: bool
    gang: UUID | None = None
    """Of one that stands for others, itself: a gang is alone in its bucket."""


@dataclass(slots=True, eq=False)
class QueueEntry:
    """An action's place in its bucket."""

    effective_arrival: float
    id: UUID
    bucket: "ReferenceType[ActionBucket]"
    """Not the bucket itself: what a leader has read is never looked through for cycles, so it must have none."""
    action: QueuedAction | None
    """None once it waits no longer; it is cleared away later."""


_CursorEntry = tuple[int, float, UUID, QueueEntry, int, float]
"""Its priority below 0, its place in a walk, its id, itself, where in its bucket it is, the bucket's lead."""

CHUNK_SIZE = 1024
"""Entries; one has at most twice as many."""
MAX_REMOVED_AT_START = 64
"""Entries at the beginning of a bucket that wait no longer, at most, while it is walked."""
_OFFSET_BITS = 12
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
"""A place is the number of a piece and, in so many bits, where in that."""


class ActionBucket:
    """Actions of one class and priority that may start on the same nodes, in the order in which they came.

    In pieces of bounded length, so that one that came before many others moves few of them. To add one that came last,
    to discard one and to walk to the next cost O(1), over many; to add any other O(log n).
    """

    def __init__(self, cls: ActionClass, key: BucketKey) -> None:
        self.cls = cls
        self.key = key
        self._chunks: list[list[QueueEntry]] = []
        """With those that wait no longer and are not cleared away."""
        self._entries = self._queued = 0
        self._start = 0
        """Where in the first piece none before waits."""
        self._head: _CursorEntry | None = None
        """As it was last asked for; None once another is first."""
        self._self_ref = ref(self)
        self.size_penalty_s = 0.0
        """For whoever makes walks, with what that followed from."""
        self.size_penalty_token: object = None

    def __len__(self) -> int:
        return self._queued

    @property
    def entry_count(self) -> int:
        """How many are in memory, those included that wait no longer."""
        return self._entries

    @property
    def first(self) -> QueuedAction:
        """Of a bucket in which some wait."""
        return next(iter(self))

    def __iter__(self) -> Iterator[QueuedAction]:
        """The bucket must not change while it is walked."""
        return (entry.action for piece in self._chunks for entry in piece if entry.action is not None)

    def head(self, size_penalty_s: float) -> _CursorEntry:
        """Of a bucket in which some wait: the first, for a walk in which it has this lead."""
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
        """The next that waits, for the same walk."""
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
        """Before some that came later."""
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
        """One of its own, once."""
        entry.action = None
        self._queued -= 1
        if self._head is not None and self._head[3] is entry:
            self._head = None
        if not self._queued or (self._entries > 64 and self._entries > 2 * self._queued):
            self._compact()

    def _find_first(self) -> QueueEntry:
        """Those before it that wait no longer are passed together, and cleared away once they are some."""
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
    """The actions of buckets that are not empty: higher priority first, then by when they came plus a bucket's lead.

    Nothing changes the buckets meanwhile. Made in O(buckets); each step costs O(log n). With `room`, who has none has
    no turn, and neither has anyone behind him in his bucket; whoever is advanced from takes his.
    """

    head: QueuedAction | None
    """Whose turn it is; None at the end."""
    effective_arrival: float
    """When the head did."""
    size_penalty_s: float
    """Of the head's bucket."""

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
        """Of the head; the last one at the end."""
        bucket = self._entry.bucket()
        assert bucket is not None  # its walk is over before it goes
        return bucket

    def advance(self) -> None:
        """To the next action."""
        if self._room is not None and self.head is not None:
            self._room.consume(self.head)
        heads, bucket = self._heads, self._entry.bucket()
        assert bucket is not None  # its walk is over before it goes
        following = bucket.after(heads[0])
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, following)
        self._update_head()

    def skip_bucket(self) -> None:
        """Nothing more of the head's bucket in this walk."""
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
    """All waiting actions. Each id is in at most one bucket."""

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
        entry = self._entries.get(action_id)
        return entry.bucket() if entry is not None else None

    def nodes(self) -> Iterator[int | None]:
        """On which some wait to start, as their environments live there; None if some may go anywhere."""
        return iter(self._by_node)

    def buckets_on(self, node: int | None) -> Iterator[ActionBucket]:
        """Of the actions that can only start there; of None, of those whose node is not chosen yet."""
        return iter(self._by_node.get(node, {}).values())

    def buckets(self) -> Iterator[ActionBucket]:
        return (bucket for buckets in self._by_node.values() for bucket in buckets.values())

    def on_devices(self) -> Collection[ActionBucket]:
        """Of what needs whole devices."""
        return self._on_devices.values()

    def by_task(self) -> dict[int, Iterable[ActionBucket]]:
        """Of what does not need whole devices."""
        return {task: buckets.values() for task, buckets in self._by_task.items()}

    def cores_needed(self) -> Collection[int]:
        """What buckets of `by_task` need at least, in milli-cores, each once."""
        return self._cores.keys()

    def in_order(self) -> Iterator[QueuedAction]:
        """All, by `arrival_order`. Nothing may change meanwhile."""
        walk = QueueCursor(self.buckets())
        while (action := walk.head) is not None:
            yield action
            walk.advance()

    def add(self, action: QueuedAction) -> None:
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
        entry = self._entries.pop(action_id, None)
        if entry is None:
            return
        bucket = entry.bucket()
        assert bucket is not None  # the index has it while it has its entries
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

"""Waiting actions in buckets of what is alike, in an order that a round can walk without changing it."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple
from uuid import UUID
from weakref import ReferenceType, ref

from arl_core.model import ActionClass, Shape, Waiting
from arl_core.quotas import Room

__all__ = ["PIECE", "SENIORITY_S", "Bucket", "BucketKey", "Entry", "WaitingIndex", "Walk", "arrival_order", "came"]

SENIORITY_S = 60.0
"""How much earlier, at most, an action counts as submitted because its trajectory began earlier."""


def came(action: Waiting) -> float:
    """When it counts as submitted: as its trajectory began, but at most `SENIORITY_S` before it was submitted.

    A trajectory waits for each of its actions before the next, so the mean action completion time is the mean time
    that trajectories take beside thinking: they should end one after another, not all at the end. An action is
    overtaken only by those submitted less than `SENIORITY_S` later, so none starves.
    """
    if action.began is None:
        return action.submitted
    return max(action.began, action.submitted - SENIORITY_S)


def arrival_order(action: Waiting) -> tuple[int, float, UUID]:
    """Higher priority first, then who came first; ties by id, so that a round is deterministic."""
    return (-action.priority, came(action), action.id)


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
class Entry:
    """An action's place in its bucket."""

    came: float
    id: UUID
    bucket: "ReferenceType[Bucket]"
    """Not the bucket itself: what a leader has read is never looked through for cycles, so it must have none."""
    action: Waiting | None
    """None once it waits no longer; it is cleared away later."""


_Head = tuple[int, float, UUID, Entry, int, float]
"""Its priority below 0, its place in a walk, its id, itself, where in its bucket it is, the bucket's lead."""

PIECE = 1024
"""Entries; one has at most twice as many."""
PASSED = 64
"""Entries at the beginning of a bucket that wait no longer, at most, while it is walked."""
_BITS = 12
_WITHIN = (1 << _BITS) - 1
"""A place is the number of a piece and, in so many bits, where in that."""


class Bucket:
    """Actions of one class and priority that may start on the same nodes, in the order in which they came.

    In pieces of bounded length, so that one that came before many others moves few of them. To add one that came last,
    to discard one and to walk to the next cost O(1), over many; to add any other O(log n).
    """

    def __init__(self, cls: ActionClass, key: BucketKey) -> None:
        self.cls = cls
        self.key = key
        self._pieces: list[list[Entry]] = []
        """With those that wait no longer and are not cleared away."""
        self._entries = self._waiting = 0
        self._start = 0
        """Where in the first piece none before waits."""
        self._head: _Head | None = None
        """As it was last asked for; None once another is first."""
        self._itself = ref(self)
        self.lead_s = 0.0
        """For whoever makes walks, with what that followed from."""
        self.led_by: object = None

    def __len__(self) -> int:
        return self._waiting

    @property
    def kept(self) -> int:
        """How many are in memory, those included that wait no longer."""
        return self._entries

    @property
    def first(self) -> Waiting:
        """Of a bucket in which some wait."""
        return next(iter(self))

    def __iter__(self) -> Iterator[Waiting]:
        """The bucket must not change while it is walked."""
        return (entry.action for piece in self._pieces for entry in piece if entry.action is not None)

    def head(self, lead_s: float) -> _Head:
        """Of a bucket in which some wait: the first, for a walk in which it has this lead."""
        head = self._head
        if head is None or head[5] != lead_s:
            first = self._look_for_first()
            head = (-self.key.priority, first.came + lead_s, first.id, first, self._start, lead_s)
            self._head = head
        return head

    def after(self, head: _Head) -> _Head | None:
        """The next that waits, for the same walk."""
        priority, _, _, _, place, lead_s = head
        begin = (place & _WITHIN) + 1
        for number in range(place >> _BITS, len(self._pieces)):
            piece = self._pieces[number]
            for at in range(begin, len(piece)):
                entry = piece[at]
                if entry.action is not None:
                    return (priority, entry.came + lead_s, entry.id, entry, number << _BITS | at, lead_s)
            begin = 0
        return None

    def add(self, action: Waiting) -> Entry:
        entry, pieces = Entry(came(action), action.id, self._itself, action), self._pieces
        last = pieces[-1][-1] if pieces else None
        if last is None or entry.came > last.came or (entry.came == last.came and entry.id > last.id):
            if not pieces or len(pieces[-1]) >= PIECE:
                pieces.append([])
            pieces[-1].append(entry)
        else:
            self._insert(entry)
        self._entries += 1
        self._waiting += 1
        return entry

    def _insert(self, entry: Entry) -> None:
        """Before some that came later."""
        self._head = None
        if self._start:
            del self._pieces[0][: self._start]
            self._entries -= self._start
            self._start = 0
        number = bisect_left(self._pieces, _order(entry), key=lambda piece: _order(piece[-1]))
        piece = self._pieces[number]
        insort(piece, entry, key=_order)
        if len(piece) >= 2 * PIECE:
            self._pieces[number : number + 1] = [piece[:PIECE], piece[PIECE:]]

    def discard(self, entry: Entry) -> None:
        """One of its own, once."""
        entry.action = None
        self._waiting -= 1
        if self._head is not None and self._head[3] is entry:
            self._head = None
        if not self._waiting or (self._entries > 64 and self._entries > 2 * self._waiting):
            self._clear_away()

    def _look_for_first(self) -> Entry:
        """Those before it that wait no longer are passed together, and cleared away once they are some."""
        pieces, start = self._pieces, self._start
        while pieces[0][start].action is None:
            start += 1
            if start == len(pieces[0]):
                self._entries -= start
                start = 0
                del pieces[0]
        if start >= PASSED:
            del pieces[0][:start]
            self._entries -= start
            start = 0
        self._start = start
        return pieces[0][start]

    def _clear_away(self) -> None:
        waiting = [entry for piece in self._pieces for entry in piece if entry.action is not None]
        self._pieces = [waiting[start : start + PIECE] for start in range(0, len(waiting), PIECE)]
        self._entries, self._start, self._head = len(waiting), 0, None


def _order(entry: Entry) -> tuple[float, UUID]:
    return (entry.came, entry.id)


class Walk:
    """The actions of buckets that are not empty: higher priority first, then by when they came plus a bucket's lead.

    Nothing changes the buckets meanwhile. Made in O(buckets); each step costs O(log n). With `room`, who has none has
    no turn, and neither has anyone behind him in his bucket; whoever is advanced from takes his.
    """

    head: Waiting | None
    """Whose turn it is; None at the end."""
    came: float
    """When the head did."""
    lead_s: float
    """Of the head's bucket."""

    def __init__(
        self, buckets: Iterable[Bucket], leads_s: Iterable[float] | None = None, *, room: Room | None = None
    ) -> None:
        self._room = room
        if leads_s is None:
            self._heads = [bucket.head(0.0) for bucket in buckets]
        else:
            self._heads = [bucket.head(lead_s) for bucket, lead_s in zip(buckets, leads_s, strict=True)]
        heapify(self._heads)
        self._look()

    @property
    def bucket(self) -> Bucket:
        """Of the head; the last one at the end."""
        bucket = self._entry.bucket()
        assert bucket is not None  # its walk is over before it goes
        return bucket

    def advance(self) -> None:
        """To the next action."""
        if self._room is not None and self.head is not None:
            self._room.take(self.head)
        heads, bucket = self._heads, self._entry.bucket()
        assert bucket is not None  # its walk is over before it goes
        following = bucket.after(heads[0])
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, following)
        self._look()

    def leave_bucket(self) -> None:
        """Nothing more of the head's bucket in this walk."""
        heappop(self._heads)
        self._look()

    def _look(self) -> None:
        heads, room = self._heads, self._room
        while heads:
            _, _, _, entry, _, self.lead_s = heads[0]
            self._entry, self.came, self.head = entry, entry.came, entry.action
            if room is None or self.head is None or room.has(self.head):
                return
            heappop(heads)
        self.head = None


class WaitingIndex:
    """All waiting actions. Each id is in at most one bucket."""

    def __init__(self) -> None:
        self._nodes: dict[int | None, dict[BucketKey, Bucket]] = {}
        self._tasks: dict[int, dict[BucketKey, Bucket]] = {}
        self._on_devices: dict[BucketKey, Bucket] = {}
        self._cores: Counter[int] = Counter()
        self._entries: dict[UUID, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, action_id: UUID) -> bool:
        return action_id in self._entries

    def bucket_of(self, action_id: UUID) -> Bucket | None:
        entry = self._entries.get(action_id)
        return entry.bucket() if entry is not None else None

    def nodes(self) -> Iterator[int | None]:
        """On which some wait to start, as their environments live there; None if some may go anywhere."""
        return iter(self._nodes)

    def on(self, node: int | None) -> Iterator[Bucket]:
        """Of the actions that can only start there; of None, of those whose node is not chosen yet."""
        return iter(self._nodes.get(node, {}).values())

    def buckets(self) -> Iterator[Bucket]:
        return (bucket for buckets in self._nodes.values() for bucket in buckets.values())

    def on_devices(self) -> Collection[Bucket]:
        """Of what needs whole devices."""
        return self._on_devices.values()

    def by_task(self) -> dict[int, Iterable[Bucket]]:
        """Of what does not need whole devices."""
        return {task: buckets.values() for task, buckets in self._tasks.items()}

    def cores_needed(self) -> Collection[int]:
        """What buckets of `by_task` need at least, in milli-cores, each once."""
        return self._cores.keys()

    def in_order(self) -> Iterator[Waiting]:
        """All, by `arrival_order`. Nothing may change meanwhile."""
        walk = Walk(self.buckets())
        while (action := walk.head) is not None:
            yield action
            walk.advance()

    def add(self, action: Waiting) -> None:
        if action.id in self._entries:
            self.discard(action.id)
        environment = action.environment
        node = environment.node if environment is not None else None
        gang = action.id if action.together else None
        makes_environment = environment is not None and node is None
        key = BucketKey(action.cls.key, action.task, action.priority, node, makes_environment, gang)
        buckets = self._nodes.setdefault(node, {})
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = Bucket(action.cls, key)
            self._show(bucket)
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
            del self._nodes[node][bucket.key]
            if not self._nodes[node]:
                del self._nodes[node]
            self._hide(bucket)

    def _show(self, bucket: Bucket) -> None:
        if bucket.cls.shape is Shape.GROUP:
            self._on_devices[bucket.key] = bucket
            return
        self._tasks.setdefault(bucket.key.task, {})[bucket.key] = bucket
        self._cores[bucket.cls.demand.minimum.get(_CORES, 0)] += 1

    def _hide(self, bucket: Bucket) -> None:
        if bucket.cls.shape is Shape.GROUP:
            del self._on_devices[bucket.key]
            return
        task, cores = bucket.key.task, bucket.cls.demand.minimum.get(_CORES, 0)
        del self._tasks[task][bucket.key]
        if not self._tasks[task]:
            del self._tasks[task]
        self._cores[cores] -= 1
        if not self._cores[cores]:
            del self._cores[cores]


_CORES = "cpu_milli"

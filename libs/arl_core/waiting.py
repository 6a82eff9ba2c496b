"""Waiting actions in buckets of what is alike, in an order that a round can walk without changing it."""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple
from uuid import UUID

from arl_core.model import ActionClass, Shape, Waiting

__all__ = ["SENIORITY_S", "Bucket", "BucketKey", "WaitingIndex", "Walk", "arrival_order", "came"]

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


_Entry = tuple[float, UUID, int, Waiting]
"""When it came, its id, how many were added before it, the action."""

_Head = tuple[int, float, UUID, "Bucket", int, float]
"""Its priority below 0, its place in a walk, its id, its bucket, where in that it is, the bucket's lead."""


class Bucket:
    """Actions of one class and priority that may start on the same nodes, in the order in which they came.

    To add one that came last, to discard one and to walk to the next cost O(1), over many. One that came before others
    moves those: what came before it is not touched.
    """

    def __init__(self, cls: ActionClass, key: BucketKey) -> None:
        self.cls = cls
        self.key = key
        self._live: dict[UUID, int] = {}
        self.line: list[_Entry] = []
        """For walks: with those that wait no longer and are not cleared away."""
        self._start = 0
        """Where in the line the first is that waits."""
        self._additions = 0
        self._head: _Head | None = None
        """As it was last asked for; None once another is first."""
        self.lead_s = 0.0
        """For whoever makes walks, with what that followed from."""
        self.led_by: object = None

    def __len__(self) -> int:
        return len(self._live)

    @property
    def first(self) -> _Entry:
        """Of a bucket in which some wait: the first, with when it came."""
        return self.line[self._start]

    def __iter__(self) -> Iterator[Waiting]:
        """The bucket must not change while it is walked."""
        return (entry[3] for entry in self.entries())

    def entries(self) -> Iterator[_Entry]:
        """With when each came."""
        place: int | None = self._start if self._live else None
        while place is not None:
            yield self.line[place]
            place = self.following(place)

    def following(self, place: int) -> int | None:
        """The place of the next that waits."""
        line, live = self.line, self._live
        for following in range(place + 1, len(line)):
            entry = line[following]
            # An action that left and came back has an older entry at the same place.
            if live.get(entry[1]) == entry[2]:
                return following
        return None

    def head(self, lead_s: float) -> _Head:
        """Of a bucket in which some wait: the first, for a walk in which it has this lead."""
        head = self._head
        if head is None or head[5] != lead_s:
            came, id, _, _ = self.line[self._start]
            head = self._head = (-self.key.priority, came + lead_s, id, self, self._start, lead_s)
        return head

    def add(self, action: Waiting) -> None:
        self._additions += 1
        self._live[action.id] = self._additions
        entry, line = (came(action), action.id, self._additions, action), self.line
        if not line or entry > line[-1]:
            line.append(entry)
        else:
            insort(line, entry, lo=self._start)
            self._head = None

    def discard(self, action_id: UUID) -> None:
        self._live.pop(action_id, None)
        line, live, start = self.line, self._live, self._start
        while start < len(line) and live.get(line[start][1]) != line[start][2]:
            start += 1  # `first` is always one that waits
        if start != self._start:
            self._start, self._head = start, None
        if len(line) > 64 and len(line) > 2 * len(live):
            self.line = [entry for entry in line if live.get(entry[1]) == entry[2]]
            self._start, self._head = 0, None


class Walk:
    """The actions of buckets that are not empty: higher priority first, then by when they came plus a bucket's lead.

    Nothing changes the buckets meanwhile. Made in O(buckets); each step costs O(log n).
    """

    head: Waiting | None
    """Whose turn it is; None at the end."""
    came: float
    """When the head did."""
    bucket: Bucket
    """Of the head; the last one at the end."""
    lead_s: float
    """Of the head's bucket."""

    def __init__(self, buckets: Iterable[Bucket], leads_s: Iterable[float] | None = None) -> None:
        if leads_s is None:
            self._heads = [bucket.head(0.0) for bucket in buckets]
        else:
            self._heads = [bucket.head(lead_s) for bucket, lead_s in zip(buckets, leads_s, strict=True)]
        heapify(self._heads)
        self._look()

    def advance(self) -> None:
        """To the next action."""
        heads = self._heads
        priority, _, _, bucket, place, lead_s = heads[0]
        following = bucket.following(place)
        if following is None:
            heappop(heads)
        else:
            came, id, _, _ = bucket.line[following]
            heapreplace(heads, (priority, came + lead_s, id, bucket, following, lead_s))
        self._look()

    def leave_bucket(self) -> None:
        """Nothing more of the head's bucket in this walk."""
        heappop(self._heads)
        self._look()

    def _look(self) -> None:
        if not self._heads:
            self.head = None
            return
        _, _, _, self.bucket, place, self.lead_s = self._heads[0]
        self.came, _, _, self.head = self.bucket.line[place]


class WaitingIndex:
    """All waiting actions. Each id is in at most one bucket."""

    def __init__(self) -> None:
        self._nodes: dict[int | None, dict[BucketKey, Bucket]] = {}
        self._tasks: dict[int, dict[BucketKey, Bucket]] = {}
        self._on_devices: dict[BucketKey, Bucket] = {}
        self._cores: Counter[int] = Counter()
        self._bucket_of: dict[UUID, Bucket] = {}

    def __len__(self) -> int:
        return len(self._bucket_of)

    def __contains__(self, action_id: UUID) -> bool:
        return action_id in self._bucket_of

    def bucket_of(self, action_id: UUID) -> Bucket | None:
        return self._bucket_of.get(action_id)

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
        bucket.add(action)
        self._bucket_of[action.id] = bucket

    def discard(self, action_id: UUID) -> None:
        bucket = self._bucket_of.pop(action_id, None)
        if bucket is None:
            return
        bucket.discard(action_id)
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

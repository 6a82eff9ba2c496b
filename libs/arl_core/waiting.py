"""Waiting actions in buckets of what is alike, in an order that a round can walk without changing it."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple
from uuid import UUID

from arl_core.model import ActionClass, Waiting

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


class Bucket:
    """Actions of one class and priority that may start on the same nodes, in the order in which they came.

    Add and discard cost O(log n); walking k of them O(k log k).
    """

    def __init__(self, cls: ActionClass, key: BucketKey) -> None:
        self.cls = cls
        self.key = key
        self._live: dict[UUID, int] = {}
        self._heap: list[_Entry] = []
        self._additions = 0

    def __len__(self) -> int:
        return len(self._live)

    @property
    def first(self) -> _Entry:
        """Of a bucket in which some wait: the first, with when it came."""
        return self._heap[0]

    def __iter__(self) -> Iterator[Waiting]:
        """The bucket must not change while it is walked."""
        return (entry[3] for entry in self.entries())

    def entries(self) -> Iterator[_Entry]:
        """With when each came."""
        heap, live = self._heap, self._live
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            entry, at = heappop(frontier)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heappush(frontier, (heap[child], child))
            # An action that left and came back has an older entry at the same place.
            if live.get(entry[1]) == entry[2]:
                yield entry

    def add(self, action: Waiting) -> None:
        self._additions += 1
        self._live[action.id] = self._additions
        heappush(self._heap, (came(action), action.id, self._additions, action))

    def discard(self, action_id: UUID) -> None:
        self._live.pop(action_id, None)
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][1]) != heap[0][2]:
            heappop(heap)  # `first` is always one that waits
        if len(heap) > 64 and len(heap) > 2 * len(live):
            self._heap = [entry for entry in heap if live.get(entry[1]) == entry[2]]
            heapify(self._heap)


class Walk:
    """The actions of buckets that are not empty: higher priority first, then by when they came plus a bucket's lead.

    Nothing changes the buckets meanwhile. Made in O(buckets); each step costs O(log n).
    """

    def __init__(self, buckets: Iterable[Bucket], leads_s: Sequence[float] | None = None) -> None:
        self._buckets = list(buckets)
        self._leads = leads_s if leads_s is not None else [0.0] * len(self._buckets)
        self._entries: list[Iterator[_Entry] | None] = [None] * len(self._buckets)
        self._actions = [bucket.first[3] for bucket in self._buckets]
        self._heads = [
            (-bucket.key.priority, bucket.first[0] + lead, bucket.first[1], at)
            for at, (bucket, lead) in enumerate(zip(self._buckets, self._leads, strict=True))
        ]
        heapify(self._heads)

    @property
    def head(self) -> Waiting | None:
        """Whose turn it is; None at the end."""
        return self._actions[self._heads[0][3]] if self._heads else None

    @property
    def bucket(self) -> Bucket:
        """Of the head."""
        return self._buckets[self._heads[0][3]]

    @property
    def lead_s(self) -> float:
        """Of the head's bucket."""
        return self._leads[self._heads[0][3]]

    def advance(self) -> None:
        """To the next action."""
        priority, _, _, at = self._heads[0]
        entries = self._entries[at]
        if entries is None:
            entries = self._entries[at] = self._buckets[at].entries()
            next(entries)
        following = next(entries, None)
        if following is None:
            heappop(self._heads)
        else:
            self._actions[at] = following[3]
            heapreplace(self._heads, (priority, following[0] + self._leads[at], following[1], at))

    def leave_bucket(self) -> None:
        """Nothing more of the head's bucket in this walk."""
        heappop(self._heads)


class WaitingIndex:
    """All waiting actions. Each id is in at most one bucket."""

    def __init__(self) -> None:
        self._nodes: dict[int | None, dict[BucketKey, Bucket]] = {}
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

"""Queued actions in buckets of equivalent actions, in an order that a round can walk without changes."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from uuid import UUID

from arl_core.domain.model import QueuedAction, ResourceShape
from arl_core.durations.shared_demand import critical_start_amounts, shared_start_amounts
from arl_core.queue.action_bucket import ActionBucket, BucketKey, QueueEntry
from arl_core.queue.quotas import QuotaRoom

__all__ = ["QueueCursor", "QueueIndex"]


class QueueCursor:
    """A cursor over non-empty buckets: higher priority first, then critical actions, then arrival plus size penalty.

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
    """An index of all queued actions. Each id is in at most one bucket.

    The buckets of paused tasks are hidden: they take actions, but no view of the index shows them. Pausing a task costs
    O(its buckets); each gang has a bucket of its own.
    """

    def __init__(self) -> None:
        self._all_by_task: dict[int, dict[BucketKey, ActionBucket]] = {}
        """All buckets of each task, those of paused tasks included."""
        self._paused: frozenset[int] = frozenset()
        self._by_node: dict[int | None, dict[BucketKey, ActionBucket]] = {}
        self._visible_by_task: dict[int, dict[BucketKey, ActionBucket]] = {}
        self._on_devices: dict[BucketKey, ActionBucket] = {}
        self._cores: Counter[int] = Counter()
        self._entries: dict[UUID, QueueEntry] = {}

    def __len__(self) -> int:
        """Return the number of actions, those of paused tasks included."""
        return len(self._entries)

    def __contains__(self, action_id: UUID) -> bool:
        """Return True if a view of the index shows the action."""
        bucket = self.bucket_of(action_id)
        return bucket is not None and bucket.key.task not in self._paused

    def pause(self, tasks: frozenset[int]) -> None:
        """Pause exactly these tasks, and resume all others."""
        before, self._paused = self._paused, tasks
        for task in tasks - before:
            for bucket in self._all_by_task.get(task, {}).values():
                self._hide(bucket)
        for task in before - tasks:
            for bucket in self._all_by_task.get(task, {}).values():
                self._show(bucket)

    def bucket_of(self, action_id: UUID) -> ActionBucket | None:
        """Return the bucket of a queued action, paused or not; None if the action is unknown."""
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
        return {task: buckets.values() for task, buckets in self._visible_by_task.items()}

    def cores_needed(self) -> Collection[int]:
        """Return the distinct milli-cores with which actions of the buckets in `by_task` may start."""
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
        key = BucketKey(
            action.cls.variant, action.task, action.priority, node, makes_environment, gang, action.is_critical
        )
        buckets = self._all_by_task.setdefault(action.task, {})
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = ActionBucket(action.cls, key)
            if action.task not in self._paused:
                self._show(bucket)
        self._entries[action.id] = bucket.add(action)

    def discard(self, action_id: UUID) -> None:
        """Remove an action; an unknown id is ignored."""
        entry = self._entries.pop(action_id, None)
        if entry is None:
            return
        bucket = entry.bucket()
        assert bucket is not None  # the index references the bucket while it has entries
        bucket.discard(entry)
        if bucket:
            return
        task = bucket.key.task
        del self._all_by_task[task][bucket.key]
        if not self._all_by_task[task]:
            del self._all_by_task[task]
        if task not in self._paused:
            self._hide(bucket)

    def _show(self, bucket: ActionBucket) -> None:
        key = bucket.key
        self._by_node.setdefault(key.node, {})[key] = bucket
        if bucket.cls.shape is ResourceShape.GROUP:
            self._on_devices[key] = bucket
            return
        self._visible_by_task.setdefault(key.task, {})[key] = bucket
        self._cores[_least_cores(bucket)] += 1

    def _hide(self, bucket: ActionBucket) -> None:
        key = bucket.key
        del self._by_node[key.node][key]
        if not self._by_node[key.node]:
            del self._by_node[key.node]
        if bucket.cls.shape is ResourceShape.GROUP:
            del self._on_devices[key]
            return
        del self._visible_by_task[key.task][key]
        if not self._visible_by_task[key.task]:
            del self._visible_by_task[key.task]
        cores = _least_cores(bucket)
        self._cores[cores] -= 1
        if not self._cores[cores]:
            del self._cores[cores]


_CORES = "cpu_milli"


def _least_cores(bucket: ActionBucket) -> int:
    """Return the milli-cores with which an action of the bucket may start."""
    key, amounts = bucket.key, shared_start_amounts(bucket.cls, None)
    if key.is_critical:
        in_environment = key.makes_environment or key.node is not None
        amounts = critical_start_amounts(bucket.cls, amounts, in_environment=in_environment)
    return amounts.get(_CORES, 0)

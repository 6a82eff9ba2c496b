"""Weighted fair shares: of projects, and of the tasks inside each.

Start-time fair queueing (Goyal, Vin, Cheng 1996) over dominant shares (Ghodsi et al., DRF, 2011): whoever is granted
something pays for it in virtual time, and whoever has paid least goes first. Idle tasks save nothing up. How far one
may be behind is measured by those who have the same resource: a task that is alone on another one pays without taking
anything from anybody.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from uuid import UUID

from arl_core.domain.model import ENVIRONMENT_RESOURCES, QueuedAction, Resources
from arl_core.queue.queue_index import ActionBucket, QueueCursor

__all__ = [
    "FairQueueCursor",
    "FairShares",
    "QueueWeight",
    "ShareAccounting",
    "dominant_share",
    "own_resource",
    "own_share",
    "total_resources",
]


MAX_CREDIT_S = 10.0
"""Of the whole cell, for a weight of 1: so much may a task be behind others before it stops counting."""


@dataclass(frozen=True, slots=True)
class QueueWeight:
    """Of a task inside its project, and of the project among all."""

    project: int
    weight: float = 1.0
    project_weight: float = 1.0


def total_resources(capacities: Iterable[Resources]) -> dict[str, int]:
    """Of all nodes together."""
    total: dict[str, int] = {}
    for capacity in capacities:
        for resource, amount in capacity.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def dominant_share(resources: Resources, total: Resources) -> float:
    """The largest part, of any one resource, that these amounts are of the whole; 0..1."""
    most = 0.0
    for name, amount in resources.items():
        if amount and (whole := total.get(name)) and amount > most * whole:
            most = amount / whole
    return most


def own_share(resources: Resources, total: Resources) -> float:
    """`dominant_share` of what is an action's own, whoever holds its memory and disk."""
    most = 0.0
    for name, amount in resources.items():
        if amount and name not in ENVIRONMENT_RESOURCES and (whole := total.get(name)) and amount > most * whole:
            most = amount / whole
    return most


def own_resource(resources: Resources, total: Resources) -> str:
    """That of which `own_share` is the part; an empty name of what has nothing of its own."""
    named = [name for name in resources if name not in ENVIRONMENT_RESOURCES and total.get(name)]
    return max(named, key=lambda name: resources[name] / total[name], default="")


class FairShares:
    """What each task has had, in seconds of the whole cell, over its weight. Only differences mean anything."""

    def __init__(self) -> None:
        self._virtual: dict[int, float] = {}
        self._expected: dict[int, float] = {}
        self._served: dict[str, float] = {}
        """By resource: what the one had that was granted some of it last, at most of all."""
        self._resource: dict[int, str] = {}
        """Of which each task was granted something last."""
        self._active: dict[int, int] = {}
        self._running: dict[int, int] = {}
        self._paused: frozenset[int] = frozenset()
        self._sharing: set[int] = set()
        """Tasks that get a part of what their projects get: active ones, but for those that may start nothing."""
        self._weights: Mapping[int, QueueWeight] = {}
        self._sibling_weight: dict[int, float] = {}
        self._effective_weights: dict[int, float] = {}
        """As they are while nobody begins, ends or is weighed anew."""

    def set_weights(self, weights: Mapping[int, QueueWeight]) -> None:
        """From now on; what was charged stays. Tasks that are not named are projects of their own, of weight 1."""
        if weights == self._weights:
            return
        self._weights = weights
        self._sibling_weight = {}
        self._effective_weights.clear()
        for task in self._sharing:
            self._add_sibling_weight(task, +1)

    def set_paused(self, tasks: frozenset[int]) -> None:
        """These may start nothing, from now on, and the others may: what waits there takes no part from anybody."""
        changed = tasks ^ self._paused
        self._paused = tasks
        for task in changed:
            self._update_sharing(task)

    def add_action(self, task: int, resource: str = "") -> None:
        """One more action of it waits or runs. Whoever was idle starts level with who was served last of the resource.

        What others are only expected to have does not count here: it may turn out to be little.
        """
        if task not in self._active:
            least = min((self._virtual[other] for other in self._active), default=0.0)
            if resource in self._served:
                self._resource[task] = resource
            self._virtual[task] = max(self._virtual.get(task, 0.0), self._served_of_same_resource(task), least)
        self._active[task] = self._active.get(task, 0) + 1
        self._update_sharing(task)

    def remove_action(self, task: int) -> None:
        """One action less."""
        self._active[task] -= 1
        if not self._active[task]:
            del self._active[task]
            self._update_sharing(task)
            if not self._active:
                for each in (self._served, self._resource, self._virtual, self._expected, self._running):
                    each.clear()

    def charge_expected(self, task: int, share_s: float, resource: str = "") -> float:
        """So many seconds of the whole cell were granted to it; what `settle` wants to know of it later."""
        cost = share_s / (self._effective_weights.get(task) or self.effective_weight(task))
        self._resource[task] = resource
        # What it was behind beyond its credit is lost now, or it would go first until all of that was made up.
        self._virtual[task] = self.virtual_s(task) - self._expected.get(task, 0.0)
        self._served[resource] = max(self._served.get(resource, 0.0), self._virtual.get(task, 0.0))
        self._expected[task] = self._expected.get(task, 0.0) + cost
        self._running[task] = self._running.get(task, 0) + 1
        self._update_sharing(task)
        return cost

    def settle(self, task: int, expected: float, share_s: float) -> None:
        """What was expected is over, and was so much."""
        self._expected[task] -= expected
        self._virtual[task] = self._virtual.get(task, 0.0) + self.weighted_cost_s(task, share_s)
        self._running[task] -= 1
        self._update_sharing(task)

    def weighted_cost_s(self, task: int, share_s: float) -> float:
        """What this counts for it."""
        return share_s / self.effective_weight(task)

    def virtual_s(self, task: int) -> float:
        """What it had and is expected to have by what was granted; who had little saves up `CREDIT_S` at most."""
        had = self._virtual.get(task, 0.0) + self._expected.get(task, 0.0)
        return max(had, self._served_of_same_resource(task) - MAX_CREDIT_S)

    def effective_weight(self, task: int) -> float:
        """Its weight among all, as long as just the tasks that are active now share what their projects get."""
        part = self._effective_weights.get(task)
        if part is None:
            part = self._effective_weights[task] = self._compute_effective_weight(task)
        return part

    def _compute_effective_weight(self, task: int) -> float:
        weight = self._weights.get(task)
        if weight is None:
            return 1.0
        return weight.project_weight * weight.weight / max(self._sibling_weight.get(weight.project, 0.0), weight.weight)

    def _served_of_same_resource(self, task: int) -> float:
        """Of the resource that it had last; of one that had none yet, of that whose users had least."""
        resource = self._resource.get(task)
        return min(self._served.values(), default=0.0) if resource is None else self._served.get(resource, 0.0)

    def _update_sharing(self, task: int) -> None:
        shares = task in self._active and (task not in self._paused or bool(self._running.get(task)))
        if shares != (task in self._sharing):
            (self._sharing.add if shares else self._sharing.discard)(task)
            self._add_sibling_weight(task, +1 if shares else -1)

    def _add_sibling_weight(self, task: int, sign: int) -> None:
        self._effective_weights.clear()
        if (weight := self._weights.get(task)) is not None:
            self._sibling_weight[weight.project] = self._sibling_weight.get(weight.project, 0.0) + sign * weight.weight


class FairQueueCursor:
    """The actions of all tasks, one by one, the order changing as tasks are charged.

    Inside a task: `Walk`. Between tasks: who has had least, `strictness` times its virtual time plus the lead of its
    head unless that is overdue; so short actions go first, but no task gets ahead of another by more than the largest
    lead over `strictness`, in seconds of the whole cell. When they came does not count: a flood would be older than all
    that follow it.
    """

    def __init__(
        self,
        cursors: Mapping[int, QueueCursor],
        shares: FairShares,
        *,
        strictness: float,
        starving_before: float = float("-inf"),
    ) -> None:
        self._starving_before = starving_before
        self._strictness = strictness
        self._order: list[tuple[float, UUID, _TaskCursor]] = []
        for task, walk in cursors.items():
            if (head := walk.head) is not None:
                turn = _TaskCursor(
                    walk, debt_s=strictness * shares.virtual_s(task), weight=shares.effective_weight(task)
                )
                self._order.append((self._rank(turn), head.id, turn))
        heapify(self._order)
        self.head: QueuedAction | None = self._order[0][2].cursor.head if self._order else None
        """Whose turn it is; None at the end."""

    @property
    def bucket(self) -> ActionBucket:
        """Of the head."""
        return self._order[0][2].cursor.bucket

    def advance(self, share_s: float) -> None:
        """The head was granted something that takes so many seconds of the whole cell."""
        turn = self._order[0][2]
        turn.cursor.advance()
        turn.debt_s += self._strictness * (share_s / turn.weight)
        self._update_head(turn)

    def skip_bucket(self) -> None:
        """Nothing more of the head's bucket in this walk."""
        turn = self._order[0][2]
        turn.cursor.skip_bucket()
        self._update_head(turn)

    def _update_head(self, cursor: "_TaskCursor") -> None:
        """The first of the order has moved on."""
        order, head = self._order, cursor.cursor.head
        if head is None:
            heappop(order)
        else:
            heapreplace(order, (self._rank(cursor), head.id, cursor))
        self.head = order[0][2].cursor.head if order else None

    def _rank(self, cursor: "_TaskCursor") -> float:
        """Nothing leads that is overdue."""
        walk = cursor.cursor
        return cursor.debt_s + walk.size_penalty_s if walk.effective_arrival >= self._starving_before else cursor.debt_s


@dataclass(slots=True)
class _TaskCursor:
    """Of one task in a walk."""

    cursor: QueueCursor
    debt_s: float
    """What it had, in seconds of lead."""
    weight: float


class ShareAccounting:
    """In seconds of the whole cell. A new leader begins with everybody level."""

    def __init__(self) -> None:
        self.shares = FairShares()
        self.total: Resources = {}
        """Of all nodes together."""
        self._expected: dict[UUID, float] = {}

    def record_queued(self, task: int, demand: Resources) -> None:
        """One more action of it waits, for these amounts at least."""
        self.shares.add_action(task, own_resource(demand, self.total))

    def record_granted(self, action_id: UUID, task: int, share_s: float, resources: Resources) -> None:
        """What it is expected to have of these amounts, by `Curves.share_s`."""
        self._expected[action_id] = self.shares.charge_expected(task, share_s, own_resource(resources, self.total))

    def record_released(self, action_id: UUID, task: int, resources: Resources, *, allocated_s: float) -> None:
        """Nothing is paid for what an earlier leader granted."""
        expected = self._expected.pop(action_id, None)
        if expected is not None:
            self.shares.settle(task, expected, own_share(resources, self.total) * max(0.0, allocated_s))

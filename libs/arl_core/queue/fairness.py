"""Weighted fair shares of projects, and of the tasks inside each project.

Start-time fair queueing (Goyal, Vin, Cheng 1996) over dominant shares (Ghodsi et al., DRF, 2011). A grant costs its
task virtual time, and the task with the least virtual time goes first. Idle tasks save up no credit. The lag of a task
is measured against tasks that use the same resource, because a task alone on a resource takes nothing from others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from uuid import UUID

from arl_core.domain.model import ENVIRONMENT_RESOURCES, QueuedAction, Resources
from arl_core.queue.action_bucket import ActionBucket
from arl_core.queue.queue_index import QueueCursor

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
"""Cell-seconds at weight 1 that a task may lag behind others; any further lag is dropped."""


@dataclass(frozen=True, slots=True)
class QueueWeight:
    """The weight of a task inside its project, and of the project among all projects."""

    project: int
    weight: float = 1.0
    project_weight: float = 1.0


def total_resources(capacities: Iterable[Resources]) -> dict[str, int]:
    """Return the sum of the capacities."""
    total: dict[str, int] = {}
    for capacity in capacities:
        for resource, amount in capacity.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def dominant_share(resources: Resources, total: Resources) -> float:
    """Return the largest fraction of the total over all resources; 0..1."""
    most = 0.0
    for name, amount in resources.items():
        if amount and (whole := total.get(name)) and amount > most * whole:
            most = amount / whole
    return most


def own_share(resources: Resources, total: Resources) -> float:
    """Return the dominant share without memory and disk, which may belong to an environment."""
    most = 0.0
    for name, amount in resources.items():
        if amount and name not in ENVIRONMENT_RESOURCES and (whole := total.get(name)) and amount > most * whole:
            most = amount / whole
    return most


def own_resource(resources: Resources, total: Resources) -> str:
    """Return the resource that determines `own_share`; empty if there is none."""
    named = [name for name in resources if name not in ENVIRONMENT_RESOURCES and total.get(name)]
    return max(named, key=lambda name: resources[name] / total[name], default="")


class FairShares:
    """The use of each task in cell-seconds divided by its weight. Only differences are meaningful."""

    def __init__(self) -> None:
        self._virtual: dict[int, float] = {}
        self._expected: dict[int, float] = {}
        self._served: dict[str, float] = {}
        """Virtual time at the latest grant of each resource; the maximum over all tasks."""
        self._resource: dict[int, str] = {}
        """Resource of each task's latest grant."""
        self._active: dict[int, int] = {}
        self._running: dict[int, int] = {}
        self._paused: frozenset[int] = frozenset()
        self._sharing: set[int] = set()
        """Tasks that share the weight of their project: active ones, except paused ones with nothing running."""
        self._weights: Mapping[int, QueueWeight] = {}
        self._sibling_weight: dict[int, float] = {}
        self._effective_weights: dict[int, float] = {}
        """Cached weights; valid until a task starts, ends or changes its weight."""

    def set_weights(self, weights: Mapping[int, QueueWeight]) -> None:
        """Set the weights from now on; past charges stay. An unlisted task is a project of its own with weight 1."""
        if weights == self._weights:
            return
        self._weights = weights
        self._sibling_weight = {}
        self._effective_weights.clear()
        for task in self._sharing:
            self._add_sibling_weight(task, +1)

    def set_paused(self, tasks: frozenset[int]) -> None:
        """Set the paused tasks. Queued actions of a paused task take no share from others."""
        changed = tasks ^ self._paused
        self._paused = tasks
        for task in changed:
            self._update_sharing(task)

    def add_action(self, task: int, resource: str = "") -> None:
        """Register a queued or running action; an idle task starts level with the latest grant of the resource.

        Expected use of other tasks does not count here, because it may turn out to be small.
        """
        if task not in self._active:
            least = min((self._virtual[other] for other in self._active), default=0.0)
            if resource in self._served:
                self._resource[task] = resource
            self._virtual[task] = max(self._virtual.get(task, 0.0), self._served_of_same_resource(task), least)
        self._active[task] = self._active.get(task, 0) + 1
        self._update_sharing(task)

    def remove_action(self, task: int) -> None:
        """Unregister an action."""
        self._active[task] -= 1
        if not self._active[task]:
            del self._active[task]
            self._update_sharing(task)
            if not self._active:
                for each in (self._served, self._resource, self._virtual, self._expected, self._running):
                    each.clear()

    def charge_expected(self, task: int, share_s: float, resource: str = "") -> float:
        """Charge expected cell-seconds for a grant; return the cost to pass to `settle`."""
        cost = share_s / (self._effective_weights.get(task) or self.effective_weight(task))
        self._resource[task] = resource
        # The lag beyond the credit limit is dropped here; otherwise the task would go first until it had caught up.
        self._virtual[task] = self.virtual_s(task) - self._expected.get(task, 0.0)
        self._served[resource] = max(self._served.get(resource, 0.0), self._virtual.get(task, 0.0))
        self._expected[task] = self._expected.get(task, 0.0) + cost
        self._running[task] = self._running.get(task, 0) + 1
        self._update_sharing(task)
        return cost

    def settle(self, task: int, expected: float, share_s: float) -> None:
        """Replace an expected cost by the actual cell-seconds."""
        self._expected[task] -= expected
        self._virtual[task] = self._virtual.get(task, 0.0) + self.weighted_cost_s(task, share_s)
        self._running[task] -= 1
        self._update_sharing(task)

    def weighted_cost_s(self, task: int, share_s: float) -> float:
        """Return cell-seconds divided by the task's effective weight."""
        return share_s / self.effective_weight(task)

    def virtual_s(self, task: int) -> float:
        """Return past and expected use; a task can lag behind by at most `MAX_CREDIT_S`."""
        had = self._virtual.get(task, 0.0) + self._expected.get(task, 0.0)
        return max(had, self._served_of_same_resource(task) - MAX_CREDIT_S)

    def effective_weight(self, task: int) -> float:
        """Return the task's weight among all tasks, given the tasks that are active in its project now."""
        part = self._effective_weights.get(task)
        if part is None:
            part = self._effective_weights[task] = self._compute_effective_weight(task)
        return part

    def fraction(self, task: int) -> float:
        """Return the task's fair share of all resources if the active tasks want them; 0..1."""
        return self.effective_weight(task) / sum(map(self.effective_weight, self._sharing | {task}))

    def _compute_effective_weight(self, task: int) -> float:
        weight = self._weights.get(task)
        if weight is None:
            return 1.0
        return weight.project_weight * weight.weight / max(self._sibling_weight.get(weight.project, 0.0), weight.weight)

    def _served_of_same_resource(self, task: int) -> float:
        """Return the virtual time of the task's latest resource, or the least over all resources if it has none."""
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
    """A cursor over the actions of all tasks; the order changes as tasks are charged.

    Inside a task the order is that of `QueueCursor`. Between tasks it is `strictness` times the virtual time plus the
    size penalty of the head, unless the head is overdue. Short actions go first, but no task gets ahead of another by
    more than the largest penalty divided by `strictness`, in cell-seconds. Arrival time does not count between tasks:
    otherwise a burst would go before all later arrivals.
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
        """Next action; None at the end."""

    @property
    def bucket(self) -> ActionBucket:
        """Return the bucket of the head."""
        return self._order[0][2].cursor.bucket

    def advance(self, share_s: float) -> None:
        """Advance past the head, and charge its task this many cell-seconds."""
        turn = self._order[0][2]
        turn.cursor.advance()
        turn.debt_s += self._strictness * (share_s / turn.weight)
        self._update_head(turn)

    def skip_bucket(self) -> None:
        """Skip the rest of the head's bucket."""
        turn = self._order[0][2]
        turn.cursor.skip_bucket()
        self._update_head(turn)

    def _update_head(self, cursor: "_TaskCursor") -> None:
        """Update the order after its first cursor advanced."""
        order, head = self._order, cursor.cursor.head
        if head is None:
            heappop(order)
        else:
            heapreplace(order, (self._rank(cursor), head.id, cursor))
        self.head = order[0][2].cursor.head if order else None

    def _rank(self, cursor: "_TaskCursor") -> float:
        """Return the sort key of a task; overdue heads have no size penalty."""
        walk = cursor.cursor
        return cursor.debt_s + walk.size_penalty_s if walk.effective_arrival >= self._starving_before else cursor.debt_s


@dataclass(slots=True)
class _TaskCursor:
    """The cursor of one task."""

    cursor: QueueCursor
    debt_s: float
    """Past use of the task, in seconds of penalty."""
    weight: float


class ShareAccounting:
    """The fair-share accounts of a leader, in cell-seconds. All tasks start level under a new leader."""

    def __init__(self) -> None:
        self.shares = FairShares()
        self.total: Resources = {}
        """Capacity of all nodes."""
        self._expected: dict[UUID, float] = {}

    def record_queued(self, task: int, demand: Resources) -> None:
        """Register a queued action with its minimum demand."""
        self.shares.add_action(task, own_resource(demand, self.total))

    def record_granted(self, action_id: UUID, task: int, share_s: float, resources: Resources) -> None:
        """Charge the expected cost of a grant, as computed by `CurveCache.share_s`."""
        self._expected[action_id] = self.shares.charge_expected(task, share_s, own_resource(resources, self.total))

    def record_released(self, action_id: UUID, task: int, resources: Resources, *, allocated_s: float) -> None:
        """Settle a grant by its actual duration; grants of an earlier leader cost nothing."""
        expected = self._expected.pop(action_id, None)
        if expected is not None:
            self.shares.settle(task, expected, own_share(resources, self.total) * max(0.0, allocated_s))

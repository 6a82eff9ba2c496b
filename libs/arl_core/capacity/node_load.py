"""Load of a node in units of one resource; core prices and queueing delays are computed from it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from arl_core.capacity.feasibility import FeasibilityCheck
from arl_core.capacity.running_index import released_amount
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import ActionClass, NodeResources, Resources
from arl_core.durations.curves import to_units
from arl_core.durations.estimates import IGNORED_OVERRUN
from arl_core.queue.action_bucket import ActionBucket
from arl_core.queue.fairness import total_resources
from arl_core.queue.quotas import QuotaRoom

__all__ = ["LoadCalculator", "NodeLoad"]


@dataclass(slots=True)
class NodeLoad:
    """The load of a node: actions pinned to it, plus its share of the actions that can start on any node.

    Actions that fit on no schedulable node are not counted.
    """

    capacity: float
    """Capacity in units."""
    queued: float
    """Number of actions that have not started."""
    queued_s: float
    """Seconds to finish all queued work if it were spread evenly."""
    running_s: float | None = None
    """Seconds to finish all running work if it were spread evenly; None until it is needed."""


class LoadCalculator:
    """The loads of the nodes, computed on demand once per round."""

    def __init__(self, snapshot: CellSnapshot) -> None:
        self._snapshot = snapshot
        self.total = snapshot.total or total_resources(pool.capacity for pool in snapshot.nodes.values())
        """Capacity of all nodes."""
        self._schedulable_capacity: Resources | None = None
        """Capacity of the schedulable nodes; None until it is needed."""
        self._feasibility: FeasibilityCheck | None = None
        """Feasibility check on the schedulable nodes; None until it is needed."""
        self.started: list[tuple[int, str | None]] = []
        """Node and main resource of each queued action that this round starts."""
        self._applied_starts = 0
        """Number of entries of `started` that are already counted."""
        self._pending_starts: Counter[tuple[int, str | None]] = Counter()
        """Started actions of nodes without a computed load."""
        self._loads: dict[tuple[int, str | None], NodeLoad] = {}
        self._running: dict[tuple[int, str | None], list[tuple[float, float]]] = {}
        self._queued: dict[int | None, dict[str | None, tuple[int, float]]] = {}

    def load_of(self, node: int, resource: str | None) -> NodeLoad:
        """Return the load of a node on a resource, without the queued actions that this round has started."""
        if self._applied_starts < len(self.started):
            self._apply_starts()
        key = (node, resource)
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = self._load(node, resource)
            load.queued -= self._pending_starts.pop(key, 0)
        return load

    def _apply_starts(self) -> None:
        for key in self.started[self._applied_starts :]:
            if key in self._loads:
                self._loads[key].queued -= 1
            else:
                self._pending_starts[key] += 1
        self._applied_starts = len(self.started)

    def backlog_s(self, node: int, resource: str | None, *, stop_above_s: float) -> float:
        """Return the seconds until all known work is done, or any value of at least `stop_above_s`."""
        load = self.load_of(node, resource)
        if load.queued_s >= stop_above_s:
            return load.queued_s
        if load.running_s is None:
            load.running_s = sum(rest * held for rest, held in self._remaining_times(node, resource)) / load.capacity
        return load.queued_s + load.running_s

    def wait_until_available_s(self, node: int, resource: str | None, units: float) -> float:
        """Return the expected seconds until running actions have released this many units."""
        back = 0.0
        for rest, held in self._remaining_times(node, resource):
            back += held
            if back >= units:
                return rest
        return float("inf")

    def _load(self, node: int, resource: str | None) -> NodeLoad:
        capacity = to_units(resource, self._snapshot.nodes[node].capacity.get(resource or "", 0))
        pool = self._snapshot.nodes[node]
        total = to_units(resource, self._total_schedulable().get(resource or "", 0))
        part = capacity / total if total and pool.is_schedulable and pool.is_serving else 0.0
        anywhere, anywhere_area = self._queued_work(None).get(resource, (0, 0.0))
        here, area = self._queued_work(node).get(resource, (0, 0.0))
        capacity = capacity or 1.0
        return NodeLoad(
            capacity=capacity,
            queued=here + part * anywhere,
            queued_s=(area + part * anywhere_area) / capacity,
        )

    def _total_schedulable(self) -> Resources:
        """Return the total capacity of the schedulable nodes."""
        if self._schedulable_capacity is None:
            taking = self._schedulable_nodes()
            all_taking = len(taking) == len(self._snapshot.nodes)
            self._schedulable_capacity = self.total if all_taking else total_resources(pool.capacity for pool in taking)
        return self._schedulable_capacity

    def _schedulable_nodes(self) -> list[NodeResources]:
        return [pool for pool in self._snapshot.nodes.values() if pool.is_schedulable and pool.is_serving]

    def _queued_work(self, node: int | None) -> dict[str | None, tuple[int, float]]:
        """Return the count and area of queued work by main resource."""
        known = self._queued.get(node)
        if known is None:
            known = self._queued[node] = self._count_queued(node)
        return known

    def _count_queued(self, node: int | None) -> dict[str | None, tuple[int, float]]:
        found: dict[str | None, tuple[int, float]] = {}
        room = self._snapshot.quotas.room()
        if self._feasibility is None:
            self._feasibility = FeasibilityCheck(self._schedulable_nodes())
        for bucket in self._snapshot.queue.buckets_on(node):
            for cls, waiting in _bucket_classes(bucket, room):
                if node is None and not self._feasibility.is_feasible(cls):
                    continue
                curve = self._snapshot.curves.curve_for(cls)
                count, area = found.get(curve.resource, (0, 0.0))
                found[curve.resource] = (count + waiting, area + waiting * curve.area_s)
        return found

    def _remaining_times(self, node: int, resource: str | None) -> list[tuple[float, float]]:
        """Return the expected remaining seconds and the units of each running action, shortest first.

        Stragglers above `IGNORED_OVERRUN` are left out.
        """
        known = self._running.get((node, resource))
        if known is None:
            remaining_s, name = self._snapshot.curves.remaining_s, resource or ""
            running = self._snapshot.running.on_node(node).values()
            found = [
                (remaining_s(each), to_units(resource, each.resources[name]))
                for each in running
                if released_amount(each, name) and each.overrun < IGNORED_OVERRUN
            ]
            known = self._running[node, resource] = sorted(found)
        return known


def _bucket_classes(bucket: ActionBucket, room: QuotaRoom | None) -> Iterable[tuple[ActionClass, int]]:
    """Return the classes of the queued actions that may start, with counts; a gang may have several classes."""
    if bucket.key.gang is None:
        count = len(bucket)
        return [(bucket.cls, count if room is None else room.consume_up_to(bucket.first, count))]
    head = bucket.first
    return [(member.cls, 1) for member in (head, *head.gang_members)]

"""How busy a node is, in units of one resource: what prices and waiting times follow from."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from arl_core.curves import units_of
from arl_core.fairness import total_amounts
from arl_core.model import ActionClass, Amounts, Pool
from arl_core.possible import Possible
from arl_core.quotas import Room
from arl_core.running import given_back
from arl_core.snapshot import Snapshot
from arl_core.stragglers import UNCOUNTED
from arl_core.waiting import Bucket

__all__ = ["Loads", "NodeLoad"]


@dataclass(slots=True)
class NodeLoad:
    """Of what can only start here all, of what may start anywhere this node's part.

    What no node that takes something new could ever run waits for none of them, and counts nowhere.
    """

    capacity: float
    """Units."""
    waiting: float
    """Actions that have not started."""
    queued_s: float
    """Until all that waits were done, were it spread evenly."""
    running_s: float | None = None
    """As much of all that runs; None until somebody needs it."""


class Loads:
    """Computed where it is asked for, once a round."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.total = snapshot.total or total_amounts(pool.capacity for pool in snapshot.pools.values())
        """Capacity of all nodes together."""
        self._open: Amounts | None = None
        """Of those that take something new; None until somebody needs it."""
        self._possible: Possible | None = None
        """On those; None until somebody needs it."""
        self.started: list[tuple[int, str | None]] = []
        """For each that was waiting and starts: the node, and what it is wide in."""
        self._counted_off = 0
        """Of these."""
        self._unasked: Counter[tuple[int, str | None]] = Counter()
        """Those counted off where nobody has asked for the load yet."""
        self._loads: dict[tuple[int, str | None], NodeLoad] = {}
        self._running: dict[tuple[int, str | None], list[tuple[float, float]]] = {}
        self._queued: dict[int | None, dict[str | None, tuple[int, float]]] = {}

    def of(self, node: int, resource: str | None) -> NodeLoad:
        if self._counted_off < len(self.started):
            self._count_off()
        key = (node, resource)
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = self._load(node, resource)
            load.waiting -= self._unasked.pop(key, 0)
        return load

    def _count_off(self) -> None:
        for key in self.started[self._counted_off :]:
            if key in self._loads:
                self._loads[key].waiting -= 1
            else:
                self._unasked[key] += 1
        self._counted_off = len(self.started)

    def backlog_s(self, node: int, resource: str | None, *, enough_s: float) -> float:
        """Until all known work is done, or anything that is no less than `enough_s`."""
        load = self.of(node, resource)
        if load.queued_s >= enough_s:
            return load.queued_s
        if load.running_s is None:
            load.running_s = sum(rest * held for rest, held in self._rests(node, resource)) / load.capacity
        return load.queued_s + load.running_s

    def until_free(self, node: int, resource: str | None, units: float) -> float:
        """Seconds until running actions are expected to have given back so much more."""
        back = 0.0
        for rest, held in self._rests(node, resource):
            back += held
            if back >= units:
                return rest
        return float("inf")

    def _load(self, node: int, resource: str | None) -> NodeLoad:
        capacity = units_of(resource, self._snapshot.pools[node].capacity.get(resource or "", 0))
        pool = self._snapshot.pools[node]
        total = units_of(resource, self._taking().get(resource or "", 0))
        part = capacity / total if total and pool.accepting and pool.serving else 0.0
        anywhere, anywhere_area = self._waiting(None).get(resource, (0, 0.0))
        here, area = self._waiting(node).get(resource, (0, 0.0))
        capacity = capacity or 1.0
        return NodeLoad(
            capacity=capacity,
            waiting=here + part * anywhere,
            queued_s=(area + part * anywhere_area) / capacity,
        )

    def _taking(self) -> Amounts:
        """Capacity of all nodes together that take something new."""
        if self._open is None:
            taking = self._taking_pools()
            all_taking = len(taking) == len(self._snapshot.pools)
            self._open = self.total if all_taking else total_amounts(pool.capacity for pool in taking)
        return self._open

    def _taking_pools(self) -> list[Pool]:
        return [pool for pool in self._snapshot.pools.values() if pool.accepting and pool.serving]

    def _waiting(self, node: int | None) -> dict[str | None, tuple[int, float]]:
        """How many and how much area, by what they are wide in."""
        known = self._queued.get(node)
        if known is None:
            known = self._queued[node] = self._counted(node)
        return known

    def _counted(self, node: int | None) -> dict[str | None, tuple[int, float]]:
        found: dict[str | None, tuple[int, float]] = {}
        room = self._snapshot.quotas.room()
        if self._possible is None:
            self._possible = Possible(self._taking_pools())
        for bucket in self._snapshot.waiting.on(node):
            for cls, waiting in _classes(bucket, room):
                if node is None and not self._possible.has(cls):
                    continue
                curve = self._snapshot.curves.of(cls)
                count, area = found.get(curve.resource, (0, 0.0))
                found[curve.resource] = (count + waiting, area + waiting * curve.area_s)
        return found

    def _rests(self, node: int, resource: str | None) -> list[tuple[float, float]]:
        """What each running action is expected to need still, and its units; the least first.

        Of a straggler that nobody counts on any more nothing is expected.
        """
        known = self._running.get((node, resource))
        if known is None:
            remaining_s, name = self._snapshot.curves.remaining_s, resource or ""
            running = self._snapshot.running.on(node).values()
            found = [
                (remaining_s(each), units_of(resource, each.amounts[name]))
                for each in running
                if given_back(each, name) and each.overrun < UNCOUNTED
            ]
            known = self._running[node, resource] = sorted(found)
        return known


def _classes(bucket: Bucket, room: Room | None) -> Iterable[tuple[ActionClass, int]]:
    """Of what waits in it and may start, how many of each; a gang's members are of several."""
    if bucket.key.gang is None:
        count = len(bucket)
        return [(bucket.cls, count if room is None else room.take_some(bucket.first, count))]
    head = bucket.first
    return [(member.cls, 1) for member in (head, *head.together)]

"""How busy a node is, in units of one resource: what prices and waiting times follow from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from arl_core.fairness import total_amounts
from arl_core.model import ActionClass, Running
from arl_core.snapshot import Snapshot
from arl_core.waiting import Bucket
from arl_core.widths import Width, area_s, main_resource, remaining_s, units_of, widths_of

__all__ = ["Loads", "NodeLoad"]


@dataclass(slots=True)
class NodeLoad:
    """Of what can only start here all, of what may start anywhere this node's part."""

    capacity: float
    """Units."""
    waiting: float
    """Actions; whoever starts one here counts it off."""
    backlog_s: float
    """Until all known work is done, were it spread evenly."""


class Loads:
    """Computed where it is asked for, once a round."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._total = total_amounts(pool.capacity for pool in snapshot.pools.values())
        self._widths: dict[int, tuple[Width, ...]] = {}
        self._loads: dict[tuple[int | None, str | None], NodeLoad] = {}
        self._queued: dict[int | None, dict[str | None, tuple[int, float]]] = {}

    @property
    def total(self) -> Mapping[str, int]:
        """Capacity of all nodes together."""
        return self._total

    def widths(self, cls: ActionClass) -> tuple[Width, ...]:
        known = self._widths.get(cls.key)
        if known is None:
            known = self._widths[cls.key] = widths_of(cls, self._snapshot.estimates)
        return known

    def of(self, node: int | None, resource: str | None) -> NodeLoad:
        """Of no node: of an average one, for what may start anywhere."""
        key = (node, resource)
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = self._load(node, resource)
        return load

    def until_free(self, node: int, resource: str | None, units: float) -> float:
        """Seconds until running actions are expected to have given back so much more."""
        back = 0.0
        for rest, held in sorted(self._rests(node, resource)):
            back += held
            if back >= units:
                return rest
        return float("inf")

    def _load(self, node: int | None, resource: str | None) -> NodeLoad:
        pools = self._snapshot.pools
        total = units_of(resource, self._total.get(resource or "", 0))
        if node is None:
            having = sum(1 for pool in pools.values() if pool.capacity.get(resource or ""))
            capacity = total / having if having else 0.0
            work = sum(rest * held for each in pools for rest, held in self._rests(each, resource)) / max(having, 1)
        else:
            capacity = units_of(resource, pools[node].capacity.get(resource or "", 0))
            work = sum(rest * held for rest, held in self._rests(node, resource))
        part = capacity / total if total else 0.0
        anywhere, anywhere_area = self._waiting(None).get(resource, (0, 0.0))
        here, area = self._waiting(node).get(resource, (0, 0.0)) if node is not None else (0, 0.0)
        capacity = capacity or 1.0
        return NodeLoad(
            capacity=capacity,
            waiting=here + part * anywhere,
            backlog_s=(work + area + part * anywhere_area) / capacity,
        )

    def _waiting(self, node: int | None) -> Mapping[str | None, tuple[int, float]]:
        """How many and how much area, by what they are wide in."""
        known = self._queued.get(node)
        if known is None:
            known = self._queued[node] = self._counted(self._snapshot.waiting.on(node))
        return known

    def _counted(self, buckets: Iterable[Bucket]) -> dict[str | None, tuple[int, float]]:
        found: dict[str | None, tuple[int, float]] = {}
        for bucket in buckets:
            resource = main_resource(bucket.cls)
            count, area = found.get(resource, (0, 0.0))
            found[resource] = (count + len(bucket), area + len(bucket) * area_s(self.widths(bucket.cls)))
        return found

    def _rests(self, node: int, resource: str | None) -> Iterable[tuple[float, float]]:
        """What each running action is expected to need still, and its units."""
        running: Mapping[UUID, Running] = self._snapshot.running.get(node, {})
        for each in running.values():
            if held := each.amounts.get(resource or "", 0):
                rest = remaining_s(each, self._snapshot.estimates, now=self._snapshot.now)
                yield rest, units_of(resource, held)

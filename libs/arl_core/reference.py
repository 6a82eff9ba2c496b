"""The reference policy: first come, first served, with dynamic programming over widths, and eviction.

Our reconstruction, from a second-hand description, of what ARL-Tangram (arXiv 2603.13019) does; not that system. On
each node those who came first are candidates, as many as fit at their minimum. Their widths minimise the sum of their
durations. Then the last candidate is left out for as long as that lowers the sum over all of them, those left out
counting as started when the first of the others ends.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from arl_core.allocation import PrefixAllocation
from arl_core.curves import Width
from arl_core.free import FreeAmounts
from arl_core.gangs import take_together
from arl_core.groups import DEVICES, degrees_of
from arl_core.model import Amounts, Grant, Plan, Shape, Waiting, action_part, environment_part
from arl_core.places import Looks
from arl_core.snapshot import Snapshot
from arl_core.waiting import Bucket, Walk

__all__ = ["Reference"]

_CORES = "cpu_milli"
FINEST = 1024
"""Parts of a node's free cores that the dynamic programme tells apart, at most."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Elastic actions get what the dynamic programme says, all others their minimum."""

    @property
    def has_pods(self) -> bool:
        return False

    def plan(self, snapshot: Snapshot) -> Plan:
        return _Round(snapshot).plan()

    def environment_holds(self, amounts: Amounts) -> dict[str, int]:
        return environment_part(amounts)

    def action_holds(self, amounts: Amounts, *, at_home: bool, in_pod: bool) -> dict[str, int]:
        return action_part(amounts) if at_home else dict(amounts)


class _Round:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._curves = snapshot, snapshot.curves
        self._free = FreeAmounts.of(snapshot.pools)
        self._gangs: list[Grant] = []
        self._looks = Looks()
        """For places of gangs."""
        self._room = snapshot.quotas.room()

    def plan(self) -> Plan:
        buckets = list(self._snapshot.waiting.buckets())
        grants = self._on_devices([bucket for bucket in buckets if bucket.cls.shape is Shape.GROUP])
        candidates = self._candidates([bucket for bucket in buckets if bucket.cls.shape is not Shape.GROUP])
        for node, at_minimum in candidates.items():
            grants += self._widened(node, at_minimum)
        return Plan(grants=(*grants, *self._gangs))

    def _candidates(self, buckets: Iterable[Bucket]) -> dict[int, list[tuple[Waiting, Grant]]]:
        """Each node's longest prefix, in order of arrival, that fits at its minimum."""
        found: dict[int, list[tuple[Waiting, Grant]]] = {}
        full: set[int] = set()
        walk = Walk(buckets, room=self._room)
        while (action := walk.head) is not None:
            if action.together:
                self._start_gang(action, walk)
                continue
            node = self._free.node_of(action)
            grant = None if node in full else self._free.take(action, action.cls.demand.minimum)
            if grant is not None:
                found.setdefault(grant.node, []).append((action, grant))
                walk.advance()
                continue
            if node is not None:
                full.add(node)
            walk.leave_bucket()
        return found

    def _start_gang(self, action: Waiting, walk: Walk) -> None:
        """Its members get their minimum; nothing is left out of a gang for being better off later."""
        started = take_together(self._free, action, looks=self._looks)
        if started is None:
            walk.leave_bucket()
        else:
            self._gangs += started
            walk.advance()

    def _widened(self, node: int, candidates: Sequence[tuple[Waiting, Grant]]) -> list[Grant]:
        """Of the first candidates, those that are better not left out; wider where that is worth it."""
        curves = [self._curves.of(action.cls) for action, _ in candidates]
        wide = [each for each, curve in zip(candidates, curves, strict=True) if curve.resource == _CORES]
        if all(len(curve.widths) == 1 for curve in curves):
            return [grant for _, grant in candidates]
        free = self._free.free[node].get(_CORES, 0) + sum(grant.amounts[_CORES] for _, grant in wide)
        choices = [self._curves.of(action.cls).widths for action, _ in wide]
        part = _part([width.amount for widths in choices for width in widths], free)
        on_grid = [[replace(width, units=math.ceil(width.amount / part)) for width in widths] for widths in choices]
        chosen = _kept(PrefixAllocation(on_grid, free // part), on_grid, self._first_end_s([node]))
        amounts = {grant.fence: width.amount for (_, grant), width in zip(wide, chosen, strict=False)}
        left_out = {grant.fence for _, grant in wide[len(chosen) :]}
        return [
            grant._replace(amounts={**grant.amounts, _CORES: amounts[grant.fence]}) if grant.fence in amounts else grant
            for _, grant in candidates
            if grant.fence not in left_out
        ]

    def _on_devices(self, buckets: Iterable[Bucket]) -> list[Grant]:
        """The same over all devices at once, a restore counting where no free group has the service."""
        candidates, devices = self._device_candidates(buckets)
        if not candidates:
            return []
        choices = [self._with_restores(action) for action in candidates]
        nodes = [node for node, pool in self._snapshot.pools.items() if pool.shape is Shape.GROUP]
        chosen = _kept(PrefixAllocation(choices, devices), choices, self._first_end_s(nodes))
        granted = zip(candidates, chosen, strict=False)
        widest_first = sorted(granted, key=lambda each: -each[1].amount)
        return [grant for action, width in widest_first if (grant := self._place(action, width.amount)) is not None]

    def _device_candidates(self, buckets: Iterable[Bucket]) -> tuple[list[Waiting], int]:
        devices = self._free.groups.count
        found: list[Waiting] = []
        needed = 0
        walk = Walk(buckets, room=self._room)
        while (action := walk.head) is not None:
            needed += degrees_of(action.cls)[0]
            if needed > devices:
                break
            found.append(action)
            walk.advance()
        return found, devices

    def _with_restores(self, action: Waiting) -> list[Width]:
        """Its widths on devices; some would be no faster than smaller ones that need no restore."""
        return [
            Width(count, count, self._seconds_on(action, count) + self._restore_s(action, count))
            for count in degrees_of(action.cls)
        ]

    def _seconds_on(self, action: Waiting, count: int) -> float:
        return self._curves.expected_s(action.cls, {**action.cls.demand.minimum, DEVICES: count})

    def _restore_s(self, action: Waiting, count: int) -> float:
        group = self._free.groups.cheapest(action.cls, count)
        if group is None:
            return action.cls.service.restore_s(count) if action.cls.service is not None else 0.0
        return group.restore_s

    def _place(self, action: Waiting, count: int) -> Grant | None:
        """On the cheapest group of that size, or else of the next smaller one."""
        for smaller in reversed([degree for degree in degrees_of(action.cls) if degree <= count]):
            group = self._free.groups.cheapest(action.cls, smaller)
            if group is not None:
                return self._free.groups.take(action, group)
        return None

    def _first_end_s(self, nodes: Iterable[int]) -> float:
        running = (each for node in nodes for each in self._snapshot.running.on(node).values())
        return min(map(self._curves.remaining_s, running), default=math.inf)


def _kept(allocation: PrefixAllocation, choices: Sequence[Sequence[Width]], first_end_s: float) -> list[Width]:
    """The widths of those candidates that are not left out."""

    def total_s(first: int) -> float:
        started = min([width.seconds for width in allocation.widths(first)] + [first_end_s])
        return allocation.total_s(first) + sum(started + widths[-1].seconds for widths in choices[first:])

    kept, least = len(choices), total_s(len(choices))
    while kept > 1 and (fewer := total_s(kept - 1)) < least - _TIE_S:
        kept, least = kept - 1, fewer
    return allocation.widths(kept)


def _part(amounts: Iterable[int], free: int) -> int:
    """The amount that all are multiples of, or a coarser one that divides what is free in so many parts."""
    return max(math.gcd(*amounts), math.ceil(free / FINEST))


_TIE_S = 1e-9

"""Reference policy: first come, first served, with dynamic programming over parallelism, and eviction.

This is our reconstruction of ARL-Tangram (arXiv 2603.13019) from a second-hand description, not that system. On each
node the candidates are the earliest arrivals that fit at their minimum. Their degrees of parallelism minimise the sum
of their durations. The last candidate is then dropped as long as that lowers the sum over all candidates. A dropped
candidate counts as started when the first of the others ends.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from arl_core.capacity.device_groups import DEVICE_RESOURCE, parallelism_degrees
from arl_core.capacity.gang_packing import SearchBudget
from arl_core.capacity.gangs import allocate_gang
from arl_core.capacity.node_fitting import NodeFitter
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import (
    Grant,
    QueuedAction,
    Resources,
    ResourceShape,
    SchedulingPlan,
    action_resources,
    environment_resources,
)
from arl_core.durations.curves import ParallelismOption
from arl_core.policies.prefix_allocation import PrefixAllocation
from arl_core.queue.action_bucket import ActionBucket
from arl_core.queue.queue_index import QueueCursor

__all__ = ["ReferencePolicy"]

_CORES = "cpu_milli"
MAX_GRID_CELLS = 1024
"""Maximum number of parts into which the dynamic programme divides a node's free cores."""


@dataclass(frozen=True, slots=True)
class ReferencePolicy:
    """A policy that sizes elastic actions by dynamic programming; all others get their minimum."""

    @property
    def has_pods(self) -> bool:
        """Return False: actions are granted one by one."""
        return False

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        """Plan one round by dynamic programming over the earliest arrivals that fit."""
        return _ReferenceRound(snapshot).plan()

    def environment_allocation(self, resources: Resources) -> dict[str, int]:
        """Return the memory and disk of the first action; they stay allocated until the environment ends."""
        return environment_resources(resources)

    def action_allocation(self, resources: Resources, *, in_environment: bool, in_pod: bool) -> dict[str, int]:
        """Return all amounts, without memory and disk if an environment already occupies them."""
        return action_resources(resources) if in_environment else dict(resources)


class _ReferenceRound:
    def __init__(self, snapshot: CellSnapshot) -> None:
        self._snapshot, self._curves = snapshot, snapshot.curves
        self._fitter = NodeFitter.from_nodes(snapshot.nodes)
        self._gangs: list[Grant] = []
        self._search_budget = SearchBudget()
        """Search budget for gang placement."""
        self._room = snapshot.quotas.room()

    def plan(self) -> SchedulingPlan:
        """Plan device groups first, then the longest fitting prefix of each node."""
        buckets = list(self._snapshot.queue.buckets())
        grants = self._plan_devices([bucket for bucket in buckets if bucket.cls.shape is ResourceShape.GROUP])
        candidates = self._prefix_candidates(
            [bucket for bucket in buckets if bucket.cls.shape is not ResourceShape.GROUP]
        )
        for node, at_minimum in candidates.items():
            grants += self._choose_parallelism(node, at_minimum)
        return SchedulingPlan(grants=(*grants, *self._gangs))

    def _prefix_candidates(self, buckets: Iterable[ActionBucket]) -> dict[int, list[tuple[QueuedAction, Grant]]]:
        """Return, for each node, the longest prefix in arrival order that fits at its minimum."""
        found: dict[int, list[tuple[QueuedAction, Grant]]] = {}
        full: set[int] = set()
        walk = QueueCursor(buckets, room=self._room)
        while (action := walk.head) is not None:
            if action.gang_members:
                self._start_gang(action, walk)
                continue
            node = self._fitter.pinned_node(action)
            grant = None if node in full else self._fitter.allocate(action, action.cls.demand.minimum)
            if grant is not None:
                found.setdefault(grant.node, []).append((action, grant))
                walk.advance()
                continue
            if node is not None:
                full.add(node)
            walk.skip_bucket()
        return found

    def _start_gang(self, action: QueuedAction, walk: QueueCursor) -> None:
        """Start all members of a gang at their minimum; gang members are never evicted."""
        started = allocate_gang(self._fitter, action, budget=self._search_budget)
        if started is None:
            walk.skip_bucket()
        else:
            self._gangs += started
            walk.advance()

    def _choose_parallelism(self, node: int, candidates: Sequence[tuple[QueuedAction, Grant]]) -> list[Grant]:
        """Return grants for the first candidates that are better not evicted, with more cores if that pays off."""
        curves = [self._curves.curve_for(action.cls) for action, _ in candidates]
        wide = [each for each, curve in zip(candidates, curves, strict=True) if curve.resource == _CORES]
        if all(len(curve.options) == 1 for curve in curves):
            return [grant for _, grant in candidates]
        free = self._fitter.available[node].get(_CORES, 0) + sum(grant.resources[_CORES] for _, grant in wide)
        choices = [self._curves.curve_for(action.cls).options for action, _ in wide]
        part = _grid_unit([width.amount for widths in choices for width in widths], free)
        on_grid = [[replace(width, units=math.ceil(width.amount / part)) for width in widths] for widths in choices]
        chosen = _evict_candidates(PrefixAllocation(on_grid, free // part), on_grid, self._first_end_s([node]))
        amounts = {grant.fence: width.amount for (_, grant), width in zip(wide, chosen, strict=False)}
        left_out = {grant.fence for _, grant in wide[len(chosen) :]}
        return [
            grant._replace(resources={**grant.resources, _CORES: amounts[grant.fence]})
            if grant.fence in amounts
            else grant
            for _, grant in candidates
            if grant.fence not in left_out
        ]

    def _plan_devices(self, buckets: Iterable[ActionBucket]) -> list[Grant]:
        """Plan all device groups as one pool; a restore counts if no free group has the service."""
        candidates, devices = self._device_candidates(buckets)
        if not candidates:
            return []
        choices = [self._device_options(action) for action in candidates]
        nodes = [node for node, pool in self._snapshot.nodes.items() if pool.shape is ResourceShape.GROUP]
        chosen = _evict_candidates(PrefixAllocation(choices, devices), choices, self._first_end_s(nodes))
        granted = zip(candidates, chosen, strict=False)
        widest_first = sorted(granted, key=lambda each: -each[1].amount)
        return [
            grant for action, width in widest_first if (grant := self._place_on_group(action, width.amount)) is not None
        ]

    def _device_candidates(self, buckets: Iterable[ActionBucket]) -> tuple[list[QueuedAction], int]:
        devices = self._fitter.device_groups.available_count
        found: list[QueuedAction] = []
        needed = 0
        walk = QueueCursor(buckets, room=self._room)
        while (action := walk.head) is not None:
            needed += parallelism_degrees(action.cls)[0]
            if needed > devices:
                break
            found.append(action)
            walk.advance()
        return found, devices

    def _device_options(self, action: QueuedAction) -> list[ParallelismOption]:
        """Return the options on devices; one that needs a restore may be slower than a smaller one."""
        return [
            ParallelismOption(count, count, self._seconds_on(action, count) + self._restore_s(action, count))
            for count in parallelism_degrees(action.cls)
        ]

    def _seconds_on(self, action: QueuedAction, count: int) -> float:
        return self._curves.expected_s(action.cls, {**action.cls.demand.minimum, DEVICE_RESOURCE: count})

    def _restore_s(self, action: QueuedAction, count: int) -> float:
        group = self._fitter.device_groups.cheapest(action.cls, count)
        if group is None:
            return action.cls.service.restore_s(count) if action.cls.service is not None else 0.0
        return group.restore_s

    def _place_on_group(self, action: QueuedAction, count: int) -> Grant | None:
        """Grant the cheapest group of that size, or else of the next smaller one."""
        for smaller in reversed([degree for degree in parallelism_degrees(action.cls) if degree <= count]):
            group = self._fitter.device_groups.cheapest(action.cls, smaller)
            if group is not None:
                return self._fitter.device_groups.grant_group(action, group)
        return None

    def _first_end_s(self, nodes: Iterable[int]) -> float:
        running = (each for node in nodes for each in self._snapshot.running.on_node(node).values())
        return min(map(self._curves.remaining_s, running), default=math.inf)


def _evict_candidates(
    allocation: PrefixAllocation, choices: Sequence[Sequence[ParallelismOption]], first_end_s: float
) -> list[ParallelismOption]:
    """Return the options of the candidates that are not evicted."""

    def total_s(first: int) -> float:
        """Return the sum over all candidates if only the `first` ones start now."""
        started = min([width.seconds for width in allocation.chosen_options(first)] + [first_end_s])
        return allocation.total_s(first) + sum(started + widths[-1].seconds for widths in choices[first:])

    kept, least = len(choices), total_s(len(choices))
    while kept > 1 and (fewer := total_s(kept - 1)) < least - _TIE_S:
        kept, least = kept - 1, fewer
    return allocation.chosen_options(kept)


def _grid_unit(amounts: Iterable[int], free: int) -> int:
    """Return the common divisor of the amounts, or a coarser unit that gives at most `MAX_GRID_CELLS` parts."""
    return max(math.gcd(*amounts), math.ceil(free / MAX_GRID_CELLS))


_TIE_S = 1e-9

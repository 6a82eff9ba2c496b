"""SPAR-M: actions start at their smallest degree of parallelism and are resized while they run; none is killed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from uuid import UUID

from arl_core.capacity.ledger import fits
from arl_core.capacity.node_fitting import NodeFitter
from arl_core.capacity.node_load import LoadCalculator
from arl_core.capacity.running_index import is_resizable
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import (
    Grant,
    QueuedAction,
    ResizeDecision,
    ResizeSupport,
    Resources,
    RunningAction,
    SchedulingPlan,
)
from arl_core.durations.curves import DurationCurve, ParallelismOption, to_units
from arl_core.policies.reallocation import ResizeCandidate, reallocate

__all__ = ["MIN_RESIZE_INTERVAL_S", "NEARLY_DONE_S", "ElasticResizer"]

MIN_RESIZE_INTERVAL_S = 0.5
"""Seconds after a resize during which an action is not shrunk."""
NEARLY_DONE_S = 0.3
"""Expected remaining seconds below which an action is no longer shrunk."""

_CORES = "cpu_milli"
_NOTHING: Resources = {}


class ElasticResizer:
    """The resize decisions of one round.

    The round first decides which actions start. It then sets the degree of parallelism of starting and resizable
    running actions.
    """

    def __init__(
        self, snapshot: CellSnapshot, fitter: NodeFitter, loads: LoadCalculator, *, price_factor: float, headroom: float
    ) -> None:
        self._snapshot, self._fitter, self._loads = snapshot, fitter, loads
        self._price_factor, self._headroom = price_factor, headroom
        self._started: dict[UUID, QueuedAction] = {}
        self._claimed: dict[int, int] = {}
        """Milli-cores that other actions must give up for claims, by node."""
        self._promised: dict[int, Counter[str]] = {}
        """Other resources that the claiming actions need, by node."""
        self._reserved: dict[int, int] = {}
        """Free milli-cores reserved for claiming actions, by node."""
        self._claimable_heap: list[tuple[int, int]] | None = None
        """Heap of negated claimable milli-cores and node; entries may be outdated, as the amounts only fall."""

    def add_started(self, action: QueuedAction) -> None:
        """Register an action that starts at its minimum."""
        self._started[action.id] = action

    def claim(self, action: QueuedAction) -> None:
        """Claim the cores that the action needs to start, so that running actions are shrunk."""
        cores = action.cls.demand.minimum.get(_CORES, 0)
        node = self._fitter.pinned_node(action) if cores else None
        if node is not None:
            if self._snapshot.running.shrinkable_amount(node) and self._is_suitable(node, action, cores):
                self._claim(node, action)
            return
        tried: list[tuple[int, int]] = []
        while cores and (node := self._most_claimable_node()) is not None and self._unclaimed_cores(node) >= cores:
            if self._snapshot.nodes[node].is_schedulable and self._is_suitable(node, action, cores):
                self._claim(node, action)
                break
            tried.append(heappop(self._build_claimable_heap()))
        for entry in tried:
            heappush(self._build_claimable_heap(), entry)

    def has_claims(self, node: int) -> bool:
        """Return True if actions on the node must give up cores."""
        return self._claimed.get(node, 0) > 0

    def reserve(self, node: int, cores: int) -> None:
        """Reserve free milli-cores of the node for its claims."""
        self._reserved[node] = cores
        if node in self._claimed:
            self._claimed[node] = max(0, self._claimed[node] - cores)

    def plan(self, grants: Sequence[Grant]) -> SchedulingPlan:
        """Return the grants, some with more cores, and the resizes of running actions."""
        admitted = [grant for grant in grants if grant.fence.action_id in self._started]
        changing = sorted(self._can_change({grant.node for grant in admitted}))
        starting: dict[int, list[Grant]] = {node: [] for node in changing}
        for grant in admitted if changing else ():
            if grant.node in starting:
                starting[grant.node].append(grant)
        wider: dict[UUID, Grant] = {}
        resizes: list[ResizeDecision] = []
        for node in changing:
            for change in self._resize_node(node, starting[node]):
                if isinstance(change, Grant):
                    wider[change.fence.action_id] = change
                else:
                    resizes.append(change)
        return SchedulingPlan(
            grants=tuple(wider.get(grant.fence.action_id, grant) for grant in grants) if wider else tuple(grants),
            resizes=tuple(resizes),
            watched_nodes=frozenset(self._claimed | self._reserved),
        )

    def _can_change(self, starting: Iterable[int]) -> list[int]:
        """Return the nodes with a start, a claim or a change that have free or shrinkable cores."""
        free, spare = self._fitter.available, self._snapshot.running.shrinkable_amount
        nodes = (self._snapshot.running.dirty_nodes | self._claimed.keys()).union(starting)
        return [node for node in nodes if node in free and (free[node].get(_CORES, 0) > 0 or spare(node) > 0)]

    def has_claimable(self, milli: int) -> bool:
        """Return True if a node could provide this many milli-cores by shrinking actions."""
        node = self._most_claimable_node()
        return node is not None and self._unclaimed_cores(node) >= milli

    def obtainable_resources(self, node: int) -> Resources:
        """Return the free amounts of the node, plus the cores that running actions could give up."""
        return {**self._fitter.available[node], _CORES: self._unclaimed_cores(node)}

    def _is_suitable(self, node: int, action: QueuedAction, cores: int) -> bool:
        """Return True if the node could provide the cores and has all other resources, besides those promised."""
        pool = self._snapshot.nodes.get(node)
        if (
            pool is None
            or not pool.is_serving
            or self._unclaimed_cores(node) < cores
            or not self._fitter.is_suitable(node, action.cls)
        ):
            return False
        promised = self._promised.get(node, _NOTHING)
        wanted = self._fitter.required_available(node, action).items()
        others = {name: amount + promised.get(name, 0) for name, amount in wanted if name != _CORES}
        return fits(others, self._fitter.available[node])

    def _claim(self, node: int, action: QueuedAction) -> None:
        needed = self._fitter.needed_resources(action)
        self._claimed[node] = self._claimed.get(node, 0) + needed[_CORES]
        self._promised.setdefault(node, Counter()).update(needed)

    def _most_claimable_node(self) -> int | None:
        nodes = self._build_claimable_heap()
        while nodes:
            amount, node = nodes[0]
            if -amount == self._unclaimed_cores(node):
                return node
            heapreplace(nodes, (-self._unclaimed_cores(node), node))
        return None

    def _build_claimable_heap(self) -> list[tuple[int, int]]:
        """Return a heap of the nodes with shrinkable actions."""
        if self._claimable_heap is None:
            spare = self._snapshot.running.shrinkable_amount
            self._claimable_heap = [
                (-self._unclaimed_cores(node), node) for node in self._fitter.available if spare(node) > 0
            ]
            heapify(self._claimable_heap)
        return self._claimable_heap

    def _unclaimed_cores(self, node: int) -> int:
        """Return the milli-cores that are free, shrinkable or already being released, minus the claims."""
        free = self._fitter.available[node].get(_CORES, 0)
        return free + self._snapshot.running.shrinkable_amount(node) - self._claimed.get(node, 0)

    def _shrinking_cores(self, node: int) -> int:
        """Return the milli-cores of resizes that are not confirmed yet."""
        running = self._snapshot.running.on_node(node).values()
        changing = [
            (each.resources[_CORES], each.resizing_to[_CORES]) for each in running if each.resizing_to is not None
        ]
        return sum(max(0, has - will_have) for has, will_have in changing)

    def _can_shrink(self, each: RunningAction) -> bool:
        now = self._snapshot.now
        return (
            each.cls is not None
            and each.cls.demand.elastic is not None
            and each.cls.demand.elastic.resizable is ResizeSupport.ANY
            and now - each.allocated_since >= MIN_RESIZE_INTERVAL_S
            and self._snapshot.curves.remaining_s(each) >= NEARLY_DONE_S
        )

    def _resize_node(self, node: int, starting: Sequence[Grant]) -> Iterator[Grant | ResizeDecision]:
        running = [
            each
            for each in self._snapshot.running.on_node(node).values()
            if is_resizable(each.cls)
            and each.resizing_to is None
            and each.started is not None
            and not (self._is_exploring(each) and not self._claimed.get(node))
        ]
        load = self._loads.load_of(node, _CORES)
        claimed = to_units(_CORES, max(0, self._claimed.get(node, 0) - self._shrinking_cores(node)))
        free = to_units(_CORES, self._fitter.available[node].get(_CORES, 0))
        candidates = [self._candidate(each) for each in running]
        candidates += [self._started_candidate(grant) for grant in starting]
        held = sum(map(_allocated_cores, running)) + sum(
            to_units(_CORES, grant.resources[_CORES]) for grant in starting
        )
        headroom = min(free, round(self._headroom * load.capacity))
        longest = max((each.remaining_s for each in candidates), default=0.0)
        chosen = reallocate(
            candidates,
            units=held + free - claimed - headroom,
            queued=load.queued,
            price_factor=self._price_factor,
            capacity=load.capacity,
            backlog_s=self._loads.backlog_s(node, _CORES, stop_above_s=longest),
        )
        yield from self._changes(running, starting, chosen, budget=max(0.0, free - claimed - headroom))

    def _is_exploring(self, each: RunningAction) -> bool:
        """Return True if the action has more cores than its minimum and its class has no known gain from them.

        It keeps them unless others claim cores, because a changed amount would show nothing.
        """
        if each.cls is None or not each.cls.is_undeclared:
            return False
        options = self._snapshot.curves.curve_for(each.cls).options
        return len(options) == 1 and each.resources[_CORES] > options[0].amount

    def _changes(
        self, running: Iterable[RunningAction], starting: Iterable[Grant], chosen: dict[UUID, int], *, budget: float
    ) -> Iterator[Grant | ResizeDecision]:
        """Yield all shrinks, and growth within the free amount; starting actions come before running ones."""
        for grant in starting:
            widths = self._curve(grant).options
            width = _cap_option(widths, chosen[grant.fence.action_id], budget + widths[0].units)
            budget -= width.units - widths[0].units
            if width is not widths[0]:
                yield grant._replace(resources={**grant.resources, _CORES: width.amount})
        for each in running:
            choices, held = self._options(each), _allocated_cores(each)
            width = _cap_option(choices, chosen[each.fence.action_id], budget + held)
            if width.units > held:
                budget -= width.units - held
            if width.amount != each.resources[_CORES]:
                yield ResizeDecision(fence=each.fence, resources={**each.resources, _CORES: width.amount})

    def _candidate(self, each: RunningAction) -> ResizeCandidate:
        widths, held = self._options(each), _allocated_cores(each)
        place = next(at for at, width in enumerate(widths) if width.units == held)
        rest = self._snapshot.curves.remaining_s(each)
        left = rest / widths[place].seconds
        least = 0 if self._can_shrink(each) else place
        return ResizeCandidate(each.fence.action_id, widths, least, left, is_straggler=each.overrun > 0)

    def _curve(self, grant: Grant) -> DurationCurve:
        return self._snapshot.curves.curve_for(self._started[grant.fence.action_id].cls)

    def _started_candidate(self, grant: Grant) -> ResizeCandidate:
        return ResizeCandidate(grant.fence.action_id, self._curve(grant).options)

    def _options(self, each: RunningAction) -> Sequence[ParallelismOption]:
        """Return the options of the class, plus the current amount, which may no longer be one of them.

        Raises ValueError if the class is unknown.
        """
        if each.cls is None:
            raise ValueError(f"the class of {each.fence} is unknown")
        widths, held = self._snapshot.curves.curve_for(each.cls).options, each.resources[_CORES]
        if any(width.amount == held for width in widths):
            return widths
        now = ParallelismOption(
            held, to_units(_CORES, held), self._snapshot.curves.expected_s(each.cls, each.resources)
        )
        return sorted((*widths, now), key=lambda width: width.amount)


def _allocated_cores(each: RunningAction) -> float:
    return to_units(_CORES, each.resources.get(_CORES, 0))


def _cap_option(options: Sequence[ParallelismOption], index: int, units: float) -> ParallelismOption:
    """Return the option at `index`, or the largest one before it within `units`."""
    while index and options[index].units > units + 1e-9:
        index -= 1
    return options[index]

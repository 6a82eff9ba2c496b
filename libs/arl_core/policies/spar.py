"""SPAR: shortest priced area first, the main policy of this project.

Order: arrival plus a size penalty that grows with the area (units x seconds at the minimum) up to a limit. Short
actions pass long ones, but no action is overtaken by one that arrived later than that limit. Parallelism: own time
against the time that the units would save queued actions. Between tasks: weighted fair shares.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from arl_core.capacity.gang_packing import SearchBudget
from arl_core.capacity.gangs import all_members, allocate_gang, placeable_members
from arl_core.capacity.node_fitting import NodeFitter
from arl_core.capacity.node_load import LoadCalculator
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import (
    Grant,
    QueuedAction,
    ResizeSupport,
    Resources,
    ResourceShape,
    SchedulingPlan,
    action_resources,
    environment_resources,
)
from arl_core.durations.curves import DurationCurve, ParallelismOption, best_option, to_units
from arl_core.durations.scaling_fit import RunCounts, is_exploration_due
from arl_core.durations.shared_demand import critical_start_amounts
from arl_core.policies.device_groups import GroupConstants, grant_device_groups
from arl_core.policies.elastic_resize import ElasticResizer
from arl_core.policies.reservations import RoundReservations
from arl_core.queue.action_bucket import ActionBucket, effective_arrival
from arl_core.queue.fairness import FairQueueCursor
from arl_core.queue.queue_index import QueueCursor
from arl_core.queue.quotas import QuotaRoom

__all__ = ["SparConstants", "SparPolicy", "fair_cursor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparConstants:
    """The constants of the policy, found by simulation (docs/decisions/0021); results change little around them."""

    size_penalty_limit_s: float = 300.0
    """Seconds after which a later arrival of the same task and priority cannot overtake."""
    size_penalty_per_unit_s: float = 10.0
    """Seconds of size penalty per unit-second of the action."""
    price_factor: float = 2.0
    """Seconds of delay that a unit-second costs each action that waits for a unit."""
    headroom: float = 0.03
    """Fraction of a node reserved for starting actions, not for more parallelism."""
    strictness: float = 100.0
    """Seconds of penalty per cell-second that a task has used more than another."""
    postpone_gain: float = 0.9
    """Fraction of the duration below which waiting for more units is worthwhile."""

    def size_penalty_s(self, area_s: float) -> float:
        """Return the size penalty in seconds for an area in unit-seconds."""
        return min(self.size_penalty_limit_s, self.size_penalty_per_unit_s * area_s)


@dataclass(frozen=True, slots=True)
class SparPolicy:
    """The SPAR policy. With `is_resizing` (SPAR-M), resizable actions start small and are resized while they run."""

    is_resizing: bool = False
    limit: int = 1_000_000
    """Maximum grants per round."""
    constants: SparConstants = field(default_factory=SparConstants)
    groups: GroupConstants = field(default_factory=GroupConstants)
    """Constants for device groups."""

    @property
    def has_pods(self) -> bool:
        """Return False: actions are granted one by one."""
        return False

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        """Plan a round within the free amounts; resources released by shrinks are used after their confirmation."""
        return _SparRound(self, snapshot).plan()

    def environment_allocation(self, resources: Resources) -> dict[str, int]:
        """Return the memory and disk of the first action; they stay allocated until the environment ends."""
        return environment_resources(resources)

    def action_allocation(self, resources: Resources, *, in_environment: bool, in_pod: bool) -> Resources:
        """Return all amounts, without memory and disk if an environment already occupies them."""
        return action_resources(resources) if in_environment else resources


def fair_cursor(
    snapshot: CellSnapshot,
    buckets_by_task: Mapping[int, Iterable[ActionBucket]],
    constants: SparConstants,
    room: QuotaRoom | None = None,
) -> FairQueueCursor:
    """Return a cursor over these buckets in the order in which a round examines them."""
    curves = snapshot.curves
    basis = curves.cache_token((constants.size_penalty_limit_s, constants.size_penalty_per_unit_s))
    walks: dict[int, QueueCursor] = {}
    for task, own in buckets_by_task.items():
        leads: list[float] = []
        for bucket in own:
            if bucket.size_penalty_token is not basis:
                bucket.size_penalty_token, bucket.size_penalty_s = (
                    basis,
                    constants.size_penalty_s(curves.curve_for(bucket.cls).area_s),
                )
            leads.append(bucket.size_penalty_s)
        walks[task] = QueueCursor(own, leads, room=room)
    overdue_before = snapshot.now - constants.size_penalty_limit_s
    return FairQueueCursor(walks, snapshot.shares, strictness=constants.strictness, starving_before=overdue_before)


class _SparRound:
    def __init__(self, policy: SparPolicy, snapshot: CellSnapshot) -> None:
        self._is_resizing, self._limit, self._constants = policy.is_resizing, policy.limit, policy.constants
        self._groups = policy.groups
        self._snapshot, self._curves = snapshot, snapshot.curves
        self._fitter = NodeFitter.from_nodes(snapshot.nodes)
        self._loads = LoadCalculator(snapshot)
        self._reservations = RoundReservations(snapshot, self._fitter, self._loads)
        self._remaining_gangs = MAX_BLOCKED_GANGS
        self._search_budget = SearchBudget()
        """Search budget for gang placement."""
        self._begun: dict[int, RunCounts] = {}
        """Actions of classes with undeclared elasticity that this round examined, by class key."""
        self._resizer = ElasticResizer(
            snapshot,
            self._fitter,
            self._loads,
            price_factor=policy.constants.price_factor,
            headroom=policy.constants.headroom,
        )

    def plan(self) -> SchedulingPlan:
        """Plan device groups first, then walk the queue in fair order until `limit` or until nothing more can start."""
        room = self._snapshot.quotas.room()
        grants = grant_device_groups(self._snapshot, limit=self._limit, constants=self._groups, room=room)
        walk = fair_cursor(self._snapshot, self._snapshot.queue.by_task(), self._constants, room)
        needed = set(self._snapshot.queue.cores_needed())
        least, all_need_cores = min(needed - {0}, default=0), 0 not in needed
        curves, levels, total = self._curves, self._fitter.nodes_by_cores, self._loads.total
        while (action := walk.head) is not None and len(grants) < self._limit:
            curve = curves.curve_for(action.cls)
            if curve.cores and not (levels and levels[-1][0] >= least) and not self._has_cores(least):
                if all_need_cores:
                    break
                walk.skip_bucket()
                continue
            if action.gang_members:
                self._start_gang(action, walk, grants)
                continue
            grant = self._start(action, curve)
            if grant is None:
                self._reserve_for(action)
                walk.skip_bucket()
            else:
                grants.append(grant)
                self._loads.started.append((grant.node, curve.resource))
                walk.advance(curves.share_s_on_curve(curve, action.cls, grant.resources, total))
        plan = self._resizer.plan(grants) if self._is_resizing else SchedulingPlan(grants=tuple(grants))
        reserved = self._reservations.carry_over(grants)
        return replace(plan, reserved=reserved) if reserved else plan

    def _start_gang(self, action: QueuedAction, cursor: FairQueueCursor, grants: list[Grant]) -> None:
        """Start the whole gang at its minimum; if it does not fit, start none and claim for each member."""
        started = allocate_gang(self._fitter, action, budget=self._search_budget)
        if started is None:
            self._reserve_for_gang(action)
            cursor.skip_bucket()
            return
        grants += started
        members = all_members(action)
        for member, grant in zip(members, started, strict=True):
            self._loads.started.append((grant.node, self._curves.curve_for(member.cls).resource))
        cursor.advance(sum(map(self._share_s, members, started)))

    def _reserve_for_gang(self, action: QueuedAction) -> None:
        """Keep resources for the members of an overdue gang that fit, until all fit; claim cores for the others."""
        is_overdue = self._is_starving(action)
        if not (is_overdue or self._is_resizing) or self._remaining_gangs == 0:
            return
        self._remaining_gangs -= 1
        could_have, looks = self._resizer.obtainable_resources, self._search_budget
        could_shrink = self._is_resizing and bool(placeable_members(self._fitter, action, could_have, budget=looks))
        if is_overdue:
            members = placeable_members(self._fitter, action, self._available_if_idle, budget=looks)
        else:
            members = all_members(action) if could_shrink else []
        for member in members:
            grant = self._fitter.allocate(member, member.cls.demand.minimum) if is_overdue else None
            if grant is not None:
                self._resizer.reserve(grant.node, 0)
                continue
            if could_shrink:
                self._resizer.claim(member)
            if is_overdue:
                self._reserve_for(member)

    def _available_if_idle(self, node: int) -> Resources:
        """Return the amounts of the idle node.

        Memory and disk of environments stay allocated, because clients decide when environments end.
        """
        outside = self._snapshot.running.outside_environments(node)
        stays = environment_resources(self._fitter.available[node])
        back = {name: amount + outside.get(name, 0) for name, amount in stays.items()}
        return {**self._snapshot.nodes[node].capacity, **back}

    def _has_cores(self, milli: int) -> bool:
        """Return True if this many milli-cores are free on any node, or available by backfill or shrinking."""
        if self._fitter.has_cores(milli) or self._reservations.has_cores(milli):
            return True
        return self._is_resizing and self._resizer.has_claimable(milli)

    def _reserve_for(self, action: QueuedAction) -> None:
        """Reserve a node for an overdue action, which starts once enough running actions have ended."""
        if action.cls.shape is not ResourceShape.DIVISIBLE or not self._is_starving(action):
            return
        kept = self._reservations.reserve_for(action)
        if kept is not None:
            node, cores = kept
            if self._resizer.has_claims(node):
                self._reservations.disable_backfill(node)
            self._resizer.reserve(node, cores)

    def _start(self, action: QueuedAction, curve: DurationCurve) -> Grant | None:
        """Return a grant, or None if the action and the rest of its bucket must wait."""
        cls = action.cls
        is_elastic = len(curve.options) > 1 and cls.demand.elastic is not None
        if is_elastic and not (self._is_resizing and cls.resizable is not ResizeSupport.NONE):
            return self._start_elastic(action)
        if cls.is_undeclared and (grant := self._explore(action, curve)) is not None:
            return grant
        amounts = curve.start_amounts
        if action.is_critical:
            amounts = critical_start_amounts(cls, amounts, in_environment=action.environment is not None)
        grant = self._fitter.allocate(action, amounts) or self._backfill(action)
        if self._is_resizing and grant is None:
            self._resizer.claim(action)
        elif self._is_resizing and is_elastic:
            self._resizer.add_started(action)
        return grant

    def _explore(self, action: QueuedAction, curve: DurationCurve) -> Grant | None:
        """Start an action with all idle cores of its range to learn their effect; None if that must not happen.

        It happens for at most one of `EXPLORE_ONE_IN` runs, only while no gain is known and nothing else waits.
        """
        cls, elastic, ended = action.cls, action.cls.demand.elastic, self._curves.run_counts(action.cls)
        if elastic is None or ended is None or len(curve.options) > 1:
            return None
        begun = self._begun.get(cls.key, RunCounts())
        self._begun[cls.key] = begun.plus(RunCounts(1, 0))
        if not is_exploration_due(ended.plus(begun).plus(self._snapshot.running.counts_of(cls))):
            return None
        node = self._fitter.find_roomiest_node(action, cls.demand.minimum)
        if node is None or (load := self._loads.load_of(node, elastic.resource)).queued > 1:
            return None
        free = self._fitter.available[node].get(elastic.resource, 0)
        idle = free - round(self._constants.headroom * load.capacity) * _CORE_MILLI
        amount = max((each for each in elastic.amounts if each <= idle), default=0)
        if amount <= elastic.amounts[0]:
            return None
        self._begun[cls.key] = begun.plus(RunCounts(1, 1))
        return self._fitter.allocate_on(node, action, {**cls.demand.minimum, elastic.resource: amount})

    def _start_elastic(self, action: QueuedAction) -> Grant | None:
        """Start an elastic action at its best priced option.

        The node is the best fit for that option, or else the one with the most free cores.
        """
        node = self._fitter.find_roomiest_node(action, action.cls.demand.minimum)
        if node is None:
            grant = self._backfill(action, is_elastic=True)
            if grant is None and self._is_resizing:
                self._resizer.claim(action)
            return grant
        wanted = self._best_priced_option(node, action, units=float("inf"))
        fitting = self._fitter.find_node(action, _resources_at(action, wanted))
        node = node if fitting is None else fitting
        width = self._option_on(node, action)
        return None if width is None else self._fitter.allocate_on(node, action, _resources_at(action, width))

    def _backfill(self, action: QueuedAction, *, is_elastic: bool = False) -> Grant | None:
        """Start the action in the reservation of another action that could not start before this one ends."""
        node = self._reservations.backfill_node_for(action)
        if node is None:
            return None
        with self._reservations.backfilled(node):
            if not is_elastic:
                return self._fitter.allocate_on(node, action, action.cls.demand.minimum)
            width = self._option_on(node, action)
            return None if width is None else self._fitter.allocate_on(node, action, _resources_at(action, width))

    def _option_on(self, node: int, action: QueuedAction) -> ParallelismOption | None:
        """Return the option to start with; None if waiting for more units ends sooner (eviction in the paper)."""
        curve = self._curves.curve_for(action.cls)
        capacity = self._loads.load_of(node, curve.resource).capacity
        free = to_units(curve.resource, self._fitter.available[node].get(curve.resource or "", 0))
        headroom = round(self._constants.headroom * capacity)
        width = self._best_priced_option(node, action, units=free - headroom)
        wanted = self._best_priced_option(node, action, units=capacity)
        worthwhile_s = self._constants.postpone_gain * width.seconds - _MIN_GAIN_S - wanted.seconds
        if width is wanted or worthwhile_s <= 0 or self._is_starving(action):
            return width
        is_better = self._loads.wait_until_available_s(node, curve.resource, wanted.units - free) < worthwhile_s
        return None if is_better else width

    def _best_priced_option(self, node: int, action: QueuedAction, *, units: float) -> ParallelismOption:
        """Return the best priced option within `units`, or the smallest."""
        curve = self._curves.curve_for(action.cls)
        load = self._loads.load_of(node, curve.resource)
        price = self._constants.price_factor * max(0.0, load.queued - 1) / load.capacity
        backlog_s = self._loads.backlog_s(node, curve.resource, stop_above_s=curve.options[0].seconds)
        return best_option(curve.options, price=price, backlog_s=backlog_s, units=units) or curve.options[0]

    def _is_starving(self, action: QueuedAction) -> bool:
        return self._snapshot.now - effective_arrival(action) > self._constants.size_penalty_limit_s

    def _share_s(self, action: QueuedAction, grant: Grant) -> float:
        """Return the expected cell-seconds of the grant."""
        return self._curves.share_s(action.cls, grant.resources, self._loads.total)


def _resources_at(action: QueuedAction, option: ParallelismOption) -> Resources:
    """Return the amounts of an elastic action at this option."""
    elastic = action.cls.demand.elastic
    return {**action.cls.demand.minimum, elastic.resource: option.amount} if elastic else action.cls.demand.minimum


MAX_BLOCKED_GANGS = 16
"""Maximum number of gangs per round that do not fit but for which resources are reserved or claimed."""
_CORES, _CORE_MILLI = "cpu_milli", 1000
_MIN_GAIN_S = 0.05

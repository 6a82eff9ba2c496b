"""SPAR: shortest priced area first. The policy that this project is for.

Order: when an action came, plus a lead that grows with its area (units x seconds at its smallest width) up to a limit;
so short ones pass long ones, and nothing is ever overtaken by what came later than that limit. Width: own time against
the time that the units would save those who wait. Between tasks: weighted fair shares.
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
from arl_core.policies.device_groups import GroupConstants, grant_device_groups
from arl_core.policies.elastic_resize import ElasticResizer
from arl_core.policies.reservations import RoundReservations
from arl_core.queue.fairness import FairQueueCursor
from arl_core.queue.queue_index import ActionBucket, QueueCursor, effective_arrival
from arl_core.queue.quotas import QuotaRoom

__all__ = ["SparConstants", "SparPolicy", "fair_cursor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparConstants:
    """Found by simulation (README, Decisions); results are flat around them."""

    size_penalty_limit_s: float = 300.0
    """Nothing is overtaken, inside its task and priority, by what came so much later."""
    size_penalty_per_unit_s: float = 10.0
    """How far behind others an action goes for each unit-second of its own."""
    price_factor: float = 2.0
    """What a unit-second costs, in seconds, for each action that waits for a unit."""
    headroom: float = 0.03
    """The part of a node that is for starting actions, not for widening them."""
    strictness: float = 100.0
    """What a second of the whole cell that a task had more than another counts, in seconds of lead."""
    postpone_gain: float = 0.9
    """Waiting for more units has to make an action end in less than this part of the time."""

    def size_penalty_s(self, area_s: float) -> float:
        """How far behind others an action of this area, in unit-seconds, goes."""
        return min(self.size_penalty_limit_s, self.size_penalty_per_unit_s * area_s)


@dataclass(frozen=True, slots=True)
class SparPolicy:
    """With `resizing` (SPAR-M) actions that allow it start small, and are given and taken cores while they run."""

    is_resizing: bool = False
    limit: int = 1_000_000
    """Grants in one round."""
    constants: SparConstants = field(default_factory=SparConstants)
    groups: GroupConstants = field(default_factory=GroupConstants)
    """For actions that take whole devices."""

    @property
    def has_pods(self) -> bool:
        return False

    def plan(self, snapshot: CellSnapshot) -> SchedulingPlan:
        """Never gives more than is free now; what shrinks free is for the round after they are confirmed."""
        return _SparRound(self, snapshot).plan()

    def environment_allocation(self, resources: Resources) -> dict[str, int]:
        return environment_resources(resources)

    def action_allocation(self, resources: Resources, *, in_environment: bool, in_pod: bool) -> Resources:
        return action_resources(resources) if in_environment else resources


def fair_cursor(
    snapshot: CellSnapshot,
    buckets_by_task: Mapping[int, Iterable[ActionBucket]],
    constants: SparConstants,
    room: QuotaRoom | None = None,
) -> FairQueueCursor:
    """The actions of these buckets, by task, in the order in which a round looks at them."""
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
        """For places of gangs."""
        self._resizer = ElasticResizer(
            snapshot,
            self._fitter,
            self._loads,
            price_factor=policy.constants.price_factor,
            headroom=policy.constants.headroom,
        )

    def plan(self) -> SchedulingPlan:
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
        """All of it at its smallest; where not all fit, nobody starts, and each has his claims by himself."""
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
        """Who fits of an overdue one keeps his place in this round, until what ends leaves room for all."""
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
        """Memory and disk may be an environment's, which ends when somebody else wills."""
        outside = self._snapshot.running.outside_environments(node)
        stays = environment_resources(self._fitter.available[node])
        back = {name: amount + outside.get(name, 0) for name, amount in stays.items()}
        return {**self._snapshot.nodes[node].capacity, **back}

    def _has_cores(self, milli: int) -> bool:
        """Whether so many are free anywhere, or could be lent or had."""
        if self._fitter.has_cores(milli) or self._reservations.has_cores(milli):
            return True
        return self._is_resizing and self._resizer.has_claimable(milli)

    def _reserve_for(self, action: QueuedAction) -> None:
        """Who has waited so long that nothing may overtake it starts once enough of those that run have ended."""
        if action.cls.shape is not ResourceShape.DIVISIBLE or not self._is_starving(action):
            return
        kept = self._reservations.reserve_for(action)
        if kept is not None:
            node, cores = kept
            if self._resizer.has_claims(node):
                self._reservations.disable_backfill(node)
            self._resizer.reserve(node, cores)

    def _start(self, action: QueuedAction, curve: DurationCurve) -> Grant | None:
        """What it is granted now; None where it has to wait, and all of its bucket with it."""
        cls = action.cls
        is_elastic = len(curve.options) > 1 and cls.demand.elastic is not None
        if is_elastic and not (self._is_resizing and cls.resizable is not ResizeSupport.NONE):
            return self._start_elastic(action)
        grant = self._fitter.allocate(action, cls.demand.minimum) or self._backfill(action)
        if self._is_resizing and grant is None:
            self._resizer.claim(action)
        elif self._is_resizing and is_elastic:
            self._resizer.add_started(action)
        return grant

    def _start_elastic(self, action: QueuedAction) -> Grant | None:
        """As wide as its price says: where that fits best, or else where most is free."""
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
        """In what is kept for one that could not start before this one is over."""
        node = self._reservations.backfill_node_for(action)
        if node is None:
            return None
        with self._reservations.backfilled(node):
            if not is_elastic:
                return self._fitter.allocate_on(node, action, action.cls.demand.minimum)
            width = self._option_on(node, action)
            return None if width is None else self._fitter.allocate_on(node, action, _resources_at(action, width))

    def _option_on(self, node: int, action: QueuedAction) -> ParallelismOption | None:
        """None where waiting for more units makes it end sooner: what the paper calls eviction."""
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
        """The best of those within `units`, or the smallest."""
        curve = self._curves.curve_for(action.cls)
        load = self._loads.load_of(node, curve.resource)
        price = self._constants.price_factor * max(0.0, load.queued - 1) / load.capacity
        backlog_s = self._loads.backlog_s(node, curve.resource, stop_above_s=curve.options[0].seconds)
        return best_option(curve.options, price=price, backlog_s=backlog_s, units=units) or curve.options[0]

    def _is_starving(self, action: QueuedAction) -> bool:
        return self._snapshot.now - effective_arrival(action) > self._constants.size_penalty_limit_s

    def _share_s(self, action: QueuedAction, grant: Grant) -> float:
        """Seconds of the whole cell that it is expected to take."""
        return self._curves.share_s(action.cls, grant.resources, self._loads.total)


def _resources_at(action: QueuedAction, option: ParallelismOption) -> Resources:
    """Of an elastic action."""
    elastic = action.cls.demand.elastic
    return {**action.cls.demand.minimum, elastic.resource: option.amount} if elastic else action.cls.demand.minimum


MAX_BLOCKED_GANGS = 16
"""That do not fit, for which something is kept or asked back in one round at most."""
_CORES = "cpu_milli"
_MIN_GAIN_S = 0.05

"""SPAR: shortest priced area first. The policy that this project is for.

Order: when an action came, plus a lead that grows with its area (units x seconds at its smallest width) up to a limit;
so short ones pass long ones, and nothing is ever overtaken by what came later than that limit. Width: own time against
the time that the units would save those who wait. Between tasks: weighted fair shares.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from arl_core.curves import Curve, Width, best_width, units_of
from arl_core.fairness import FairWalk
from arl_core.free import FreeAmounts
from arl_core.gangs import members_of, take_together, together_if
from arl_core.load import Loads
from arl_core.model import (
    Amounts,
    Grant,
    Plan,
    Resizable,
    Shape,
    Waiting,
    action_part,
    environment_part,
)
from arl_core.places import Looks
from arl_core.priced_groups import GroupConstants, priced_groups
from arl_core.quotas import Room
from arl_core.reservations import Reservations
from arl_core.snapshot import Snapshot
from arl_core.waiting import Bucket, Walk, came
from arl_core.widening import Widening

__all__ = ["Spar", "SparConstants", "fair_walk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparConstants:
    """Found by simulation (README, Decisions); results are flat around them."""

    lead_limit_s: float = 300.0
    """Nothing is overtaken, inside its task and priority, by what came so much later."""
    lead_per_unit_s: float = 10.0
    """How far behind others an action goes for each unit-second of its own."""
    price_factor: float = 2.0
    """What a unit-second costs, in seconds, for each action that waits for a unit."""
    headroom: float = 0.03
    """The part of a node that is for starting actions, not for widening them."""
    strictness: float = 100.0
    """What a second of the whole cell that a task had more than another counts, in seconds of lead."""
    postpone_gain: float = 0.9
    """Waiting for more units has to make an action end in less than this part of the time."""

    def lead_s(self, area_s: float) -> float:
        """How far behind others an action of this area, in unit-seconds, goes."""
        return min(self.lead_limit_s, self.lead_per_unit_s * area_s)


@dataclass(frozen=True, slots=True)
class Spar:
    """With `resizing` (SPAR-M) actions that allow it start small, and are given and taken cores while they run."""

    resizing: bool = False
    limit: int = 1_000_000
    """Grants in one round."""
    constants: SparConstants = field(default_factory=SparConstants)
    groups: GroupConstants = field(default_factory=GroupConstants)
    """For actions that take whole devices."""

    @property
    def has_pods(self) -> bool:
        return False

    def plan(self, snapshot: Snapshot) -> Plan:
        """Never gives more than is free now; what shrinks free is for the round after they are confirmed."""
        return _Round(self, snapshot).plan()

    def environment_holds(self, amounts: Amounts) -> dict[str, int]:
        return environment_part(amounts)

    def action_holds(self, amounts: Amounts, *, at_home: bool, in_pod: bool) -> Amounts:
        return action_part(amounts) if at_home else amounts


def fair_walk(
    snapshot: Snapshot, tasks: Mapping[int, Iterable[Bucket]], constants: SparConstants, room: Room | None = None
) -> FairWalk:
    """The actions of these buckets, by task, in the order in which a round looks at them."""
    curves = snapshot.curves
    basis = curves.basis((constants.lead_limit_s, constants.lead_per_unit_s))
    walks: dict[int, Walk] = {}
    for task, own in tasks.items():
        leads: list[float] = []
        for bucket in own:
            if bucket.led_by is not basis:
                bucket.led_by, bucket.lead_s = basis, constants.lead_s(curves.of(bucket.cls).area_s)
            leads.append(bucket.lead_s)
        walks[task] = Walk(own, leads, room=room)
    overdue_before = snapshot.now - constants.lead_limit_s
    return FairWalk(walks, snapshot.shares, strictness=constants.strictness, overdue_before=overdue_before)


class _Round:
    def __init__(self, policy: Spar, snapshot: Snapshot) -> None:
        self._resizing, self._limit, self._constants = policy.resizing, policy.limit, policy.constants
        self._groups = policy.groups
        self._snapshot, self._curves = snapshot, snapshot.curves
        self._free = FreeAmounts.of(snapshot.pools)
        self._loads = Loads(snapshot)
        self._reservations = Reservations(snapshot, self._free, self._loads)
        self._gangs_left = GANGS
        self._looks = Looks()
        """For places of gangs."""
        self._widening = Widening(
            snapshot,
            self._free,
            self._loads,
            price_factor=policy.constants.price_factor,
            headroom=policy.constants.headroom,
        )

    def plan(self) -> Plan:
        room = self._snapshot.quotas.room()
        grants = priced_groups(self._snapshot, limit=self._limit, constants=self._groups, room=room)
        walk = fair_walk(self._snapshot, self._snapshot.waiting.by_task(), self._constants, room)
        needed = set(self._snapshot.waiting.cores_needed())
        least, all_need_cores = min(needed - {0}, default=0), 0 not in needed
        curves, levels, total = self._curves, self._free.levels, self._loads.total
        while (action := walk.head) is not None and len(grants) < self._limit:
            curve = curves.of(action.cls)
            if curve.cores and not (levels and levels[-1][0] >= least) and not self._has_cores(least):
                if all_need_cores:
                    break
                walk.leave_bucket()
                continue
            if action.together:
                self._start_gang(action, walk, grants)
                continue
            grant = self._start(action, curve)
            if grant is None:
                self._keep_free_for(action)
                walk.leave_bucket()
            else:
                grants.append(grant)
                self._loads.started.append((grant.node, curve.resource))
                walk.advance(curves.share_on(curve, action.cls, grant.amounts, total))
        plan = self._widening.plan(grants) if self._resizing else Plan(grants=tuple(grants))
        reserved = self._reservations.left(grants)
        return replace(plan, reserved=reserved) if reserved else plan

    def _start_gang(self, action: Waiting, walk: FairWalk, grants: list[Grant]) -> None:
        """All of it at its smallest; where not all fit, nobody starts, and each has his claims by himself."""
        started = take_together(self._free, action, looks=self._looks)
        if started is None:
            self._keep_free_for_gang(action)
            walk.leave_bucket()
            return
        grants += started
        members = members_of(action)
        for member, grant in zip(members, started, strict=True):
            self._loads.started.append((grant.node, self._curves.of(member.cls).resource))
        walk.advance(sum(map(self._share_s, members, started)))

    def _keep_free_for_gang(self, action: Waiting) -> None:
        """Who fits of an overdue one keeps his place in this round, until what ends leaves room for all."""
        is_overdue = self._is_overdue(action)
        if not (is_overdue or self._resizing) or self._gangs_left == 0:
            return
        self._gangs_left -= 1
        could_have, looks = self._widening.could_have, self._looks
        could_shrink = self._resizing and bool(together_if(self._free, action, could_have, looks=looks))
        if is_overdue:
            members = together_if(self._free, action, self._had_if_runs_ended, looks=looks)
        else:
            members = members_of(action) if could_shrink else []
        for member in members:
            grant = self._free.take(member, member.cls.demand.minimum) if is_overdue else None
            if grant is not None:
                self._widening.keep(grant.node, 0)
                continue
            if could_shrink:
                self._widening.claim(member)
            if is_overdue:
                self._keep_free_for(member)

    def _had_if_runs_ended(self, node: int) -> Amounts:
        """Memory and disk may be an environment's, which ends when somebody else wills."""
        outside = self._snapshot.running.outside(node)
        stays = environment_part(self._free.free[node])
        back = {name: amount + outside.get(name, 0) for name, amount in stays.items()}
        return {**self._snapshot.pools[node].capacity, **back}

    def _has_cores(self, milli: int) -> bool:
        """Whether so many are free anywhere, or could be lent or had."""
        if self._free.has_cores(milli) or self._reservations.has_cores(milli):
            return True
        return self._resizing and self._widening.has_claimable(milli)

    def _keep_free_for(self, action: Waiting) -> None:
        """Who has waited so long that nothing may overtake it starts once enough of those that run have ended."""
        if action.cls.shape is not Shape.DIVISIBLE or not self._is_overdue(action):
            return
        kept = self._reservations.keep_for(action)
        if kept is not None:
            node, cores = kept
            if self._widening.has_claims(node):
                self._reservations.lend_nothing_of(node)
            self._widening.keep(node, cores)

    def _start(self, action: Waiting, curve: Curve) -> Grant | None:
        """What it is granted now; None where it has to wait, and all of its bucket with it."""
        cls = action.cls
        is_elastic = len(curve.widths) > 1 and cls.demand.elastic is not None
        if is_elastic and not (self._resizing and cls.resizable is not Resizable.NONE):
            return self._start_wide(action)
        grant = self._free.take(action, cls.demand.minimum) or self._borrow(action)
        if self._resizing and grant is None:
            self._widening.claim(action)
        elif self._resizing and is_elastic:
            self._widening.admitted(action)
        return grant

    def _start_wide(self, action: Waiting) -> Grant | None:
        """As wide as its price says: where that fits best, or else where most is free."""
        node = self._free.widest_for(action, action.cls.demand.minimum)
        if node is None:
            grant = self._borrow(action, wide=True)
            if grant is None and self._resizing:
                self._widening.claim(action)
            return grant
        wanted = self._priced(node, action, units=float("inf"))
        fitting = self._free.node_for(action, _amounts(action, wanted))
        node = node if fitting is None else fitting
        width = self._width_on(node, action)
        return None if width is None else self._free.take_on(node, action, _amounts(action, width))

    def _borrow(self, action: Waiting, *, wide: bool = False) -> Grant | None:
        """In what is kept for one that could not start before this one is over."""
        node = self._reservations.lender_for(action)
        if node is None:
            return None
        with self._reservations.lent(node):
            if not wide:
                return self._free.take_on(node, action, action.cls.demand.minimum)
            width = self._width_on(node, action)
            return None if width is None else self._free.take_on(node, action, _amounts(action, width))

    def _width_on(self, node: int, action: Waiting) -> Width | None:
        """None where waiting for more units makes it end sooner: what the paper calls eviction."""
        curve = self._curves.of(action.cls)
        capacity = self._loads.of(node, curve.resource).capacity
        free = units_of(curve.resource, self._free.free[node].get(curve.resource or "", 0))
        headroom = round(self._constants.headroom * capacity)
        width = self._priced(node, action, units=free - headroom)
        wanted = self._priced(node, action, units=capacity)
        worthwhile_s = self._constants.postpone_gain * width.seconds - _HARDLY_S - wanted.seconds
        if width is wanted or worthwhile_s <= 0 or self._is_overdue(action):
            return width
        is_better = self._loads.until_free(node, curve.resource, wanted.units - free) < worthwhile_s
        return None if is_better else width

    def _priced(self, node: int, action: Waiting, *, units: float) -> Width:
        """The best of those within `units`, or the smallest."""
        curve = self._curves.of(action.cls)
        load = self._loads.of(node, curve.resource)
        price = self._constants.price_factor * max(0.0, load.waiting - 1) / load.capacity
        backlog_s = self._loads.backlog_s(node, curve.resource, enough_s=curve.widths[0].seconds)
        return best_width(curve.widths, price=price, backlog_s=backlog_s, units=units) or curve.widths[0]

    def _is_overdue(self, action: Waiting) -> bool:
        return self._snapshot.now - came(action) > self._constants.lead_limit_s

    def _share_s(self, action: Waiting, grant: Grant) -> float:
        """Seconds of the whole cell that it is expected to take."""
        return self._curves.share_s(action.cls, grant.amounts, self._loads.total)


def _amounts(action: Waiting, width: Width) -> Amounts:
    """Of an elastic action."""
    elastic = action.cls.demand.elastic
    return {**action.cls.demand.minimum, elastic.resource: width.amount} if elastic else action.cls.demand.minimum


GANGS = 16
"""That do not fit, for which something is kept or asked back in one round at most."""
_CORES = "cpu_milli"
_HARDLY_S = 0.05

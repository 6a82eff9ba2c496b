"""Why a queued action waits: what it lacks, who goes before it, what is expected of it, and which rule decides.

It asks the policy for the round that would follow, and walks the order in which the policy looks at what waits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import UUID

from arl_core.curves import Width
from arl_core.estimates import Estimates
from arl_core.fairness import own_share
from arl_core.free import FreeAmounts
from arl_core.gangs import members_of, together_on
from arl_core.ledger import fits
from arl_core.load import Loads
from arl_core.model import ActionClass, Amounts, Grant, Plan, Pool, Shape, Waiting, action_part
from arl_core.plan import Policy
from arl_core.rules import Basis, Rule
from arl_core.snapshot import Snapshot
from arl_core.spar import Spar, fair_walk
from arl_core.waiting import Bucket, Walk, came

__all__ = ["LOOKED_AT", "Ahead", "Explanation", "Lack", "explain"]

LOOKED_AT = 5_000
"""Waiting actions that are counted at most: whoever explains does nothing else meanwhile."""


@dataclass(frozen=True, slots=True)
class Lack:
    """More of a resource than its node has free."""

    resource: str
    needed: int
    free: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Of what could use what the action needs: how many are looked at before it."""

    priority: int = 0
    """Because theirs is higher."""
    in_task: int = 0
    """Others of its task."""
    other_tasks: int = 0
    at_least: bool = False
    """`LOOKED_AT` were counted and there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    rule: Rule
    node: int | None
    """Where its environment lives, else the node that lacks least; None where no node could ever run it."""
    lacks: tuple[Lack, ...]
    """There; where no node could ever run it, of the one that comes nearest, against its capacity."""
    unenforced: frozenset[str]
    """What it requires and no node has."""
    ahead: Ahead | None
    """None of one that is no candidate, as its queue is paused or its environment busy."""
    counts_from: float
    """When it counts as submitted."""
    lead_s: float
    """So much later, as it is long or wide, does it count in the order of its task."""
    debt_s: float
    """Seconds of the whole cell that its task had more than the one, of those that wait, that had least."""
    part: float
    """Of its task, beside those that wait too; 0..1."""
    resource: str | None
    """What its widths are counted in."""
    narrowest: Width
    widest: Width
    basis: Basis
    runs: int
    """Of its class, that the expected durations rest on."""
    backlog_s: float | None
    """Until all that is known were done on `node`, were it spread evenly."""


def explain(snapshot: Snapshot, action: Waiting, policy: Policy, *, held_back: Rule | None = None) -> Explanation:
    """Of a queued action; `held_back` says why one is not in the snapshot. Changes nothing."""
    pool, possible = _best_pool(snapshot, action)
    possible = possible and _has_room_for_gang(snapshot, action)
    lacks = _lacks(action, pool, possible) if pool is not None else ()
    ahead = _ahead(snapshot, action, policy) if held_back is None else None
    curve = snapshot.curves.of(action.cls)
    tasks = {bucket.key.task for bucket in snapshot.waiting.buckets()} | {action.task}
    least_s = min(map(snapshot.shares.virtual_s, tasks))
    node = pool.node if pool is not None and possible else None
    loads = Loads(snapshot)
    return Explanation(
        rule=held_back or _rule(snapshot, action, policy, pool=pool if possible else None, ahead=ahead or Ahead()),
        node=node,
        lacks=lacks,
        unenforced=_unenforced(snapshot, action.cls),
        ahead=ahead,
        counts_from=came(action),
        lead_s=_lead_s(snapshot, action.cls, policy),
        debt_s=snapshot.shares.virtual_s(action.task) - least_s,
        part=snapshot.shares.part(action.task) / sum(map(snapshot.shares.part, tasks)),
        resource=curve.resource,
        narrowest=curve.widths[0],
        widest=curve.widths[-1],
        basis=_basis(snapshot, action.cls),
        runs=_runs(snapshot, action.cls),
        backlog_s=loads.backlog_s(node, curve.resource, enough_s=float("inf")) if node is not None else None,
    )


def _rule(snapshot: Snapshot, action: Waiting, policy: Policy, *, pool: Pool | None, ahead: Ahead) -> Rule:
    """`pool`: where it would go; None where no node could ever run it."""
    plan = policy.plan(snapshot)
    if _grants(plan, action):
        return Rule.STARTS_NEXT_ROUND
    if pool is None:
        return Rule.NO_NODE_FITS
    if not _is_open(pool, action):
        return Rule.NO_NODE_OPEN
    if not _has_room(snapshot, action, plan):
        return Rule.TASK_AT_QUOTA
    # What is free says nothing of a pod's cores.
    if not policy.has_pods and _fits_beside(snapshot, action, plan):
        return Rule.WAITS_FOR_GANG if action.together else _passed_over(snapshot, action, policy, plan)
    if ahead.priority:
        return Rule.WAITS_BEHIND_PRIORITY
    if ahead.in_task:
        return Rule.WAITS_IN_ORDER
    if ahead.other_tasks:
        return Rule.WAITS_BEHIND_FAIR_SHARE if isinstance(policy, Spar) else Rule.WAITS_IN_ORDER
    return Rule.WAITS_FOR_CAPACITY


def _has_room(snapshot: Snapshot, action: Waiting, plan: Plan) -> bool:
    """Whether its task's quota lets it start beside what runs and what is granted."""
    room, task = snapshot.quotas.room(), action.task
    if room is None:
        return True
    for grant in plan.grants:
        # Of a gang the first one is waiting for all.
        bucket = snapshot.waiting.bucket_of(grant.fence.action_id)
        task = bucket.key.task if bucket is not None else task
        room.count(task, grant.amounts)
    return room.has(action)


def _passed_over(snapshot: Snapshot, action: Waiting, policy: Policy, plan: Plan) -> Rule:
    """Of one that a round does not start though it fits."""
    if not isinstance(policy, Spar):
        return Rule.POSTPONED_FOR_MORE_CORES
    if len(plan.grants) >= policy.limit:
        return Rule.STARTS_NEXT_ROUND
    if action.cls.shape is Shape.GROUP:
        return Rule.POSTPONED_FOR_MORE_CORES
    hasty = replace(policy, constants=replace(policy.constants, postpone_gain=0.0))
    is_postponed = _grants(hasty.plan(snapshot), action)
    return Rule.POSTPONED_FOR_MORE_CORES if is_postponed else Rule.WAITS_BEHIND_OVERDUE


def _grants(plan: Plan, action: Waiting) -> bool:
    return any(grant.fence.action_id == action.id for grant in plan.grants)


def _fits_beside(snapshot: Snapshot, action: Waiting, plan: Plan) -> bool:
    """Whether it could start at its smallest where these grants are made."""
    granted: dict[int, list[Grant]] = {}
    for grant in plan.grants:
        granted.setdefault(grant.node, []).append(grant)
    pools = {node: _after(snapshot, pool, granted.get(node, [])) for node, pool in snapshot.pools.items()}
    return FreeAmounts.of(pools).take(action, action.cls.demand.minimum) is not None


def _after(snapshot: Snapshot, pool: Pool, grants: list[Grant]) -> Pool:
    free, devices, homes = dict(pool.free), set(pool.free_devices), pool.environments
    for grant in grants:
        bucket = snapshot.waiting.bucket_of(grant.fence.action_id)
        is_at_home = bucket is not None and bucket.key.node is not None
        for resource, amount in (action_part(grant.amounts) if is_at_home else grant.amounts).items():
            free[resource] = free.get(resource, 0) - amount
        devices.difference_update(grant.devices)
        homes += int(bucket is not None and bucket.key.makes_environment)
    return replace(pool, free=free, free_devices=tuple(sorted(devices)), environments=homes)


def _best_pool(snapshot: Snapshot, action: Waiting) -> tuple[Pool | None, bool]:
    """Where it would go or nearly could, and whether any node could ever run it."""
    pools = [pool for pool in snapshot.pools.values() if pool.shape is action.cls.shape]
    home = _home(action)
    if home is not None:
        pools = [pool for pool in pools if pool.node == home]
    needed = _needed(action)
    able = [pool for pool in pools if action.cls.requires <= pool.enforces and fits(needed, pool.capacity)]
    if able:
        is_open = [pool for pool in able if _is_open(pool, action)]
        return min(is_open or able, key=lambda pool: _short_of(needed, pool.free, pool)), True
    return min(pools, key=lambda pool: _short_of(needed, pool.capacity, pool), default=None), False


def _home(action: Waiting) -> int | None:
    """The node where its environment lives."""
    return action.environment.node if action.environment is not None else None


def _is_open(pool: Pool, action: Waiting) -> bool:
    """Whether it may start there; a closed node still serves what lives there."""
    return pool.serving and (pool.accepting or _home(action) is not None)


def _has_room_for_gang(snapshot: Snapshot, action: Waiting) -> bool:
    """Whether the nodes, were they empty, could run all that start with it."""
    pools = {node: pool for node, pool in snapshot.pools.items() if pool.shape is action.cls.shape}
    demands = [
        (each.cls.demand.minimum, [node for node, pool in pools.items() if each.cls.requires <= pool.enforces])
        for each in members_of(action)
    ]
    return not action.together or together_on(demands, {node: pool.capacity for node, pool in pools.items()})


def _short_of(needed: Amounts, available: Amounts, pool: Pool) -> tuple[int, float, int]:
    """How many resources are too few, and by what part of what is needed in all; ties by node."""
    parts = [
        1 - available.get(name, 0) / amount for name, amount in needed.items() if 0 < amount > available.get(name, 0)
    ]
    return (len(parts), sum(parts), pool.node)


def _lacks(action: Waiting, pool: Pool, possible: bool) -> tuple[Lack, ...]:
    available = pool.free if possible else pool.capacity
    return tuple(
        Lack(resource, amount, pool.free.get(resource, 0), pool.capacity.get(resource, 0))
        for resource, amount in _needed(action).items()
        if 0 < amount > available.get(resource, 0)
    )


def _needed(action: Waiting) -> Amounts:
    """What is not held yet: an environment that lives has its memory and disk."""
    return action_part(action.cls.demand.minimum) if _home(action) is not None else action.cls.demand.minimum


def _unenforced(snapshot: Snapshot, cls: ActionClass) -> frozenset[str]:
    return cls.requires.difference(*(pool.enforces for pool in snapshot.pools.values() if pool.shape is cls.shape))


def _ahead(snapshot: Snapshot, action: Waiting, policy: Policy) -> Ahead:
    """As if everybody before it were given the smallest width."""
    is_fair = isinstance(policy, Spar) and action.cls.shape is not Shape.GROUP
    priority = in_task = other_tasks = 0
    for looked_at, (id, task, its) in enumerate(_order(snapshot, action, policy)):
        if id == action.id:
            break
        if looked_at == LOOKED_AT:
            return Ahead(priority=priority, in_task=in_task, other_tasks=other_tasks, at_least=True)
        if its > action.priority and (task == action.task or not is_fair):
            priority += 1
        elif task == action.task:
            in_task += 1
        else:
            other_tasks += 1
    return Ahead(priority=priority, in_task=in_task, other_tasks=other_tasks)


def _order(snapshot: Snapshot, action: Waiting, policy: Policy) -> Iterator[tuple[UUID, int, int]]:
    """Id, task and priority of those that could use what it needs, in the order in which the policy looks at them."""
    buckets = [bucket for bucket in snapshot.waiting.buckets() if _competes(bucket, action)]
    if isinstance(policy, Spar) and action.cls.shape is not Shape.GROUP:
        return _fair_order(snapshot, buckets, policy, action)
    return _plain_order(snapshot, buckets, policy)


def _competes(bucket: Bucket, action: Waiting) -> bool:
    home = _home(action)
    return bucket.cls.shape is action.cls.shape and (home is None or bucket.key.node in (home, None))


def _fair_order(
    snapshot: Snapshot, buckets: list[Bucket], policy: Spar, action: Waiting
) -> Iterator[tuple[UUID, int, int]]:
    """Without those that a quota holds back; of one that is held back itself, all."""
    room = snapshot.quotas.room()
    room = room if room is None or room.has(action) else None
    total = Loads(snapshot).total
    shares_s = {bucket.cls.key: _share_s(snapshot, bucket.cls, total) for bucket in buckets}
    tasks: dict[int, list[Bucket]] = {}
    for bucket in buckets:
        tasks.setdefault(bucket.key.task, []).append(bucket)
    walk = fair_walk(snapshot, tasks, policy.constants, room)
    while (head := walk.head) is not None:
        yield head.id, head.task, head.priority
        walk.advance(shares_s[head.cls.key])


def _share_s(snapshot: Snapshot, cls: ActionClass, total: Amounts) -> float:
    """Seconds of the whole cell that one takes at its smallest."""
    return own_share(cls.demand.minimum, total) * snapshot.curves.of(cls).widths[0].seconds


def _plain_order(snapshot: Snapshot, buckets: list[Bucket], policy: Policy) -> Iterator[tuple[UUID, int, int]]:
    """Arrival; for whole devices with what their tasks had, too."""
    strictness = policy.groups.strictness if isinstance(policy, Spar) else 0.0
    leads = [
        _lead_s(snapshot, bucket.cls, policy) + strictness * snapshot.shares.virtual_s(bucket.key.task)
        for bucket in buckets
    ]
    walk = Walk(buckets, leads)
    while (head := walk.head) is not None:
        yield head.id, head.task, head.priority
        walk.advance()


def _lead_s(snapshot: Snapshot, cls: ActionClass, policy: Policy) -> float:
    """As `Spar` has it; a restore that whole devices may need besides depends on the group and is not in it."""
    if not isinstance(policy, Spar):
        return 0.0
    area_s = snapshot.curves.of(cls).area_s
    if cls.shape is Shape.GROUP:
        return min(policy.groups.lead_limit_s, policy.groups.lead_per_unit_s * area_s)
    return policy.constants.lead_s(area_s)


def _basis(snapshot: Snapshot, cls: ActionClass) -> Basis:
    durations = snapshot.curves.durations
    if not isinstance(durations, Estimates):
        return Basis.DECLARED
    if durations.runs(cls):
        return Basis.LEARNT
    return Basis.POOLED if durations.knows_alike(cls) else Basis.DECLARED


def _runs(snapshot: Snapshot, cls: ActionClass) -> int:
    durations = snapshot.curves.durations
    return durations.runs(cls) if isinstance(durations, Estimates) else 0

"""Explanation of a queued action: missing resources, actions ahead, estimates and the deciding rule.

The next round is computed with the policy, and the queue is walked in the order of the policy.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite
from uuid import UUID

from arl_core.capacity.gangs import all_members, can_gang_fit
from arl_core.capacity.ledger import fits
from arl_core.capacity.node_fitting import NodeFitter
from arl_core.capacity.node_load import LoadCalculator
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.capacity.walltime import can_end_on
from arl_core.domain.model import (
    ActionClass,
    Grant,
    NodeResources,
    QueuedAction,
    Resources,
    ResourceShape,
    SchedulingPlan,
    action_resources,
)
from arl_core.domain.states import EstimateBasis, WaitReason
from arl_core.durations.curves import ParallelismOption
from arl_core.durations.estimates import DurationEstimates
from arl_core.policies.policy import SchedulingPolicy
from arl_core.policies.spar import SparPolicy, fair_cursor
from arl_core.queue.action_bucket import ActionBucket, effective_arrival
from arl_core.queue.fairness import own_share
from arl_core.queue.queue_index import QueueCursor

__all__ = ["MAX_SCANNED", "ActionsAhead", "QueueExplanation", "ResourceShortage", "explain"]

MAX_SCANNED = 5_000
"""Maximum number of queued actions to count; counting blocks the scheduler's loop."""


@dataclass(frozen=True, slots=True)
class ResourceShortage:
    """A resource of which a node has too little free."""

    resource: str
    needed: int
    available: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionsAhead:
    """The number of competing actions ahead in the queue."""

    priority: int = 0
    """Actions with a higher priority."""
    in_task: int = 0
    """Other actions of the same task."""
    other_tasks: int = 0
    is_lower_bound: bool = False
    """True if counting stopped at `MAX_SCANNED` and there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueExplanation:
    """The explanation of a queued action. Amounts are in units of their resources, times in seconds."""

    reason: WaitReason
    node: int | None
    """Node of its environment, else the node that lacks least; None if no node could ever run it."""
    shortages: tuple[ResourceShortage, ...]
    """Shortages on that node; if no node could ever run it, those of the closest node against its capacity."""
    time_limit_s: float
    """Seconds for which it may run."""
    time_left_s: float | None
    """Seconds for which actions may still run on that node; None if the node has no known end."""
    unenforced: frozenset[str]
    """Requirements that no node enforces."""
    ahead: ActionsAhead | None
    """Actions ahead; None if its queue is paused or its environment is busy."""
    effective_arrival: float
    """Time at which it counts as submitted."""
    size_penalty_s: float
    """Seconds added to its arrival in the order of its task, because of its area."""
    debt_s: float
    """Cell-seconds that its task has used more than the queued task with the least use."""
    fair_share: float
    """Fair share of its task among the queued tasks; 0..1."""
    resource: str | None
    """Resource that its degree of parallelism is counted in."""
    min_parallelism: ParallelismOption
    max_parallelism: ParallelismOption
    basis: EstimateBasis
    runs: int
    """Number of runs of its class behind the estimates."""
    backlog_s: float | None
    """Seconds to finish all known work on `node` if spread evenly."""


def explain(
    snapshot: CellSnapshot, action: QueuedAction, policy: SchedulingPolicy, *, blocked_by: WaitReason | None = None
) -> QueueExplanation:
    """Explain a queued action without changing anything; `blocked_by` is the reason if it is not in the snapshot."""
    pool, possible = _closest_node(snapshot, action)
    possible = possible and _can_gang_fit(snapshot, action)
    lacks = _shortages(action, pool, possible) if pool is not None else ()
    ahead = _count_ahead(snapshot, action, policy) if blocked_by is None else None
    curve = snapshot.curves.curve_for(action.cls)
    tasks = {bucket.key.task for bucket in snapshot.queue.buckets()} | {action.task}
    least_s = min(map(snapshot.shares.virtual_s, tasks))
    node = pool.node if pool is not None and possible else None
    loads = LoadCalculator(snapshot)
    return QueueExplanation(
        reason=blocked_by
        or _wait_reason(snapshot, action, policy, pool=pool if possible else None, ahead=ahead or ActionsAhead()),
        node=node,
        shortages=lacks,
        time_limit_s=action.cls.time_limit_s,
        time_left_s=pool.time_left_s if node is not None and pool is not None and isfinite(pool.time_left_s) else None,
        unenforced=_unenforced(snapshot, action.cls),
        ahead=ahead,
        effective_arrival=effective_arrival(action),
        size_penalty_s=_size_penalty_s(snapshot, action.cls, policy),
        debt_s=snapshot.shares.virtual_s(action.task) - least_s,
        fair_share=snapshot.shares.effective_weight(action.task) / sum(map(snapshot.shares.effective_weight, tasks)),
        resource=curve.resource,
        min_parallelism=curve.options[0],
        max_parallelism=curve.options[-1],
        basis=_estimate_basis(snapshot, action.cls),
        runs=_run_count(snapshot, action.cls),
        backlog_s=loads.backlog_s(node, curve.resource, stop_above_s=float("inf")) if node is not None else None,
    )


def _wait_reason(
    snapshot: CellSnapshot,
    action: QueuedAction,
    policy: SchedulingPolicy,
    *,
    pool: NodeResources | None,
    ahead: ActionsAhead,
) -> WaitReason:
    """Return the first reason that applies; `pool` is the target node, None if no node could ever run the action."""
    plan = policy.plan(snapshot)
    if _is_granted(plan, action):
        return WaitReason.STARTS_NEXT_ROUND
    if pool is None:
        return WaitReason.NO_NODE_FITS
    if not _can_start_on(pool, action):
        return WaitReason.NODES_END_TOO_SOON if _is_open_for(pool, action) else WaitReason.NO_SCHEDULABLE_NODE
    if not _has_room(snapshot, action, plan):
        return WaitReason.TASK_AT_QUOTA
    # Free amounts say nothing about the cores of a pod.
    if not policy.has_pods and _fits_after_plan(snapshot, action, plan):
        return WaitReason.WAITS_FOR_GANG if action.gang_members else _skip_reason(snapshot, action, policy, plan)
    if ahead.priority:
        return WaitReason.WAITS_BEHIND_PRIORITY
    if ahead.in_task:
        return WaitReason.WAITS_IN_ORDER
    if ahead.other_tasks:
        return WaitReason.WAITS_BEHIND_FAIR_SHARE if isinstance(policy, SparPolicy) else WaitReason.WAITS_IN_ORDER
    return WaitReason.WAITS_FOR_CAPACITY


def _has_room(snapshot: CellSnapshot, action: QueuedAction, plan: SchedulingPlan) -> bool:
    """Return True if the quota of its task allows the action in addition to running and granted actions."""
    room, task = snapshot.quotas.room(), action.task
    if room is None:
        return True
    for grant in plan.grants:
        # Only the first action of a gang is in the queue.
        bucket = snapshot.queue.bucket_of(grant.fence.action_id)
        task = bucket.key.task if bucket is not None else task
        room.consume_resources(task, grant.resources)
    return room.has_room(action)


def _skip_reason(
    snapshot: CellSnapshot, action: QueuedAction, policy: SchedulingPolicy, plan: SchedulingPlan
) -> WaitReason:
    """Return the reason for which a round does not start an action that fits."""
    if not isinstance(policy, SparPolicy):
        return WaitReason.POSTPONED_FOR_MORE_CORES
    if len(plan.grants) >= policy.limit:
        return WaitReason.STARTS_NEXT_ROUND
    if action.cls.shape is ResourceShape.GROUP:
        return WaitReason.POSTPONED_FOR_MORE_CORES
    hasty = replace(policy, constants=replace(policy.constants, postpone_gain=0.0))
    is_postponed = _is_granted(hasty.plan(snapshot), action)
    return WaitReason.POSTPONED_FOR_MORE_CORES if is_postponed else WaitReason.WAITS_BEHIND_RESERVATION


def _is_granted(plan: SchedulingPlan, action: QueuedAction) -> bool:
    return any(grant.fence.action_id == action.id for grant in plan.grants)


def _fits_after_plan(snapshot: CellSnapshot, action: QueuedAction, plan: SchedulingPlan) -> bool:
    """Return True if the action would still fit at its minimum after the grants of the plan."""
    granted: dict[int, list[Grant]] = {}
    for grant in plan.grants:
        granted.setdefault(grant.node, []).append(grant)
    pools = {node: _apply_grants(snapshot, pool, granted.get(node, [])) for node, pool in snapshot.nodes.items()}
    return NodeFitter.from_nodes(pools).allocate(action, action.cls.demand.minimum) is not None


def _apply_grants(snapshot: CellSnapshot, pool: NodeResources, grants: list[Grant]) -> NodeResources:
    free, devices, homes = dict(pool.available), set(pool.available_devices), pool.environments
    for grant in grants:
        bucket = snapshot.queue.bucket_of(grant.fence.action_id)
        is_at_home = bucket is not None and bucket.key.node is not None
        for resource, amount in (action_resources(grant.resources) if is_at_home else grant.resources).items():
            free[resource] = free.get(resource, 0) - amount
        devices.difference_update(grant.devices)
        homes += int(bucket is not None and bucket.key.makes_environment)
    return replace(pool, available=free, available_devices=tuple(sorted(devices)), environments=homes)


def _closest_node(snapshot: CellSnapshot, action: QueuedAction) -> tuple[NodeResources | None, bool]:
    """Return the node that fits the action or lacks least, and True if any node could ever run it."""
    pools = [pool for pool in snapshot.nodes.values() if pool.shape is action.cls.shape]
    home = _environment_node(action)
    if home is not None:
        pools = [pool for pool in pools if pool.node == home]
    needed = _needed_resources(action)
    able = [pool for pool in pools if action.cls.requires <= pool.enforced and fits(needed, pool.capacity)]
    if able:
        may_start = [pool for pool in able if _can_start_on(pool, action)]
        is_open = [pool for pool in able if _is_open_for(pool, action)]
        if is_open and not may_start:
            return max(is_open, key=lambda pool: (pool.time_left_s, -pool.node)), True
        return min(may_start or able, key=lambda pool: _shortage_rank(needed, pool.available, pool)), True
    return min(pools, key=lambda pool: _shortage_rank(needed, pool.capacity, pool), default=None), False


def _environment_node(action: QueuedAction) -> int | None:
    """Return the node of the action's environment."""
    return action.environment.node if action.environment is not None else None


def _can_start_on(pool: NodeResources, action: QueuedAction) -> bool:
    """Return True if the action may start on the node and would reach its time limit before the node ends."""
    return _is_open_for(pool, action) and can_end_on(action.cls, pool)


def _is_open_for(pool: NodeResources, action: QueuedAction) -> bool:
    """Return True if the node accepts the action; an unschedulable node still serves its environments."""
    return pool.is_serving and (pool.is_schedulable or _environment_node(action) is not None)


def _can_gang_fit(snapshot: CellSnapshot, action: QueuedAction) -> bool:
    """Return True if the nodes, when empty, could run the whole gang."""
    pools = {node: pool for node, pool in snapshot.nodes.items() if pool.shape is action.cls.shape}
    demands = [
        (each.cls.demand.minimum, [node for node, pool in pools.items() if each.cls.requires <= pool.enforced])
        for each in all_members(action)
    ]
    return not action.gang_members or can_gang_fit(demands, {node: pool.capacity for node, pool in pools.items()})


def _shortage_rank(needed: Resources, available: Resources, pool: NodeResources) -> tuple[int, float, int]:
    """Return the number of missing resources and the sum of missing fractions; ties are broken by node."""
    parts = [
        1 - available.get(name, 0) / amount for name, amount in needed.items() if 0 < amount > available.get(name, 0)
    ]
    return (len(parts), sum(parts), pool.node)


def _shortages(action: QueuedAction, pool: NodeResources, is_possible: bool) -> tuple[ResourceShortage, ...]:
    available = pool.available if is_possible else pool.capacity
    return tuple(
        ResourceShortage(resource, amount, pool.available.get(resource, 0), pool.capacity.get(resource, 0))
        for resource, amount in _needed_resources(action).items()
        if 0 < amount > available.get(resource, 0)
    )


def _needed_resources(action: QueuedAction) -> Resources:
    """Return the amounts not yet allocated; an existing environment already has its memory and disk."""
    return (
        action_resources(action.cls.demand.minimum)
        if _environment_node(action) is not None
        else action.cls.demand.minimum
    )


def _unenforced(snapshot: CellSnapshot, cls: ActionClass) -> frozenset[str]:
    return cls.requires.difference(*(pool.enforced for pool in snapshot.nodes.values() if pool.shape is cls.shape))


def _count_ahead(snapshot: CellSnapshot, action: QueuedAction, policy: SchedulingPolicy) -> ActionsAhead:
    """Count the actions ahead as if each got its minimum."""
    is_fair = isinstance(policy, SparPolicy) and action.cls.shape is not ResourceShape.GROUP
    priority = in_task = other_tasks = 0
    for looked_at, (id, task, its) in enumerate(_queue_order(snapshot, action, policy)):
        if id == action.id:
            break
        if looked_at == MAX_SCANNED:
            return ActionsAhead(priority=priority, in_task=in_task, other_tasks=other_tasks, is_lower_bound=True)
        if its > action.priority and (task == action.task or not is_fair):
            priority += 1
        elif task == action.task:
            in_task += 1
        else:
            other_tasks += 1
    return ActionsAhead(priority=priority, in_task=in_task, other_tasks=other_tasks)


def _queue_order(
    snapshot: CellSnapshot, action: QueuedAction, policy: SchedulingPolicy
) -> Iterator[tuple[UUID, int, int]]:
    """Yield id, task and priority of the competing actions in the policy's order."""
    buckets = [bucket for bucket in snapshot.queue.buckets() if _is_competing(bucket, action)]
    if isinstance(policy, SparPolicy) and action.cls.shape is not ResourceShape.GROUP:
        return _fair_order(snapshot, buckets, policy, action)
    return _plain_order(snapshot, buckets, policy)


def _is_competing(bucket: ActionBucket, action: QueuedAction) -> bool:
    home = _environment_node(action)
    return bucket.cls.shape is action.cls.shape and (home is None or bucket.key.node in (home, None))


def _fair_order(
    snapshot: CellSnapshot, buckets: list[ActionBucket], policy: SparPolicy, action: QueuedAction
) -> Iterator[tuple[UUID, int, int]]:
    """Yield actions in fair order, without those blocked by a quota.

    If the quota blocks the action itself, yield all actions.
    """
    room = snapshot.quotas.room()
    room = room if room is None or room.has_room(action) else None
    total = LoadCalculator(snapshot).total
    shares_s = {bucket.cls.key: _share_s(snapshot, bucket.cls, total) for bucket in buckets}
    tasks: dict[int, list[ActionBucket]] = {}
    for bucket in buckets:
        tasks.setdefault(bucket.key.task, []).append(bucket)
    walk = fair_cursor(snapshot, tasks, policy.constants, room)
    while (head := walk.head) is not None:
        yield head.id, head.task, head.priority
        walk.advance(shares_s[head.cls.key])


def _share_s(snapshot: CellSnapshot, cls: ActionClass, total: Resources) -> float:
    """Return the cell-seconds that one action takes at its minimum."""
    return own_share(cls.demand.minimum, total) * snapshot.curves.curve_for(cls).options[0].seconds


def _plain_order(
    snapshot: CellSnapshot, buckets: list[ActionBucket], policy: SchedulingPolicy
) -> Iterator[tuple[UUID, int, int]]:
    """Yield actions in order of arrival; for device groups, also weighted by the past use of their tasks."""
    strictness = policy.groups.strictness if isinstance(policy, SparPolicy) else 0.0
    leads = [
        _size_penalty_s(snapshot, bucket.cls, policy) + strictness * snapshot.shares.virtual_s(bucket.key.task)
        for bucket in buckets
    ]
    walk = QueueCursor(buckets, leads)
    while (head := walk.head) is not None:
        yield head.id, head.task, head.priority
        walk.advance()


def _size_penalty_s(snapshot: CellSnapshot, cls: ActionClass, policy: SchedulingPolicy) -> float:
    """Return the size penalty of SPAR; for device groups without the restore, which depends on the group."""
    if not isinstance(policy, SparPolicy):
        return 0.0
    area_s = snapshot.curves.curve_for(cls).area_s
    if cls.shape is ResourceShape.GROUP:
        return min(policy.groups.size_penalty_limit_s, policy.groups.size_penalty_per_unit_s * area_s)
    return policy.constants.size_penalty_s(area_s)


def _estimate_basis(snapshot: CellSnapshot, cls: ActionClass) -> EstimateBasis:
    durations = snapshot.curves.durations
    if not isinstance(durations, DurationEstimates):
        return EstimateBasis.DECLARED
    if durations.run_count(cls):
        return EstimateBasis.LEARNT
    return EstimateBasis.POOLED if durations.has_pooled_estimate(cls) else EstimateBasis.DECLARED


def _run_count(snapshot: CellSnapshot, cls: ActionClass) -> int:
    durations = snapshot.curves.durations
    return durations.run_count(cls) if isinstance(durations, DurationEstimates) else 0

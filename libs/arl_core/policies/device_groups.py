"""SPAR on device groups: shortest area first, including the action's part of restores and evictions.

Order: arrival plus a size penalty that grows with the area up to a limit. Group: own time against the time that its
devices would save the queued actions. If a group with the action's service becomes free soon enough, the action waits
for it instead of restoring the service elsewhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from arl_core.capacity.device_groups import DEVICE_RESOURCE, DeviceGroup, DeviceGroupFitter, parallelism_degrees
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import ActionClass, Grant, QueuedAction, ResidentService, ResourceShape, action_resources
from arl_core.queue.action_bucket import ActionBucket, effective_arrival
from arl_core.queue.fairness import dominant_share
from arl_core.queue.quotas import QuotaRoom

__all__ = ["GroupConstants", "grant_device_groups"]

_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConstants:
    """The constants of the policy, found by simulation (docs/decisions/0021); results change little around them."""

    size_penalty_limit_s: float = 300.0
    """Seconds after which a later arrival of the same task and priority cannot overtake."""
    size_penalty_per_unit_s: float = 30.0
    """Seconds of size penalty per device-second of the action."""
    price_factor: float = 1.0
    """Seconds of delay that a device-second costs each action that waits for a device."""
    strictness: float = 5.0
    """Seconds of waiting per second of all devices that a task has used more than another."""
    max_restore_sharers: int = 4
    """Maximum number of queued actions that share the cost of a restore; the others may run elsewhere."""
    restore_patience: float = 0.5
    """Fraction of the restore cost to others that an action waits for a group with its service."""
    demand_half_life_s: float = 60.0
    """Seconds unused after which the expected need for a service without queued actions halves."""


@dataclass(frozen=True, slots=True)
class _GroupOption:
    """The next action of a bucket on one group."""

    cursor: "_BucketCursor"
    action: QueuedAction
    group: DeviceGroup
    run_s: float
    area_s: float
    """Device-seconds, including its parts of the restore and of the restores that the eviction causes."""
    cost_s: float
    """Own time plus the delay to others, in seconds."""


def grant_device_groups(
    snapshot: CellSnapshot, *, limit: int, constants: GroupConstants, room: QuotaRoom | None = None
) -> list[Grant]:
    """Return the grants of one round to actions that need devices, within `limit` and the quotas."""
    if not snapshot.queue.on_devices():
        return []
    return _DeviceRound(snapshot, constants, room).plan(limit)


class _BucketCursor:
    """The actions of one bucket that have no grant yet."""

    def __init__(self, bucket: ActionBucket) -> None:
        self.cls = bucket.cls
        self.priority = bucket.key.priority
        self._actions: Iterator[QueuedAction] = iter(bucket)
        self.head = next(self._actions, None)

    def advance(self) -> None:
        """Move to the next action of the bucket; the head becomes None at the end."""
        self.head = next(self._actions, None)


class _DeviceRound:
    def __init__(self, snapshot: CellSnapshot, constants: GroupConstants, room: QuotaRoom | None) -> None:
        self._snapshot, self._constants, self._room = snapshot, constants, room
        self._fitter = DeviceGroupFitter(snapshot.nodes)
        buckets = [bucket for bucket in snapshot.queue.on_devices() if bucket.key.node is None]
        self._cursors = [_BucketCursor(bucket) for bucket in buckets]
        self._queued = sum(map(len, buckets))
        self._queued_by_service: dict[str, int] = {}
        for bucket in buckets:
            service = _service_name(bucket.cls)
            self._queued_by_service[service] = self._queued_by_service.get(service, 0) + len(bucket)
        groups = [pool for pool in snapshot.nodes.values() if pool.shape is ResourceShape.GROUP]
        self._total = {DEVICE_RESOURCE: max(1, sum(pool.capacity.get(DEVICE_RESOURCE, 0) for pool in groups))}
        self._charged: dict[int, float] = {}

    def plan(self, limit: int) -> list[Grant]:
        """Grant actions one by one, each time the one with the best rank, until none fits or `limit` is reached."""
        grants: list[Grant] = []
        lines = list(filter(self._can_start, self._cursors))
        while lines and self._fitter.available_count and len(grants) < limit:
            options = [option for line in lines if (option := self._best_option(line)) is not None]
            if not options:
                break
            option = min(options, key=self._rank)
            if self._should_wait(option):
                lines.remove(option.cursor)
                continue
            grants.append(self._grant(option))
            lines = list(filter(self._can_start, lines))
        return grants

    def _can_start(self, cursor: _BucketCursor) -> bool:
        return cursor.head is not None and (self._room is None or self._room.has_room(cursor.head))

    def _grant(self, option: _GroupOption) -> Grant:
        action = option.action
        grant = self._fitter.grant_group(action, option.group)
        if self._room is not None:
            self._room.consume(action)
        option.cursor.advance()
        self._queued -= 1
        self._queued_by_service[_service_name(action.cls)] -= 1
        share_s = dominant_share(action_resources(grant.resources), self._total) * option.run_s
        paid = self._charged.get(action.task, 0.0)
        self._charged[action.task] = paid + self._snapshot.shares.weighted_cost_s(action.task, share_s)
        return grant

    def _rank(self, option: _GroupOption) -> tuple[int, float, UUID]:
        constants, task = self._constants, option.action.task
        lead_s = min(constants.size_penalty_limit_s, constants.size_penalty_per_unit_s * option.area_s)
        debt_s = constants.strictness * (self._snapshot.shares.virtual_s(task) + self._charged.get(task, 0.0))
        return (-option.cursor.priority, effective_arrival(option.action) + lead_s + debt_s, option.action.id)

    def _best_option(self, cursor: _BucketCursor) -> _GroupOption | None:
        action = cursor.head
        if action is None:
            return None
        options = (
            self._make_option(cursor, action, group)
            for count in parallelism_degrees(action.cls)
            for group in self._fitter.groups_of_size(action.cls, count)
        )
        return min(options, key=_cost_rank, default=None)

    def _make_option(self, cursor: _BucketCursor, action: QueuedAction, group: DeviceGroup) -> _GroupOption:
        devices = len(group.devices)
        amounts = {**action.cls.demand.minimum, DEVICE_RESOURCE: devices}
        run_s = self._snapshot.curves.expected_s(action.cls, amounts)
        area_s = devices * run_s + self._restore_area_s(action.cls, group)
        cost_s = group.restore_s + run_s + self._price * area_s
        return _GroupOption(cursor, action, group, run_s, area_s, cost_s)

    @property
    def _price(self) -> float:
        return self._constants.price_factor * max(0, self._queued - 1) / self._total[DEVICE_RESOURCE]

    def _restore_area_s(self, cls: ActionClass, group: DeviceGroup) -> float:
        """Return the device-seconds that a restore takes from others, including later restores of evicted services."""
        if not group.restore_s:
            return 0.0
        missed_s = sum(self._reload_cost_s(resident) for resident in group.evicted)
        return len(group.devices) * (group.restore_s / self._restore_sharers(_service_name(cls)) + missed_s)

    def _reload_cost_s(self, resident: ResidentService) -> float:
        again_s = resident.service.restore_s(len(resident.devices))
        if self._queued_by_service.get(resident.service.name, 0):
            return again_s / self._restore_sharers(resident.service.name)
        unused_s = self._snapshot.now - resident.used_at
        return float(again_s * 0.5 ** (unused_s / self._constants.demand_half_life_s))

    def _restore_sharers(self, service: str) -> int:
        return max(1, min(self._queued_by_service.get(service, 0), self._constants.max_restore_sharers))

    def _should_wait(self, option: _GroupOption) -> bool:
        """Return True if waiting pays off for a busy group with the service that is at least as large."""
        if not option.group.restore_s:
            return False
        others_s = self._price * self._restore_area_s(option.action.cls, option.group)
        return self._available_in_s(option) < option.group.restore_s + self._constants.restore_patience * others_s

    def _available_in_s(self, option: _GroupOption) -> float:
        service, least = _service_name(option.action.cls), len(option.group.devices)
        return min(
            (
                self._snapshot.curves.remaining_s(running)
                for node, pool in self._snapshot.nodes.items()
                if pool.shape is ResourceShape.GROUP
                for running in self._snapshot.running.on_node(node).values()
                if running.cls is not None
                and _service_name(running.cls) == service
                and running.resources.get(DEVICE_RESOURCE, 0) >= least
            ),
            default=_NEVER,
        )


def _cost_rank(option: _GroupOption) -> tuple[float, float, int, tuple[int, ...]]:
    return (option.cost_s, option.area_s, option.group.node, option.group.devices)


def _service_name(cls: ActionClass) -> str:
    return cls.service.name if cls.service is not None else ""

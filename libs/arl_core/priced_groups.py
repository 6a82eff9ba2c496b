"""SPAR on groups of devices: shortest area first, its part of what has to be restored and evicted included.

Order: when an action came, plus a lead that grows with its area up to a limit. Group: own time against the time that
its devices would save those who wait. And where one with the action's service frees so soon that nobody gains by
another restore, the action waits for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from arl_core.fairness import dominant_share
from arl_core.groups import DEVICES, FreeGroups, Group, degrees_of
from arl_core.model import ActionClass, Grant, Resident, Shape, Waiting, action_part
from arl_core.quotas import Room
from arl_core.snapshot import Snapshot
from arl_core.waiting import Bucket, came

__all__ = ["GroupConstants", "priced_groups"]

_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConstants:
    """Found by simulation (README, Decisions); results are flat around them."""

    lead_limit_s: float = 300.0
    """Nothing is overtaken, inside its task and priority, by what came so much later."""
    lead_per_unit_s: float = 30.0
    """How far behind others an action goes for each device-second of its own."""
    price_factor: float = 1.0
    """What a device-second costs, in seconds, for each action that waits for a device."""
    strictness: float = 5.0
    """What a second of all devices that a task had more than another counts, in seconds of waiting."""
    sharing: int = 4
    """So many waiting actions of a service share what its restore costs, at most: more may come to be elsewhere."""
    patience: float = 0.5
    """The part of what a restore would cost the others that an action waits for a group with its service."""
    forgotten_s: float = 60.0
    """After so long unused, a service that nobody waits for is half as likely to be missed."""


@dataclass(frozen=True, slots=True)
class _Option:
    """The next action of a line on one group."""

    line: "_Line"
    action: Waiting
    group: Group
    run_s: float
    area_s: float
    """Device-seconds, its parts of the restore and of those that follow from it included."""
    cost_s: float
    """Its own time and the others'."""


def priced_groups(
    snapshot: Snapshot, *, limit: int, constants: GroupConstants, room: Room | None = None
) -> list[Grant]:
    """Grants of one round to actions that need devices; at most `limit`, and what quotas have room for."""
    if not snapshot.waiting.on_devices():
        return []
    return _Round(snapshot, constants, room).plan(limit)


class _Line:
    """Those of one bucket that have no grant yet."""

    def __init__(self, bucket: Bucket) -> None:
        self.cls = bucket.cls
        self.priority = bucket.key.priority
        self._actions: Iterator[Waiting] = iter(bucket)
        self.head = next(self._actions, None)

    def advance(self) -> None:
        self.head = next(self._actions, None)


class _Round:
    def __init__(self, snapshot: Snapshot, constants: GroupConstants, room: Room | None) -> None:
        self._snapshot, self._constants, self._room = snapshot, constants, room
        self._free = FreeGroups(snapshot.pools)
        buckets = [bucket for bucket in snapshot.waiting.on_devices() if bucket.key.node is None]
        self._lines = [_Line(bucket) for bucket in buckets]
        self._waiting = sum(map(len, buckets))
        self._wanted: dict[str, int] = {}
        for bucket in buckets:
            service = _service_of(bucket.cls)
            self._wanted[service] = self._wanted.get(service, 0) + len(bucket)
        groups = [pool for pool in snapshot.pools.values() if pool.shape is Shape.GROUP]
        self._total = {DEVICES: max(1, sum(pool.capacity.get(DEVICES, 0) for pool in groups))}
        self._paid: dict[int, float] = {}

    def plan(self, limit: int) -> list[Grant]:
        grants: list[Grant] = []
        lines = list(filter(self._may_start, self._lines))
        while lines and self._free.count and len(grants) < limit:
            options = [option for line in lines if (option := self._best(line)) is not None]
            if not options:
                break
            option = min(options, key=self._rank)
            if self._is_better_off_waiting(option):
                lines.remove(option.line)
                continue
            grants.append(self._take(option))
            lines = list(filter(self._may_start, lines))
        return grants

    def _may_start(self, line: _Line) -> bool:
        return line.head is not None and (self._room is None or self._room.has(line.head))

    def _take(self, option: _Option) -> Grant:
        action = option.action
        grant = self._free.take(action, option.group)
        if self._room is not None:
            self._room.take(action)
        option.line.advance()
        self._waiting -= 1
        self._wanted[_service_of(action.cls)] -= 1
        share_s = dominant_share(action_part(grant.amounts), self._total) * option.run_s
        paid = self._paid.get(action.task, 0.0)
        self._paid[action.task] = paid + self._snapshot.shares.cost(action.task, share_s)
        return grant

    def _rank(self, option: _Option) -> tuple[int, float, UUID]:
        constants, task = self._constants, option.action.task
        lead_s = min(constants.lead_limit_s, constants.lead_per_unit_s * option.area_s)
        debt_s = constants.strictness * (self._snapshot.shares.virtual_s(task) + self._paid.get(task, 0.0))
        return (-option.line.priority, came(option.action) + lead_s + debt_s, option.action.id)

    def _best(self, line: _Line) -> _Option | None:
        action = line.head
        if action is None:
            return None
        options = (
            self._option(line, action, group)
            for count in degrees_of(action.cls)
            for group in self._free.of_size(action.cls, count)
        )
        return min(options, key=_cheapest, default=None)

    def _option(self, line: _Line, action: Waiting, group: Group) -> _Option:
        devices = len(group.devices)
        amounts = {**action.cls.demand.minimum, DEVICES: devices}
        run_s = self._snapshot.curves.expected_s(action.cls, amounts)
        area_s = devices * run_s + self._restore_area_s(action.cls, group)
        cost_s = group.restore_s + run_s + self._price * area_s
        return _Option(line, action, group, run_s, area_s, cost_s)

    @property
    def _price(self) -> float:
        return self._constants.price_factor * max(0, self._waiting - 1) / self._total[DEVICES]

    def _restore_area_s(self, cls: ActionClass, group: Group) -> float:
        """What a restore takes from others: the devices for that time, and the services that have to come back."""
        if not group.restore_s:
            return 0.0
        missed_s = sum(self._missed_s(resident) for resident in group.evicts)
        return len(group.devices) * (group.restore_s / self._sharers(_service_of(cls)) + missed_s)

    def _missed_s(self, resident: Resident) -> float:
        again_s = resident.service.restore_s(len(resident.devices))
        if self._wanted.get(resident.service.name, 0):
            return again_s / self._sharers(resident.service.name)
        unused_s = self._snapshot.now - resident.used_at
        return float(again_s * 0.5 ** (unused_s / self._constants.forgotten_s))

    def _sharers(self, service: str) -> int:
        return max(1, min(self._wanted.get(service, 0), self._constants.sharing))

    def _is_better_off_waiting(self, option: _Option) -> bool:
        """For one of the groups that have its service and are in use, at least as wide as this one."""
        if not option.group.restore_s:
            return False
        others_s = self._price * self._restore_area_s(option.action.cls, option.group)
        return self._frees_in_s(option) < option.group.restore_s + self._constants.patience * others_s

    def _frees_in_s(self, option: _Option) -> float:
        service, least = _service_of(option.action.cls), len(option.group.devices)
        return min(
            (
                self._snapshot.curves.remaining_s(running)
                for node, pool in self._snapshot.pools.items()
                if pool.shape is Shape.GROUP
                for running in self._snapshot.running.on(node).values()
                if running.cls is not None
                and _service_of(running.cls) == service
                and running.amounts.get(DEVICES, 0) >= least
            ),
            default=_NEVER,
        )


def _cheapest(option: _Option) -> tuple[float, float, int, tuple[int, ...]]:
    return (option.cost_s, option.area_s, option.group.node, option.group.devices)


def _service_of(cls: ActionClass) -> str:
    return cls.service.name if cls.service is not None else ""

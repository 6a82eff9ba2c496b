"""What the scheduler would know, kept event by event as its index keeps it: who waits, who holds what and where."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from uuid import UUID

from arl_core.accounts import Accounts
from arl_core.curves import Curves, Durations
from arl_core.fairness import total_amounts
from arl_core.fence import Fence
from arl_core.ledger import Ledger, fits
from arl_core.model import (
    ActionClass,
    Amounts,
    Environment,
    Grant,
    Plan,
    Pod,
    Pool,
    Resident,
    Running,
    Shape,
    TrajectoryName,
    Waiting,
)
from arl_core.plan import Policy
from arl_core.running import RunningIndex
from arl_core.snapshot import Snapshot
from arl_core.waiting import WaitingIndex

__all__ = ["Books", "Overbooked"]


class Overbooked(AssertionError):
    """A policy gave more than there is."""


@dataclass(slots=True)
class _Home:
    environment: UUID
    node: int | None = None
    busy: bool = False


class Books:
    """Raises `Overbooked` at whatever would hold more than its node has, on any resource."""

    def __init__(self, policy: Policy, pools: Iterable[Pool], estimates: Durations) -> None:
        self._policy = policy
        self._curves = Curves(estimates)
        self._accounts = Accounts()
        self._pools = {pool.node: pool for pool in pools}
        self._ledger = Ledger()
        for node, pool in self._pools.items():
            self._ledger.set_capacity(node, pool.capacity)
        self._accounts.total = total_amounts(pool.capacity for pool in self._pools.values())
        self._stale: set[int] = set()
        self._waiting = WaitingIndex()
        self._queued: dict[UUID, Waiting] = {}
        self._running = RunningIndex()
        self._devices: dict[UUID, tuple[int, ...]] = {}
        self._homes: dict[TrajectoryName, _Home] = {}
        self._lived_in: dict[UUID, TrajectoryName] = {}
        self._pods: dict[TrajectoryName, Pod] = {}

    @property
    def waiting(self) -> int:
        return len(self._queued)

    def capacity(self, node: int) -> Amounts:
        return self._pools[node].capacity

    def queued(self, action_id: UUID) -> Waiting:
        return self._queued[action_id]

    def held(self, node: int, action_id: UUID) -> Amounts | None:
        """What a running action holds by its last grant or resize; None if it does not run."""
        running = self._running.on(node).get(action_id)
        return running.amounts if running is not None else None

    def submit(self, action: Waiting, *, environment: UUID | None) -> None:
        """`environment` names the one it runs in; made by the first action that is granted in it."""
        if environment is not None and action.trajectory is not None:
            home = self._homes.setdefault(action.trajectory, _Home(environment))
            self._lived_in[action.id] = action.trajectory
            action = action._replace(environment=Environment(environment, home.node))
        self._queued[action.id] = action
        self._waiting.add(action)
        self._accounts.began(action.task, action.cls.demand.minimum)

    def grant(self, grant: Grant, *, now: float) -> bool:
        """Whether its service was resident on the granted devices already, where it is one of devices."""
        action = self._queued.pop(grant.fence.action_id)
        self._waiting.discard(action.id)
        name = self._lived_in.get(action.id)
        held = self._policy.action_holds(grant.amounts, at_home=name is not None, in_pod=False)
        self._take(action.id, grant.node, held)
        if name is not None:
            self._move_in(self._homes[name], grant)
            self._pods[name] = Pod(grant.node, busy=True)
        running = Running(
            fence=grant.fence,
            cls=action.cls,
            node=grant.node,
            amounts=grant.amounts,
            granted=now,
            task=action.task,
            started=now,
            since=now,
            at_home=name is not None,
        )
        self._running.add(running)
        share_s = self._curves.share_s(action.cls, grant.amounts, self._accounts.total)
        self._accounts.granted(action.id, action.task, share_s, grant.amounts)
        return self._occupy(grant, action, now=now) if action.cls.shape is Shape.GROUP else True

    def begin_resize(self, fence: Fence, node: int, amounts: Amounts) -> None:
        """Until it is confirmed the action holds the larger of both."""
        running = self._running.on(node)[fence.action_id]
        larger = {name: max(amount, running.amounts.get(name, 0)) for name, amount in amounts.items()}
        self._hold(running, larger)
        self._running.add(running._replace(changing_to=amounts))

    def end_resize(self, fence: Fence, node: int, *, now: float) -> None:
        """From now on it holds what it was to have."""
        running = self._running.on(node)[fence.action_id]
        if running.changing_to is None or running.cls is None:
            return
        worked = (now - running.since) / max(_LEAST_S, self._curves.expected_s(running.cls, running.amounts))
        left = max(0.0, running.left - worked)
        running = running._replace(amounts=running.changing_to, changing_to=None, since=now, left=left)
        self._hold(running, running.amounts)
        self._running.add(running)

    def release(self, node: int, action_id: UUID, *, now: float) -> None:
        """It ended. Its environment stays."""
        running = self._running.on(node)[action_id]
        self._running.discard(action_id)
        self._settle_share(running, now)
        self._ledger.release(action_id)
        self._stale.add(node)
        name = self._lived_in.pop(action_id, None)
        if name is not None:
            self._homes[name].busy = False
            self._pods[name] = Pod(node, busy=False)
        devices = self._devices.pop(action_id, ())
        if devices:
            pool = self._pools[node]
            free = tuple(sorted(pool.free_devices + devices))
            resident = tuple(replace(r, used_at=now) if r.devices == devices else r for r in pool.resident)
            self._pools[node] = replace(pool, free_devices=free, resident=resident)

    def end_environment(self, name: TrajectoryName) -> None:
        home = self._homes.pop(name, None)
        self._pods.pop(name, None)
        if home is not None and home.node is not None:
            self._ledger.release(home.environment)
            pool = self._pools[home.node]
            self._pools[home.node] = replace(pool, environments=pool.environments - 1)
            self._stale.add(home.node)

    def learnt(self, cls: ActionClass) -> None:
        """What is expected of its actions may have changed."""
        self._curves.learnt(cls.key)

    def plan(self, policy: Policy, *, now: float) -> Plan:
        """One round."""
        plan = policy.plan(self.snapshot(now=now))
        self._running.calm(but=plan.watched, reserved=plan.reserved)
        return plan

    def snapshot(self, *, now: float) -> Snapshot:
        self._curves.now = now
        for node in self._stale:
            self._pools[node] = replace(self._pools[node], free=self._ledger.free(node))
        self._stale.clear()
        return Snapshot(
            now=now,
            waiting=self._waiting,
            pools=self._pools,
            running=self._running,
            pods=self._pods if self._policy.has_pods else {},
            curves=self._curves,
            shares=self._accounts.shares,
            total=self._accounts.total,
        )

    def _take(self, holder: UUID, node: int, amounts: Amounts) -> None:
        self._ledger.release(holder)
        if not fits(amounts, self._ledger.free(node)):
            raise Overbooked(f"node {node} has {self._ledger.free(node)} free and is to give {dict(amounts)}")
        self._ledger.take(holder, node, amounts)
        self._stale.add(node)

    def _move_in(self, home: _Home, grant: Grant) -> None:
        if home.busy:
            raise Overbooked(f"two actions at once in environment {home.environment}")
        home.busy = True
        if home.node is None:
            home.node = grant.node
            self._take(home.environment, grant.node, self._policy.environment_holds(grant.amounts))
            pool = self._pools[grant.node]
            self._pools[grant.node] = replace(pool, environments=pool.environments + 1)

    def _occupy(self, grant: Grant, action: Waiting, *, now: float) -> bool:
        """Put the action's service on its devices; what shared one of them is not resident any more."""
        pool = self._pools[grant.node]
        if len(grant.devices) != grant.amounts["gpu"] or not set(grant.devices) <= set(pool.free_devices):
            raise Overbooked(f"devices {grant.devices} are to be given and {pool.free_devices} are free")
        self._devices[action.id] = grant.devices
        free = tuple(device for device in pool.free_devices if device not in grant.devices)
        service = action.cls.service
        if service is None:
            self._pools[grant.node] = replace(pool, free_devices=free)
            return True
        there = any(r.service.name == service.name and r.devices == grant.devices for r in pool.resident)
        others = tuple(r for r in pool.resident if not set(r.devices) & set(grant.devices))
        resident = (*others, Resident(service, grant.devices, used_at=now))
        self._pools[grant.node] = replace(pool, free_devices=free, resident=resident)
        return there

    def _hold(self, running: Running, amounts: Amounts) -> None:
        at_home = running.fence.action_id in self._lived_in
        held = self._policy.action_holds(amounts, at_home=at_home, in_pod=False)
        self._take(running.fence.action_id, running.node, held)

    def _settle_share(self, running: Running, now: float) -> None:
        id, held_s = running.fence.action_id, now - running.granted
        self._accounts.released(id, running.task, running.amounts, held_s=held_s)
        self._accounts.shares.end(running.task)


_LEAST_S = 1e-9

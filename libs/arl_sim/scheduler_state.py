"""Scheduler state updated event by event, like the scheduler's index: queued actions and allocations."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from arl_core.capacity.ledger import ResourceLedger, fits
from arl_core.capacity.running_index import RunningIndex
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import (
    ActionClass,
    Fence,
    Grant,
    NodeResources,
    PinnedEnvironment,
    QueuedAction,
    ResidentService,
    Resources,
    ResourceShape,
    RunningAction,
    SchedulingPlan,
    TrajectoryName,
    TrajectoryPod,
)
from arl_core.durations.curves import CurveCache, DurationModel
from arl_core.durations.shared_demand import CpuUsageModel
from arl_core.policies.policy import SchedulingPolicy
from arl_core.queue.fairness import QueueWeight, ShareAccounting, total_resources
from arl_core.queue.queue_index import QueueIndex
from arl_core.queue.quotas import QuotaUsage, TaskQuota

__all__ = ["OverbookedError", "SimSchedulerState"]


class OverbookedError(AssertionError):
    """A policy granted more than a node has."""


@dataclass(slots=True)
class _SimEnvironment:
    environment_id: UUID
    node: int | None = None
    is_busy: bool = False


class SimSchedulerState:
    """The state of a simulated scheduler. Raises OverbookedError if an allocation exceeds its node on any resource."""

    def __init__(self, policy: SchedulingPolicy, nodes: Iterable[NodeResources], estimates: DurationModel) -> None:
        self._policy = policy
        self._curves = CurveCache(estimates, estimates if isinstance(estimates, CpuUsageModel) else None)
        self._accounts = ShareAccounting()
        self._pools = {pool.node: pool for pool in nodes}
        self._ledger = ResourceLedger()
        for node, pool in self._pools.items():
            self._ledger.set_capacity(node, pool.capacity)
        self._accounts.total = total_resources(pool.capacity for pool in self._pools.values())
        self._quotas = QuotaUsage()
        self._stale: set[int] = set()
        self._queue = QueueIndex()
        self._queued: dict[UUID, QueuedAction] = {}
        self._running = RunningIndex()
        self._devices: dict[UUID, tuple[int, ...]] = {}
        self._environments: dict[TrajectoryName, _SimEnvironment] = {}
        self._environment_of: dict[UUID, TrajectoryName] = {}
        self._pods: dict[TrajectoryName, TrajectoryPod] = {}

    def set_tasks(self, weights: Mapping[int, float], quotas: Mapping[int, TaskQuota]) -> None:
        """Set the weights and the quotas of tasks before any action is queued."""
        self._accounts.shares.set_weights({task: QueueWeight(0, weight) for task, weight in weights.items()})
        self._quotas.set_quotas(quotas, [])

    @property
    def queued_count(self) -> int:
        return len(self._queued)

    def capacity(self, node: int) -> Resources:
        return self._pools[node].capacity

    def queued_action(self, action_id: UUID) -> QueuedAction:
        return self._queued[action_id]

    def allocated_resources(self, node: int, action_id: UUID) -> Resources | None:
        """Return the amounts of an action's last grant or resize; None if it does not run."""
        running = self._running.on_node(node).get(action_id)
        return running.resources if running is not None else None

    def submit(self, action: QueuedAction, *, environment: UUID | None) -> None:
        """Queue an action; `environment` names its environment, which the first granted action creates."""
        if environment is not None and action.trajectory is not None:
            home = self._environments.setdefault(action.trajectory, _SimEnvironment(environment))
            self._environment_of[action.id] = action.trajectory
            action = action._replace(environment=PinnedEnvironment(environment, home.node))
        self._queued[action.id] = action
        self._queue.add(action)
        self._accounts.record_queued(action.task, action.cls.demand.minimum)

    def set_critical(self, trajectories: Collection[TrajectoryName]) -> None:
        """Queue the actions of these trajectories before others of their task and priority."""
        for action in list(self._queued.values()):
            if action.is_critical != (action.trajectory in trajectories):
                self._queue.discard(action.id)
                changed = self._queued[action.id] = action._replace(is_critical=not action.is_critical)
                self._queue.add(changed)

    def withdraw(self, action_id: UUID) -> None:
        """Remove a queued action that does not start any more."""
        action = self._queued.pop(action_id)
        self._queue.discard(action_id)
        self._environment_of.pop(action_id, None)
        self._accounts.shares.remove_action(action.task)

    def apply_grant(self, grant: Grant, *, now: float) -> bool:
        """Apply a grant; return True if no restore is needed on the granted devices."""
        action = self._queued.pop(grant.fence.action_id)
        self._queue.discard(action.id)
        name = self._environment_of.get(action.id)
        held = self._policy.action_allocation(grant.resources, in_environment=name is not None, in_pod=False)
        self._allocate(action.id, grant.node, held)
        if name is not None:
            self._enter_environment(self._environments[name], grant)
            self._pods[name] = TrajectoryPod(grant.node, is_busy=True)
        running = RunningAction(
            fence=grant.fence,
            cls=action.cls,
            node=grant.node,
            resources=grant.resources,
            granted=now,
            task=action.task,
            started=now,
            allocated_since=now,
            in_environment=name is not None,
        )
        self._running.add(running)
        share_s = self._curves.share_s(action.cls, grant.resources, self._accounts.total)
        self._accounts.record_granted(action.id, action.task, share_s, grant.resources)
        self._quotas.add_usage(action.task, grant.resources)
        return self._occupy_devices(grant, action, now=now) if action.cls.shape is ResourceShape.GROUP else True

    def begin_resize(self, fence: Fence, node: int, resources: Resources) -> None:
        """Start a resize; until it is confirmed, the allocation is the larger of both amounts."""
        running = self._running.on_node(node)[fence.action_id]
        larger = {name: max(amount, running.resources.get(name, 0)) for name, amount in resources.items()}
        self._update_allocation(running, larger)
        self._running.add(running._replace(resizing_to=resources))

    def end_resize(self, fence: Fence, node: int, *, now: float) -> None:
        """Confirm a resize; from now on the allocation is the new amounts."""
        running = self._running.on_node(node)[fence.action_id]
        if running.resizing_to is None or running.cls is None:
            return
        worked = (now - running.allocated_since) / max(
            _LEAST_S, self._curves.expected_s(running.cls, running.resources)
        )
        left = max(0.0, running.remaining_work - worked)
        running = running._replace(
            resources=running.resizing_to, resizing_to=None, allocated_since=now, remaining_work=left
        )
        self._update_allocation(running, running.resources)
        self._running.add(running)

    def release(self, node: int, action_id: UUID, *, now: float) -> None:
        """End an action; its environment stays."""
        running = self._running.on_node(node)[action_id]
        self._running.discard(action_id)
        self._settle_share(running, now)
        self._quotas.remove_usage(running.task, running.resources)
        self._ledger.release(action_id)
        self._stale.add(node)
        name = self._environment_of.pop(action_id, None)
        if name is not None:
            self._environments[name].is_busy = False
            self._pods[name] = TrajectoryPod(node, is_busy=False)
        devices = self._devices.pop(action_id, ())
        if devices:
            pool = self._pools[node]
            free = tuple(sorted(pool.available_devices + devices))
            resident = tuple(replace(r, used_at=now) if r.devices == devices else r for r in pool.resident_services)
            self._pools[node] = replace(pool, available_devices=free, resident_services=resident)

    def end_environment(self, name: TrajectoryName) -> None:
        home = self._environments.pop(name, None)
        self._pods.pop(name, None)
        if home is not None and home.node is not None:
            self._ledger.release(home.environment_id)
            pool = self._pools[home.node]
            self._pools[home.node] = replace(pool, environments=pool.environments - 1)
            self._stale.add(home.node)

    def expected_cpu_s(self, cls: ActionClass) -> float:
        """Return the CPU-seconds that an action of the class is expected to use."""
        return self._curves.curve_for(cls).expected_cpu_s

    def invalidate_estimates(self, cls: ActionClass) -> None:
        """Rebuild the estimates of a class."""
        self._curves.invalidate(cls.key)

    def plan(self, policy: SchedulingPolicy, *, now: float) -> SchedulingPlan:
        """Plan one round."""
        plan = policy.plan(self.snapshot(now=now))
        self._running.mark_clean(except_nodes=plan.watched_nodes, reserved=plan.reserved)
        return plan

    def snapshot(self, *, now: float) -> CellSnapshot:
        self._curves.now = now
        for node in self._stale:
            self._pools[node] = replace(self._pools[node], available=self._ledger.available(node))
        self._stale.clear()
        return CellSnapshot(
            now=now,
            queue=self._queue,
            nodes=self._pools,
            running=self._running,
            pods=self._pods if self._policy.has_pods else {},
            curves=self._curves,
            shares=self._accounts.shares,
            total=self._accounts.total,
            quotas=self._quotas,
        )

    def _allocate(self, holder: UUID, node: int, resources: Resources) -> None:
        self._ledger.release(holder)
        if not fits(resources, self._ledger.available(node)):
            raise OverbookedError(
                f"node {node} has {self._ledger.available(node)} free and is to give {dict(resources)}"
            )
        self._ledger.allocate(holder, node, resources)
        self._stale.add(node)

    def _enter_environment(self, environment: _SimEnvironment, grant: Grant) -> None:
        if environment.is_busy:
            raise OverbookedError(f"two actions at once in environment {environment.environment_id}")
        environment.is_busy = True
        if environment.node is None:
            environment.node = grant.node
            self._allocate(environment.environment_id, grant.node, self._policy.environment_allocation(grant.resources))
            pool = self._pools[grant.node]
            self._pools[grant.node] = replace(pool, environments=pool.environments + 1)

    def _occupy_devices(self, grant: Grant, action: QueuedAction, *, now: float) -> bool:
        """Occupy the granted devices; services that share one of them are no longer resident.

        Return True if the action's service was already resident on exactly these devices, or if it has none.
        """
        pool = self._pools[grant.node]
        if len(grant.devices) != grant.resources["gpu"] or not set(grant.devices) <= set(pool.available_devices):
            raise OverbookedError(f"devices {grant.devices} are to be given and {pool.available_devices} are free")
        self._devices[action.id] = grant.devices
        free = tuple(device for device in pool.available_devices if device not in grant.devices)
        service = action.cls.service
        if service is None:
            self._pools[grant.node] = replace(pool, available_devices=free)
            return True
        there = any(r.service.name == service.name and r.devices == grant.devices for r in pool.resident_services)
        others = tuple(r for r in pool.resident_services if not set(r.devices) & set(grant.devices))
        resident = (*others, ResidentService(service, grant.devices, used_at=now))
        self._pools[grant.node] = replace(pool, available_devices=free, resident_services=resident)
        return there

    def _update_allocation(self, running: RunningAction, resources: Resources) -> None:
        at_home = running.fence.action_id in self._environment_of
        held = self._policy.action_allocation(resources, in_environment=at_home, in_pod=False)
        self._allocate(running.fence.action_id, running.node, held)

    def _settle_share(self, running: RunningAction, now: float) -> None:
        id, held_s = running.fence.action_id, now - running.granted
        self._accounts.record_released(id, running.task, running.resources, allocated_s=held_s)
        self._accounts.shares.remove_action(running.task)


_LEAST_S = 1e-9

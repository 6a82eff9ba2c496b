"""Allocations of granted and running actions, for rounds and for the ledger."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from arl_core.capacity.ledger import ResourceLedger
from arl_core.capacity.running_index import RunningIndex
from arl_core.domain.model import ActionClass, Fence, ResizeSupport, Resources, RunningAction
from arl_core.durations.curves import CurveCache
from arl_core.policies.policy import SchedulingPolicy
from arl_core.queue.quotas import QuotaUsage, TaskQuota
from arl_scheduler.index.environments import EnvironmentName

__all__ = ["Allocation", "AllocationTable"]


class Allocation(NamedTuple):
    """The allocation of one granted or running action. Times are seconds of the database's clock."""

    fence: Fence
    cls: ActionClass | None
    node: int
    resources: Resources
    environment_name: EnvironmentName | None
    task: int
    granted: float
    started: float | None
    pod_name: EnvironmentName | None = None
    """Pod whose cores the action uses although it does not run in its environment."""
    resize_seq: int = 0
    """Number of the resize that set the amounts; 0 for the grant."""
    used_milli_s: float = 0.0
    """Milli-core-seconds used before the last resize."""
    resized_at: float | None = None
    """Time of the last resize; None if there was none or an earlier leader did it."""

    def mean_milli(self, *, until: float) -> int:
        """Return the mean milli-cores until `until`, as far as they are known."""
        milli, began = self.resources.get("cpu_milli", 0), self.started or self.granted
        if self.resized_at is None or until <= began:
            return milli
        mean = round((self.used_milli_s + milli * max(0.0, until - self.resized_at)) / (until - began))
        return max(mean, 1)

    def mean_resources(self, *, until: float) -> Resources:
        """Return the mean resources until `until`."""
        return (
            self.resources if self.resized_at is None else {**self.resources, "cpu_milli": self.mean_milli(until=until)}
        )

    def to_running_action(self) -> RunningAction:
        """Return the running action as a round sees it after the grant."""
        return RunningAction(
            self.fence,
            self.cls,
            self.node,
            self.resources,
            self.granted,
            self.task,
            allocated_since=self.started or self.granted,
            started=self.started,
            in_environment=self.environment_name is not None,
        )


class AllocationTable:
    """A table of allocations, at most one per action. Amounts count in the ledger from `add` to `remove`."""

    def __init__(self, policy: SchedulingPolicy, ledger: ResourceLedger, curves: CurveCache) -> None:
        self._policy = policy
        self._ledger = ledger
        self._curves = curves
        self._by_id: dict[UUID, Allocation] = {}
        self._resizable: set[UUID] = set()
        self._released: list[Allocation] = []
        self.running = RunningIndex()
        """Running actions, as rounds see them."""
        self.quotas = QuotaUsage()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Allocation]:
        return iter(tuple(self._by_id.values()))

    def get(self, action_id: UUID) -> Allocation | None:
        """Return the allocation of an action, or None."""
        return self._by_id.get(action_id)

    def get_by_fence(self, fence: Fence) -> Allocation | None:
        """Return the allocation of this fence, or None if it was released."""
        hold = self._by_id.get(fence.action_id)
        return hold if hold is not None and hold.fence == fence else None

    def resizable(self) -> list[Allocation]:
        """Return the allocations that can be resized while they run."""
        return [self._by_id[action_id] for action_id in sorted(self._resizable)]

    @property
    def has_resizable(self) -> bool:
        """Return True if any allocation can be resized while it runs."""
        return bool(self._resizable)

    def set_quotas(self, quotas: Mapping[int, TaskQuota]) -> None:
        """Set the quotas of tasks. Existing allocations count and are kept."""
        self.quotas.set_quotas(quotas, ((hold.task, hold.resources) for hold in self))

    def add(self, allocation: Allocation) -> None:
        """Add an allocation and count its amounts, or replace the action's earlier one."""
        action_id, cls = allocation.fence.action_id, allocation.cls
        self._by_id[action_id] = allocation
        self.quotas.add_usage(allocation.task, allocation.resources)
        self.running.add(allocation.to_running_action())
        if cls is not None and cls.resizable is not ResizeSupport.NONE:
            self._resizable.add(action_id)
        self._record_in_ledger(allocation)

    def remove(self, action_id: UUID) -> Allocation:
        """Remove an allocation and release its amounts. Raises `KeyError` for an unknown action."""
        hold = self._by_id.pop(action_id)
        self.running.discard(action_id)
        self._resizable.discard(action_id)
        self._released.append(hold)
        self.quotas.remove_usage(hold.task, hold.resources)
        self._ledger.release(action_id)
        return hold

    def take_released(self) -> list[Allocation]:
        """Return the allocations released since the last call, because they settled or were re-queued."""
        released, self._released = self._released, []
        return released

    def mark_started(self, allocation: Allocation, at: float) -> None:
        """Record the start time from the row."""
        self._by_id[allocation.fence.action_id] = allocation._replace(started=at)
        self.running.add(self._running_action(allocation)._replace(started=at, allocated_since=at))

    def is_resizing(self, allocation: Allocation) -> bool:
        """Return True if the manager was asked for other amounts and has not answered."""
        return self._running_action(allocation).resizing_to is not None

    def set_resizing(self, fence: Fence, resources: Resources | None) -> None:
        """Record the amounts that the manager is asked for; None once it has answered or will not answer."""
        hold = self.get_by_fence(fence)
        if hold is not None:
            self.running.add(self._running_action(hold)._replace(resizing_to=resources))

    def set_overrun(self, allocation: Allocation, *, overrun: float) -> None:
        """Set how far the action exceeds its limit (`RunningAction.overrun`). A change makes rounds visit its node
        again.
        """
        running = self._running_action(allocation)
        if running.overrun != overrun:
            self.running.add(running._replace(overrun=overrun))

    def apply_resize(self, fence: Fence, resources: Resources, *, seq: int, now: float) -> None:
        """Apply a resize that was written to the row, and account for it."""
        hold = self.get_by_fence(fence)
        if hold is None:
            return
        running = self._running_action(hold)
        spent = hold.used_milli_s + hold.resources.get("cpu_milli", 0) * max(0.0, now - running.allocated_since)
        resized = hold._replace(resources=resources, resize_seq=seq, used_milli_s=spent, resized_at=now)
        self._by_id[fence.action_id] = resized
        self.running.add(
            running._replace(
                resources=resources, allocated_since=now, remaining_work=self._remaining_work(running, now=now)
            )
        )
        self._record_in_ledger(resized)

    def detach_pod(self, pod: EnvironmentName) -> None:
        """Allocate the cores of a pod that has ended to the actions that still run on them."""
        for hold in self:
            if hold.pod_name == pod:
                held = self._policy.action_allocation(hold.resources, in_environment=False, in_pod=False)
                self._ledger.allocate(hold.fence.action_id, hold.node, held)

    def _running_action(self, allocation: Allocation) -> RunningAction:
        return self.running.on_node(allocation.node)[allocation.fence.action_id]

    def _remaining_work(self, running: RunningAction, *, now: float) -> float:
        """Return the estimated fraction of the work that is left."""
        if running.cls is None:
            return 1.0
        self._curves.now = now
        return self._curves.remaining_s(running) / self._curves.expected_s(running.cls, running.resources)

    def _record_in_ledger(self, allocation: Allocation) -> None:
        at_home, in_pod = allocation.environment_name is not None, allocation.pod_name is not None
        held = self._policy.action_allocation(allocation.resources, in_environment=at_home, in_pod=in_pod)
        self._ledger.allocate(allocation.fence.action_id, allocation.node, held)

"""Environments: queued and running actions of each, and the pods whose cores other actions use."""

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from arl_core.capacity.ledger import ResourceLedger
from arl_core.domain.model import Resources, TrajectoryPod
from arl_core.policies.policy import SchedulingPolicy
from arl_scheduler.index.allocations import Allocation, AllocationTable
from arl_scheduler.index.environments import EnvironmentName, EnvironmentsPerNode, EnvironmentTable, TrackedEnvironment
from arl_scheduler.index.queued_actions import QueuedActions
from arl_scheduler.queries.poll_result import AllocationRow, EnvironmentRow
from arl_store.values import uuid7

__all__ = ["EnvironmentIndex"]


class EnvironmentIndex:
    """An index of environments. At most one action of an environment runs or is a candidate.

    The ledger counts the resources of each environment.
    """

    def __init__(
        self, policy: SchedulingPolicy, ledger: ResourceLedger, queued: QueuedActions, *, cell: int = 0
    ) -> None:
        self._cell = cell
        self._policy = policy
        self._ledger = ledger
        self._queued = queued
        self.table = EnvironmentTable()
        self.counts = EnvironmentsPerNode()
        self._pod_users: Counter[EnvironmentName] = Counter()
        """Pods whose cores ephemeral actions use, with the number of these actions."""
        self._to_confirm: set[EnvironmentName] = set()
        self._confirming: set[EnvironmentName] = set()
        self._requeueing: set[EnvironmentName] = set()
        self._requeued: set[EnvironmentName] = set()

    def begin_poll(self) -> None:
        """Note what the coming poll must confirm."""
        self._requeued, self._requeueing = self._requeueing, set()
        self._confirming, self._to_confirm = self._to_confirm, set()

    def mark_requeueing(self, name: EnvironmentName) -> None:
        """Mark an environment whose action was re-queued. No other action of it starts before a poll has read that."""
        self.table[name].is_requeueing = True
        self._requeueing.add(name)

    def confirm_requeued(self) -> None:
        """Unmark the environments whose re-queued action was read by this poll."""
        for name in self._requeued:
            if (home := self.table.get(name)) is not None:
                home.is_requeueing = False
                self.refresh(home)

    def apply_row(self, row: EnvironmentRow, allocations: AllocationTable) -> None:
        """Apply a row that a poll has read."""
        name = (row.queue_id, row.trajectory)
        if name not in self.table and row.is_ended and row.is_delete_requested:
            return
        home = self.table.setdefault(name, TrackedEnvironment(name, row.id))
        if home.id != row.id:
            if home.is_confirmed or home.active_action is not None or (row.is_ended and row.is_delete_requested):
                return
            self._ledger.release(home.id)
            home.id = row.id
        home.is_confirmed, home.node, home.is_ended, home.is_delete_requested = (
            True,
            row.node,
            row.is_ended,
            row.is_delete_requested,
        )
        home.is_out_of_memory = row.is_out_of_memory
        home.trajectory_started_at = min(home.trajectory_started_at, row.created)
        self.table.set_tombstone(home, is_tombstone=row.is_ended and not row.is_delete_requested)
        if row.is_ended:
            self._ledger.release(home.id)
            if self._pod_users[name]:
                allocations.detach_pod(name)
        else:
            amounts = {"memory_mib": row.memory_mib, "disk_mib": row.disk_mib}
            self._ledger.allocate(home.id, row.node, self._policy.environment_allocation(amounts))
        if row.is_ended and row.is_delete_requested:
            home.is_confirmed = home.may_exist = False
        self.refresh(home)

    def occupy(self, allocation: Allocation) -> None:
        """Count a new allocation in its environment, or on the cores of a pod."""
        if allocation.pod_name is not None:
            self._pod_users[allocation.pod_name] += 1
        if allocation.environment_name is None:
            return
        home = self.table[allocation.environment_name]
        if home.node is None:
            home.node, home.may_exist = allocation.node, True
            self._ledger.allocate(home.id, allocation.node, self._policy.environment_allocation(allocation.resources))
        home.active_action = allocation.fence.action_id
        self.refresh(home)

    def vacate(self, allocation: Allocation) -> None:
        """Stop counting an allocation that ended, and offer the next action of its environment."""
        if allocation.pod_name is not None:
            self._pod_users[allocation.pod_name] -= 1
            if not self._pod_users[allocation.pod_name]:
                del self._pod_users[allocation.pod_name]
        home = self.table.get(allocation.environment_name) if allocation.environment_name is not None else None
        if home is None or home.active_action != allocation.fence.action_id:
            return
        home.active_action = None
        if not home.is_confirmed:
            self._to_confirm.add(home.name)
        self.refresh(home)

    def adopt(self, row: AllocationRow) -> EnvironmentName | None:
        """Return the environment in which an earlier leader's grant runs."""
        name = (row.queue_id, row.trajectory) if row.environment is not None and row.trajectory is not None else None
        if name is not None and row.environment is not None:
            home = self.table.setdefault(name, TrackedEnvironment(name, row.environment))
            if not home.is_confirmed:
                home.id = row.environment
        return name

    def leave_queue(self, action_ids: Iterable[UUID]) -> None:
        """Remove actions from the queue, and offer the next one of each of their environments once."""
        left: dict[EnvironmentName, TrackedEnvironment] = {}
        for action_id in action_ids:
            self._queued.candidates.forget(action_id)
            name = self._queued.environment_names.pop(action_id, None)
            home = self.table.get(name) if name is not None else None
            if home is None:
                continue
            home.queue.discard(action_id)
            if home.candidate is not None and home.candidate[0] == action_id:
                home.candidate = None
            left[home.name] = home
        for home in left.values():
            self.refresh(home)

    def forget_uncreated(self) -> None:
        """Forget environments that were never created.

        A row commits before its first action ends, so a poll that began after that end reads an existing row.
        """
        for name in self._confirming:
            home = self.table.get(name)
            if home is not None and not home.is_confirmed and home.active_action is None:
                self._ledger.release(home.id)
                home.node, home.may_exist = None, False
                self.refresh(home)

    def pod_for(self, trajectory: EnvironmentName | None, resources: Resources) -> EnvironmentName | None:
        """Return the pod whose cores an action outside of it uses; None if there is none."""
        if trajectory is None or not resources.get("cpu_milli") or not self._policy.has_pods:
            return None
        home = self.table.get(trajectory)
        return home.name if home is not None and home.node is not None and not home.is_ended else None

    def trajectory_pods(self) -> dict[EnvironmentName, TrajectoryPod]:
        """Return the pods of the live trajectories."""
        return self.table.trajectory_pods(self._pod_users)

    def refresh(self, environment: TrackedEnvironment) -> None:
        """Offer the first queued action to rounds if the environment is free and not ending.

        No other action of the environment is offered.
        """
        if environment.is_ended and environment.is_delete_requested and environment.active_action is None:
            environment.id, environment.node = uuid7(self._cell), None
            environment.trajectory_started_at = float("inf")
            environment.is_confirmed = environment.may_exist = environment.is_ended = (
                environment.is_delete_requested
            ) = False
        free = (
            environment.active_action is None
            and not environment.is_ended
            and not environment.is_delete_requested
            and not environment.is_requeueing
        )
        first = environment.queue.first() if free else None
        offer = (first, environment.id, environment.node) if first is not None else None
        if offer != environment.candidate:
            if environment.candidate is not None:
                self._queued.candidates.discard(environment.candidate[0])
            if offer is not None:
                self._queued.offer(environment.bind_action(self._queued[offer[0]]))
            environment.candidate = offer
        if (
            not environment.queue
            and environment.active_action is None
            and not environment.is_confirmed
            and not environment.may_exist
        ):
            self._ledger.release(environment.id)
            self.table.pop(environment.name, None)
            environment.node = None
        self.table.update_awaited(environment)
        self.counts.update(environment)

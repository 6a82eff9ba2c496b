"""The leader's index of queued actions, allocations and environments.

One poll rebuilds it from Postgres, and notifications update it between polls. Postgres is the source of truth: each
poll corrects the index.
"""

from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from arl_core.capacity.rate_limited_ledger import RateLimitedLedger
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import ActionClass, Fence, Gang, Grant, PinnedEnvironment, QueuedAction, SchedulingPlan
from arl_core.durations.curves import CurveCache
from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.queue.fairness import ShareAccounting, total_resources
from arl_scheduler.index.action_classes import ActionClassTable
from arl_scheduler.index.allocations import Allocation, AllocationTable
from arl_scheduler.index.candidates import CandidateQueue
from arl_scheduler.index.deadlines import DeadlineQueue
from arl_scheduler.index.environment_index import EnvironmentIndex
from arl_scheduler.index.environments import EnvironmentName, EnvironmentTable, QueuePosition, TrackedEnvironment
from arl_scheduler.index.image_table import ImageTable
from arl_scheduler.index.node_table import NodeTable
from arl_scheduler.index.queued_actions import QueuedActions
from arl_scheduler.index.rate_limit_timer import RateLimitTimer
from arl_scheduler.index.step_tracker import StepTracker
from arl_scheduler.queries.poll_result import AllocationRow, NodeRow, PollResult
from arl_store.values import to_driver_uuid, uuid7
from arl_wire.internal.scheduler import QueuedActionRow

__all__ = ["EnvironmentName", "SchedulerIndex"]


class SchedulerIndex:
    """All queued actions, allocations and environments that the leader knows."""

    def __init__(
        self,
        policy: SchedulingPolicy | None = None,
        curves: CurveCache | None = None,
        min_run_time_s: Callable[[ActionClass], float] = lambda cls: 0.0,
        *,
        cell: int = 0,
        steps: StepTracker | None = None,
    ) -> None:
        self._policy = policy or FirstComeFirstServed()
        self._cell = cell
        self.checkpoint = 0
        self.nodes: dict[int, NodeRow] = {}
        self._ledger = RateLimitedLedger()
        self._queued = QueuedActions(min_run_time_s)
        self._environments = EnvironmentIndex(self._policy, self._ledger, self._queued, cell=cell)
        self._action_classes = ActionClassTable()
        self._accounts = ShareAccounting()
        self.steps = steps or StepTracker()
        self.curves = curves or CurveCache()
        self.allocations = AllocationTable(self._policy, self._ledger, self.curves)
        self._node_table = NodeTable(self._ledger, self._environments.counts)
        self.images = ImageTable()
        self.rate_limit_timer = RateLimitTimer(self._ledger, self._queued.candidates.queue, self._node_table)

    @property
    def queued_count(self) -> int:
        """Return the number of queued actions."""
        return len(self._queued)

    @property
    def environments(self) -> EnvironmentTable:
        """Return the environments, for reading only."""
        return self._environments.table

    @property
    def allocation_count(self) -> int:
        """Return the number of granted and running actions."""
        return len(self.allocations)

    @property
    def deadlines(self) -> DeadlineQueue:
        """Return the deadlines of the queued actions."""
        return self._queued.deadlines

    @property
    def paused_count(self) -> int:
        """Return the number of queued actions of paused tasks."""
        return sum(depth for task, (depth, _) in self._queued.depths().items() if task in self._queued.paused)

    def queue_depths(self) -> dict[int, tuple[int, float]]:
        """Return the number of queued actions of each queue and the submission time of its oldest."""
        return self._queued.depths()

    def begin_poll(self) -> None:
        """Note what the coming poll must confirm."""
        self._environments.begin_poll()

    def take_missed_deadlines(self, now: float, *, limit: int) -> dict[UUID, str | None]:
        """Return the actions that can no longer meet their deadline, once each, and the reason if it has not passed."""
        return self._queued.take_missed_deadlines(now, limit=limit)

    def next_deadline(self) -> float | None:
        """Return the earliest latest start of a queued action, or None."""
        return self._queued.deadlines.next_at()

    def admit(self, rows: Iterable[QueuedActionRow]) -> None:
        """Add queued rows. Rows that are known, or allocated under a later grant, are ignored."""
        for row in rows:
            id = to_driver_uuid(row.id)
            hold = self.allocations.get(id)
            if hold is not None and hold.fence.grant_no > row.grant_no:
                continue
            if hold is not None:
                self._release(id)
            known = self._queued.get(id)
            if known is not None and known.grant_no < row.grant_no:
                self._forget_queued(id)
            if known is None or known.grant_no < row.grant_no:
                self._enqueue(id, row)

    def apply_grants(self, grants: Iterable[Grant], *, now: float) -> None:
        """Apply grants that are committed."""
        total, has_pods, share_s = self._accounts.total, self._policy.has_pods, self.curves.share_s
        for grant in grants:
            fence, amounts = grant.fence, grant.resources
            id = fence.action_id
            action, name = self._queued.take(id), self._queued.environment_names.get(id)
            pod = self._environments.pod_for(action.trajectory, amounts) if has_pods and name is None else None
            # The action was already counted as active in its task's share.
            hold = Allocation(fence, action.cls, grant.node, amounts, name, action.task, now, None, pod)
            self.steps.record_granted(id, at=now, node=grant.node)
            self._accounts.record_granted(id, action.task, share_s(action.cls, amounts, total), amounts)
            if name is None and pod is None:
                self.allocations.add(hold)
                self._queued.candidates.forget(id)
            else:
                self._allocate(hold)
                self._environments.leave_queue([id])

    def fair_fraction(self, task: int) -> float:
        """Return the task's fair share of all resources; 0..1."""
        return self._accounts.shares.fraction(task)

    def critical_grants(self, grants: Iterable[Grant]) -> frozenset[Fence]:
        """Return the fences of the grants of critical trajectories. The grants are not applied yet."""
        found = ((grant.fence, self._queued.get(grant.fence.action_id)) for grant in grants)
        return frozenset(fence for fence, action in found if action is not None and action.is_critical)

    def set_critical(self, action_id: UUID, *, is_critical: bool) -> None:
        """Set whether a queued action goes before others of its task. Members of gangs never do."""
        action = self._queued.get(action_id)
        if action is None or action.gang is not None or action.is_critical == is_critical:
            return
        action = self._queued.replace(action._replace(is_critical=is_critical))
        if self._queued.candidates.queue.bucket_of(action_id) is not None:
            name = self._queued.environment_names.get(action_id)
            self._queued.offer(self._environments.table[name].bind_action(action) if name is not None else action)

    def is_queued(self, action_id: UUID) -> bool:
        """Return True if the action is in the queue."""
        return self._queued.get(action_id) is not None

    def expected_cpu_s(self, fence: Fence) -> float | None:
        """Return the CPU-seconds that a granted action with shared cores is expected to use; None for others."""
        hold = self.allocations.get_by_fence(fence)
        if hold is None or hold.cls is None or hold.cls.sharing is None:
            return None
        return self.curves.curve_for(hold.cls).expected_cpu_s

    def drop_refused(self, ids: Iterable[UUID]) -> None:
        """Forget actions that Postgres refused to grant. They are no longer queued or will be settled."""
        ids = tuple(ids)
        self.steps.drop(ids, at=self.curves.now)
        self._forget_queued(*ids)

    def release_attempts(self, fences: Iterable[Fence], *, requeued: Collection[Fence] = ()) -> None:
        """Release attempts that have ended. Repeated calls have no effect.

        The environments of `requeued` attempts wait for the poll that reads these actions.
        """
        for fence in fences:
            hold = self.allocations.get_by_fence(fence)
            if hold is None:
                continue
            if hold.environment_name is not None and fence in requeued:
                self._environments.mark_requeueing(hold.environment_name)
            self._release(hold.fence.action_id)

    def reconcile(self, poll: PollResult) -> None:
        """Apply one snapshot, taken after all earlier writes of this leader."""
        self.checkpoint = poll.checkpoint
        self.nodes = {node.id: node for node in poll.nodes}
        self._accounts.shares.set_weights(poll.weights)
        self._accounts.shares.set_paused(poll.paused)
        self._queued.pause(poll.paused)
        self.allocations.set_quotas(poll.quotas)
        for node in poll.nodes:
            self._ledger.set_capacity(node.id, node.grantable)
            self._ledger.set_rates(node.id, node.rate_limits)
        self._accounts.total = total_resources(node.capacity for node in poll.nodes)
        for environment in poll.environments:
            self._environments.apply_row(environment, self.allocations)
        held = {row.fence: row for row in poll.allocations}
        for hold in self.allocations:
            if hold.fence not in held:
                self._release(hold.fence.action_id)
        for fence, row in held.items():
            known = self.allocations.get_by_fence(fence)
            if known is None:
                self._adopt_allocation(row)
            elif known.started is None and row.started is not None:
                self.allocations.mark_started(known, row.started)
        # Allocated rows name their environments; queued rows of the same trajectory must find them.
        self.admit(poll.queued)
        self._environments.forget_uncreated()
        self._environments.confirm_requeued()

    def snapshot(self, *, now: float, silent_after_s: float, watching_since: float) -> CellSnapshot:
        """Return the view of a round. Most of it is the index's own state and changes with it."""
        self.curves.now = now
        return CellSnapshot(
            now=now,
            queue=self._queued.candidates.queue,
            running=self.allocations.running,
            nodes=self._node_table.current(
                self.nodes, now=now, silent_after_s=silent_after_s, watching_since=watching_since
            ),
            pods=self._environments.trajectory_pods() if self._policy.has_pods else {},
            curves=self.curves,
            shares=self._accounts.shares,
            total=self._accounts.total,
            quotas=self.allocations.quotas,
        )

    def plan(self, *, now: float, silent_after_s: float, watching_since: float) -> SchedulingPlan:
        """Compute one round of the index's policy."""
        plan = self._policy.plan(self.snapshot(now=now, silent_after_s=silent_after_s, watching_since=watching_since))
        self.allocations.running.mark_clean(except_nodes=plan.watched_nodes, reserved=plan.reserved)
        return plan

    def queue_position(self, action_id: UUID) -> QueuePosition | None:
        """Return the position of a queued action; None if it is unknown."""
        action, name = self._queued.get(action_id), self._queued.environment_names.get(action_id)
        home = self._environments.table[name] if name is not None else None
        if action is None:
            return None
        return QueuePosition.from_action(
            self._queued.candidates.with_gang(action), home, is_paused=action.task in self._queued.paused
        )

    @property
    def candidates(self) -> CandidateQueue:
        """Return the candidates, for reading only."""
        return self._queued.candidates

    def environment_queue(self, name: EnvironmentName, *, first: int, limit: int) -> list[QueuedAction]:
        """Return the queued actions of an environment from `first` on.

        Return none if the environment is ending or its task is paused.
        """
        home, is_paused = self._environments.table.get(name), name[0] in self._queued.paused
        if home is None or home.is_ended or home.is_delete_requested or is_paused:
            return []
        return [home.bind_action(self._queued[each]) for each in home.queue.page(first, limit)]

    def _enqueue(self, id: UUID, row: QueuedActionRow) -> None:
        trajectory = (row.queue_id, row.trajectory) if row.trajectory else None
        name = trajectory if row.environment["scope"] == "trajectory" else None
        home = self._environments.table.get(trajectory) if trajectory is not None else None
        began = min(home.trajectory_started_at, row.submitted) if home is not None else None
        if home is None and name is not None:
            home = self._environments.table[name] = TrackedEnvironment(name, row.environment_id or uuid7(self._cell))
        if row.step is not None:
            self.steps.add_queued(id, row)
        gang = Gang(row.gang.id, row.gang.size) if row.gang is not None and row.grant_no == 0 else None
        action = QueuedAction(
            id=id,
            cls=self._action_classes.acquire(row),
            task=row.queue_id,
            submitted=row.submitted,
            grant_no=row.grant_no,
            priority=row.priority,
            deadline=row.deadline,
            environment=PinnedEnvironment(home.id, home.node) if home is not None and name is not None else None,
            trajectory=trajectory,
            trajectory_started_at=began,
            gang=gang,
            is_critical=gang is None and self.steps.is_critical(id),
        )
        self._queued.add(action)
        self.images.note(action.cls)
        self._accounts.record_queued(action.task, action.cls.demand.minimum)
        self._queued.deadlines.add(action)
        if name is None or home is None:
            self._queued.offer(action)
            return
        self._queued.environment_names[id] = name
        home.trajectory_started_at = min(home.trajectory_started_at, row.submitted)
        home.queue.add(id)
        self._environments.refresh(home)

    def _forget_queued(self, *action_ids: UUID) -> None:
        for action_id in action_ids:
            if (action := self._queued.discard(action_id)) is not None:
                self._accounts.shares.remove_action(action.task)
                self._action_classes.release(action.cls)
        self._environments.leave_queue(action_ids)

    def _allocate(self, allocation: Allocation) -> None:
        self.allocations.add(allocation)
        self._environments.occupy(allocation)

    def _release(self, action_id: UUID) -> None:
        hold = self.allocations.remove(action_id)
        held_s = self.curves.now - hold.granted
        self._accounts.record_released(
            action_id, hold.task, hold.mean_resources(until=self.curves.now), allocated_s=held_s
        )
        self._accounts.shares.remove_action(hold.task)
        if hold.cls is not None:
            self._action_classes.release(hold.cls)
        self._environments.vacate(hold)

    def _adopt_allocation(self, row: AllocationRow) -> None:
        """Add an allocation that an earlier leader made."""
        id = row.fence.action_id
        if row.step is not None:
            self.steps.adopt(id, row)
        self.steps.record_granted(id, at=row.granted, node=row.node)
        before = self.allocations.get(id) or self._queued.get(id)
        cls = self._action_classes.acquire_granted(row, queued_as=before.cls if before is not None else None)
        if self.allocations.get(id) is not None:
            self._release(id)
        self._forget_queued(id)
        name = self._environments.adopt(row)
        trajectory = (row.queue_id, row.trajectory) if row.trajectory is not None else None
        pod = self._environments.pod_for(trajectory, row.resources) if name is None else None
        times = (row.granted, row.started)
        self._accounts.shares.add_action(row.queue_id)
        self._allocate(
            Allocation(row.fence, cls, row.node, row.resources, name, row.queue_id, *times, pod, row.resize_seq)
        )

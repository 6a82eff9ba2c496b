"""The leader's memory of what waits, what is held, and where environments live.

Rebuilt from Postgres by one poll; between polls hints keep it fresh. Rows win: what this index
believes and a poll contradicts is corrected by that poll.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from uuid import UUID, uuid4

from arl_core.capacity.rate_limited_ledger import RateLimitedLedger
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import (
    ActionClass,
    Fence,
    Gang,
    Grant,
    PinnedEnvironment,
    QueuedAction,
    Resources,
    SchedulingPlan,
)
from arl_core.durations.curves import CurveCache
from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.queue.fairness import ShareAccounting, total_resources
from arl_scheduler.index.action_classes import ActionClassTable
from arl_scheduler.index.allocations import AllocationTable
from arl_scheduler.index.candidates import CandidateQueue
from arl_scheduler.index.deadlines import DeadlineQueue
from arl_scheduler.index.environments import (
    Allocation,
    EnvironmentName,
    EnvironmentsPerNode,
    EnvironmentTable,
    QueuePosition,
    TrackedEnvironment,
)
from arl_scheduler.index.node_table import NodeTable
from arl_scheduler.index.rate_limit_timer import RateLimitTimer
from arl_scheduler.queries.poll_result import AllocationRow, EnvironmentRow, NodeRow, PollResult
from arl_store.values import to_driver_uuid
from arl_wire.internal.scheduler import QueuedActionRow

__all__ = ["EnvironmentName", "SchedulerIndex"]


class SchedulerIndex:
    def __init__(
        self,
        policy: SchedulingPolicy | None = None,
        curves: CurveCache | None = None,
        min_run_time_s: Callable[[ActionClass], float] = lambda cls: 0.0,
    ) -> None:
        self._policy = policy or FirstComeFirstServed()
        self.checkpoint = 0
        self.nodes: dict[int, NodeRow] = {}
        self._ledger = RateLimitedLedger()
        self._candidates = CandidateQueue()
        self._queued: dict[UUID, QueuedAction] = {}
        self._environment_of: dict[UUID, EnvironmentName] = {}
        self._environments = EnvironmentTable()
        self._action_classes = ActionClassTable()
        self.deadlines = DeadlineQueue(min_run_time_s)
        self._accounts = ShareAccounting()
        self.curves = curves or CurveCache()
        self.allocations = AllocationTable(self._policy, self._ledger, self.curves)
        self._environment_counts = EnvironmentsPerNode()
        self._node_table = NodeTable(self._ledger, self._environment_counts)
        self.rate_limit_timer = RateLimitTimer(self._ledger, self._candidates.queue, self._node_table)
        self._paused: frozenset[int] = frozenset()
        self._pod_users: Counter[EnvironmentName] = Counter()
        """Pods whose cores an ephemeral action uses."""
        self._to_confirm: set[EnvironmentName] = set()
        self._confirming: set[EnvironmentName] = set()
        self._requeueing: set[EnvironmentName] = set()
        self._requeued: set[EnvironmentName] = set()

    @property
    def queued_count(self) -> int:
        return len(self._queued)

    @property
    def environments(self) -> EnvironmentTable:
        """For reading."""
        return self._environments

    @property
    def allocation_count(self) -> int:
        return len(self.allocations)

    def queue_depths(self) -> dict[int, tuple[int, float]]:
        """How many actions of each queue wait, and since when the oldest does."""
        found: dict[int, tuple[int, float]] = {}
        for action in self._queued.values():
            depth, oldest = found.get(action.task, (0, action.submitted))
            found[action.task] = (depth + 1, min(oldest, action.submitted))
        return found

    def admit(self, rows: Iterable[QueuedActionRow]) -> None:
        """Take queued rows in. Rows already known, or held under a later grant, are nothing new."""
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
        """These grants are committed."""
        total, has_pods, share_s = self._accounts.total, self._policy.has_pods, self.curves.share_s
        for grant in grants:
            fence, amounts = grant.fence, grant.resources
            id = fence.action_id
            action, name = self._queued.pop(id), self._environment_of.get(id)
            pod = self._pod_for(action.trajectory, amounts) if has_pods and name is None else None
            # It was active in its task's share, and stays so.
            hold = Allocation(fence, action.cls, grant.node, amounts, name, action.task, now, None, pod)
            self._accounts.record_granted(id, action.task, share_s(action.cls, amounts, total), amounts)
            if name is None and pod is None:
                self.allocations.add(hold)
                self._candidates.forget(id)
            else:
                self._allocate(hold)
                self._leave_queue(id)

    def drop_refused(self, ids: Iterable[UUID]) -> None:
        """Postgres did not take these: they are not queued any more, or about to be settled."""
        for action_id in ids:
            self._forget_queued(action_id)

    def release_attempts(self, fences: Iterable[Fence], *, requeued: Collection[Fence] = ()) -> None:
        """These attempts are over. Amounts count once, however often this is said.

        Those that are `requeued` keep their place in their trajectory: it waits for the poll that reads them.
        """
        for fence in fences:
            hold = self.allocations.get_by_fence(fence)
            if hold is None:
                continue
            if hold.environment_name is not None and fence in requeued:
                self._environments[hold.environment_name].is_requeueing = True
                self._requeueing.add(hold.environment_name)
            self._release(hold.fence.action_id)

    def begin_poll(self) -> None:
        self._requeued, self._requeueing = self._requeueing, set()
        self._confirming, self._to_confirm = self._to_confirm, set()

    def reconcile(self, poll: PollResult) -> None:
        """Make the index agree with one snapshot, taken after everything this leader wrote before it."""
        self.checkpoint = poll.checkpoint
        self.nodes = {node.id: node for node in poll.nodes}
        self._accounts.shares.set_weights(poll.weights)
        self._set_paused(poll.paused)
        self.allocations.set_quotas(poll.quotas)
        for node in poll.nodes:
            self._ledger.set_capacity(node.id, node.capacity)
            self._ledger.set_rates(node.id, node.rate_limits)
        self._accounts.total = total_resources(node.capacity for node in poll.nodes)
        for environment in poll.environments:
            self._apply_environment_row(environment)
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
        # Held rows name their environments; queued ones of the same trajectory must find them.
        self.admit(poll.queued)
        self._forget_uncreated_environments()
        for name in self._requeued:
            if (home := self._environments.get(name)) is not None:
                home.is_requeueing = False
                self._update_candidate(home)

    def snapshot(self, *, now: float, silent_after_s: float, watching_since: float) -> CellSnapshot:
        """What a round may look at: most of it is this index's own, and changes with it."""
        self.curves.now = now
        return CellSnapshot(
            now=now,
            queue=self._candidates.queue,
            running=self.allocations.running,
            nodes=self._node_table.current(
                self.nodes, now=now, silent_after_s=silent_after_s, watching_since=watching_since
            ),
            pods=self._environments.trajectory_pods(self._pod_users) if self._policy.has_pods else {},
            curves=self.curves,
            shares=self._accounts.shares,
            total=self._accounts.total,
            quotas=self.allocations.quotas,
        )

    def plan(self, *, now: float, silent_after_s: float, watching_since: float) -> SchedulingPlan:
        """One round of this index's policy."""
        plan = self._policy.plan(self.snapshot(now=now, silent_after_s=silent_after_s, watching_since=watching_since))
        self.allocations.running.mark_clean(except_nodes=plan.watched_nodes, reserved=plan.reserved)
        return plan

    def queue_position(self, action_id: UUID) -> QueuePosition | None:
        """Of a queued action; None where none is known by this id."""
        action, name = self._queued.get(action_id), self._environment_of.get(action_id)
        home = self._environments[name] if name is not None else None
        if action is None:
            return None
        return QueuePosition.from_action(
            self._candidates.with_gang(action), home, is_paused=action.task in self._paused
        )

    @property
    def candidates(self) -> CandidateQueue:
        """For reading."""
        return self._candidates

    def environment_queue(self, name: EnvironmentName, *, first: int, limit: int) -> list[QueuedAction]:
        """What waits in an environment from the `first` on; nothing where that is to end or its task held back."""
        home, held_back = self._environments.get(name), name[0] in self._paused or name[0] in self.allocations.quotas
        if home is None or home.is_ended or home.is_delete_requested or held_back:
            return []
        return [home.bind_action(self._queued[each]) for each in home.queue[first : first + limit]]

    def take_missed_deadlines(self, now: float) -> dict[UUID, str | None]:
        """Queued actions that can't meet their deadline any more, said once, and why if it has not passed."""
        self.deadlines.prune(self._queued, len(self._queued))
        return self.deadlines.take_due(now, self._queued.get)

    def next_deadline(self) -> float | None:
        return self.deadlines.next_at()

    def _enqueue(self, id: UUID, row: QueuedActionRow) -> None:
        trajectory = (row.queue_id, row.trajectory) if row.trajectory else None
        name = trajectory if row.environment["scope"] == "trajectory" else None
        home = self._environments.get(trajectory) if trajectory is not None else None
        began = min(home.trajectory_started_at, row.submitted) if home is not None else None
        if home is None and name is not None:
            home = self._environments[name] = TrackedEnvironment(name, row.environment_id or uuid4())
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
            gang=Gang(row.gang.id, row.gang.size) if row.gang is not None and row.grant_no == 0 else None,
        )
        self._queued[id] = action
        self._candidates.register(action)
        self._accounts.record_queued(action.task, action.cls.demand.minimum)
        self.deadlines.add(action)
        if name is None or home is None:
            self._add_candidate(action)
            return
        self._environment_of[id] = name
        home.trajectory_started_at = min(home.trajectory_started_at, row.submitted)
        insort(home.queue, id)
        self._update_candidate(home)

    def _update_candidate(self, environment: TrackedEnvironment) -> None:
        """Exactly the first in line is a candidate, and only where the environment is free and not ending."""
        if environment.is_ended and environment.is_delete_requested and environment.active_action is None:
            environment.id, environment.node, environment.trajectory_started_at = uuid4(), None, float("inf")
            environment.is_confirmed = environment.may_exist = environment.is_ended = (
                environment.is_delete_requested
            ) = False
        free = (
            environment.active_action is None
            and not environment.is_ended
            and not environment.is_delete_requested
            and not environment.is_requeueing
        )
        offer = (environment.queue[0], environment.id, environment.node) if environment.queue and free else None
        if offer != environment.candidate:
            if environment.candidate is not None:
                self._candidates.discard(environment.candidate[0])
            if offer is not None:
                self._add_candidate(environment.bind_action(self._queued[offer[0]]))
            environment.candidate = offer
        if (
            not environment.queue
            and environment.active_action is None
            and not environment.is_confirmed
            and not environment.may_exist
        ):
            self._ledger.release(environment.id)
            self._environments.pop(environment.name, None)
            environment.node = None
        self._environments.update_awaited(environment)
        self._environment_counts.update(environment)

    def _add_candidate(self, action: QueuedAction) -> None:
        if action.task not in self._paused:
            self._candidates.add(action)

    def _set_paused(self, paused: frozenset[int]) -> None:
        """Take what waits in these queues out of the rounds' sight, and what waits in the resumed ones back in."""
        changed = paused ^ self._paused
        self._paused = paused
        self._accounts.shares.set_paused(paused)
        for action in [each for each in self._queued.values() if each.task in changed] if changed else ():
            self._candidates.discard(action.id)
            name = self._environment_of.get(action.id)
            if name is None:
                self._add_candidate(action)
            elif (home := self._environments[name]).candidate is not None and home.candidate[0] == action.id:
                home.candidate = None
                self._update_candidate(home)

    def _forget_queued(self, action_id: UUID) -> None:
        if (action := self._queued.pop(action_id, None)) is not None:
            self._accounts.shares.remove_action(action.task)
            self._action_classes.release(action.cls)
        self._leave_queue(action_id)

    def _leave_queue(self, action_id: UUID) -> None:
        """It waits no longer: its environment's next is looked at."""
        self._candidates.forget(action_id)
        name = self._environment_of.pop(action_id, None)
        if name is None or name not in self._environments:
            return
        home = self._environments[name]
        home.queue = [other for other in home.queue if other != action_id]
        if home.candidate is not None and home.candidate[0] == action_id:
            home.candidate = None
        self._update_candidate(home)

    def _allocate(self, allocation: Allocation) -> None:
        self.allocations.add(allocation)
        if allocation.pod_name is not None:
            self._pod_users[allocation.pod_name] += 1
        if allocation.environment_name is None:
            return
        home = self._environments[allocation.environment_name]
        if home.node is None:
            home.node, home.may_exist = allocation.node, True
            self._ledger.allocate(home.id, allocation.node, self._policy.environment_allocation(allocation.resources))
        home.active_action = allocation.fence.action_id
        self._update_candidate(home)

    def _release(self, action_id: UUID) -> None:
        hold = self.allocations.remove(action_id)
        held_s = self.curves.now - hold.granted
        self._accounts.record_released(
            action_id, hold.task, hold.mean_resources(until=self.curves.now), allocated_s=held_s
        )
        self._accounts.shares.remove_action(hold.task)
        if hold.cls is not None:
            self._action_classes.release(hold.cls)
        if hold.pod_name is not None:
            self._pod_users[hold.pod_name] -= 1
            if not self._pod_users[hold.pod_name]:
                del self._pod_users[hold.pod_name]
        home = self._environments.get(hold.environment_name) if hold.environment_name is not None else None
        if home is None or home.active_action != action_id:
            return
        home.active_action = None
        if not home.is_confirmed:
            self._to_confirm.add(home.name)
        self._update_candidate(home)

    def _forget_uncreated_environments(self) -> None:
        """An environment's row commits before its first action ends; a poll begun after that reads it or it is not."""
        for name in self._confirming:
            home = self._environments.get(name)
            if home is not None and not home.is_confirmed and home.active_action is None:
                self._ledger.release(home.id)
                home.node, home.may_exist = None, False
                self._update_candidate(home)

    def _adopt_allocation(self, row: AllocationRow) -> None:
        """A hold that this leader did not make: an earlier leader's."""
        id = row.fence.action_id
        before = self.allocations.get(id) or self._queued.get(id)
        cls = self._action_classes.acquire_granted(row, queued_as=before.cls if before is not None else None)
        if self.allocations.get(id) is not None:
            self._release(id)
        self._forget_queued(id)
        name = (row.queue_id, row.trajectory) if row.environment is not None and row.trajectory is not None else None
        if name is not None and row.environment is not None:
            home = self._environments.setdefault(name, TrackedEnvironment(name, row.environment))
            if not home.is_confirmed:
                home.id = row.environment
        trajectory = (row.queue_id, row.trajectory) if row.trajectory is not None else None
        pod = self._pod_for(trajectory, row.resources) if name is None else None
        times = (row.granted, row.started)
        self._accounts.shares.add_action(row.queue_id)
        self._allocate(
            Allocation(row.fence, cls, row.node, row.resources, name, row.queue_id, *times, pod, row.resize_seq)
        )

    def _apply_environment_row(self, row: EnvironmentRow) -> None:
        name = (row.queue_id, row.trajectory)
        if name not in self._environments and row.is_ended and row.is_delete_requested:
            return
        home = self._environments.setdefault(name, TrackedEnvironment(name, row.id))
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
        home.trajectory_started_at = min(home.trajectory_started_at, row.created)
        self._environments.set_tombstone(home, is_tombstone=row.is_ended and not row.is_delete_requested)
        if row.is_ended:
            self._ledger.release(home.id)
            if self._pod_users[name]:
                self.allocations.detach_pod(name)
        else:
            amounts = {"memory_mib": row.memory_mib, "disk_mib": row.disk_mib}
            self._ledger.allocate(home.id, row.node, self._policy.environment_allocation(amounts))
        if row.is_ended and row.is_delete_requested:
            home.is_confirmed = home.may_exist = False
        self._update_candidate(home)

    def _pod_for(self, trajectory: EnvironmentName | None, resources: Resources) -> EnvironmentName | None:
        """The pod on whose cores an action runs that does not live there."""
        if trajectory is None or not resources.get("cpu_milli") or not self._policy.has_pods:
            return None
        home = self._environments.get(trajectory)
        return home.name if home is not None and home.node is not None and not home.is_ended else None

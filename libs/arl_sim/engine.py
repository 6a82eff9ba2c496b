"""Discrete-event simulation: trajectories think and submit, the policy plans, actions run and end.

The policies are the production ones, on the same snapshots; only their surroundings are simulated.
"""

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from arl_core.control.cpu_weights import CpuShareState, CpuWeightRange, cpu_weights
from arl_core.domain.model import ActionClass, Fence, Grant, QueuedAction, ResizeDecision, Resources
from arl_core.policies.policy import SchedulingPolicy
from arl_sim.cluster import CORE_MILLI, FREE_BATCH_SIZE, SimActionClasses, SimCluster, create_nodes
from arl_sim.duration_models import SimDurationModel
from arl_sim.results import ActionRecord, SimResult, UsageSegment
from arl_sim.scheduler_state import SimSchedulerState
from arl_sim.sim_attempt import SimAttempt, max_min_shares
from arl_sim.step_awareness import SimStepAwareness
from arl_sim.trajectory_progress import TrajectoryProgress
from arl_sim.workload import ActionWork, ResourceKind, SimTask, SimWorkload

__all__ = ["RESIZE_S", "START_S", "SimOverheads", "StuckError", "WorkloadSimulation"]

START_S = 0.02
"""Seconds from a grant to the start of the work: two network hops and a process start."""
RESIZE_S = 0.005
"""Seconds for which an action pauses when it is resized; a shrink frees nothing until then."""
SAME_MOMENT_S = 1e-9
_POD_ACTION = -1
"""Position of the action that creates an environment."""

Handler = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOverheads:
    """The overheads added to work, in seconds."""

    start_s: float = START_S
    pod_start_s: float = 0.0
    """Overhead with pods; 0 unless it was measured."""
    resize_s: float = RESIZE_S


class StuckError(RuntimeError):
    """Actions are queued, nothing runs, and the policy starts none."""


@dataclass(slots=True)
class _SimRunningAction:
    fence: Fence
    cls: ActionClass
    progress: TrajectoryProgress
    position: int
    """Index of the action in its trajectory."""
    submitted: float
    started: float
    node: int
    attempt: SimAttempt
    restore_s: float
    segment_start: float
    was_resized: bool = False
    is_resizing: bool = False


@dataclass
class WorkloadSimulation:
    """A run of a workload under a policy. The same input always gives the same result."""

    workload: SimWorkload
    cluster: SimCluster
    policy: SchedulingPolicy
    classes: SimActionClasses
    durations: SimDurationModel
    overheads: SimOverheads = SimOverheads()
    steps: SimStepAwareness = field(default_factory=lambda: SimStepAwareness(0.0))
    """Step awareness; without cores, no trajectory is critical."""
    _events: list[tuple[float, int, Handler]] = field(default_factory=list)
    _running: dict[UUID, _SimRunningAction] = field(default_factory=dict)
    _on_node: dict[int, dict[UUID, _SimRunningAction]] = field(default_factory=dict)
    _records: list[ActionRecord] = field(default_factory=list)
    _segments: list[UsageSegment] = field(default_factory=list)
    _task_ends: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = create_nodes(self.cluster, self.workload.services, self.workload.slots)
        self._state = SimSchedulerState(self.policy, nodes, self.durations)
        self._sequence = itertools.count()
        self._ids = itertools.count(1)
        self._position_of: dict[UUID, tuple[TrajectoryProgress, int]] = {}
        self._tasks = {task: number for number, task in enumerate(sorted({r.task for r in self.workload.trajectories}))}
        known = self.workload.tasks
        settings = {number: known.get(task, SimTask()) for task, number in self._tasks.items()} if known else {}
        self._state.set_tasks(
            {task: each.weight for task, each in settings.items()},
            {task: each.quota for task, each in settings.items() if each.quota.limits},
        )
        self._missed = 0
        self._oversubscribed: set[int] = set()
        self._changed = False

    def run(self) -> SimResult:
        """Run the simulation to its end.

        Raises OverbookedError or StuckError if the policy is at fault.
        """
        for number, rollout in enumerate(self.workload.trajectories):
            self._schedule(rollout.starts_s, partial(self._begin_trajectory, TrajectoryProgress(number, rollout)))
        rounds = 0
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] <= now + SAME_MOMENT_S:
                heapq.heappop(self._events)[2](now)
            if self._changed:
                self._run_round(now)
                rounds += 1
            if not self._events and self._state.queued_count:
                raise StuckError(f"{self._state.queued_count} actions wait for ever")
        return SimResult(
            self.cluster, tuple(self._records), self._task_ends, tuple(self._segments), rounds, self._missed
        )

    def _schedule(self, moment: float, handler: Handler) -> None:
        heapq.heappush(self._events, (moment, next(self._sequence), handler))

    def _run_round(self, now: float) -> None:
        self._changed = False
        if self.steps.project(now):
            self._state.set_critical(self.steps.critical)
        plan = self._state.plan(self.policy, now=now)
        for resize in plan.resizes:
            self._begin_resize(resize, now)
        for grant in plan.grants:
            self._start(grant, now)

    def _begin_trajectory(self, progress: TrajectoryProgress, now: float) -> None:
        self.steps.begin(progress.name, progress.trajectory)
        if self.policy.has_pods and progress.trajectory.has_environment:
            # A pod exists for its whole trajectory, including the thinking time before the first action.
            progress.is_creating_pod = True
            self._enqueue(
                progress,
                _POD_ACTION,
                self._make_action(progress, self.classes.environment_class(progress.trajectory.memory_mib), now),
                in_environment=True,
            )
        for at in progress.initial_positions():
            self._think(progress, at, now)

    def _think(self, progress: TrajectoryProgress, position: int, now: float) -> None:
        self._schedule(
            now + progress.trajectory.actions[position].think_s, partial(self._submit_action, progress, position)
        )

    def _submit_action(self, progress: TrajectoryProgress, position: int, now: float) -> None:
        turn = progress.trajectory.actions[position]
        cls = self.classes.class_for(turn.work)
        self.durations.submitted(cls, turn.work)
        if progress.started_at is None:
            progress.started_at = now
        action = self._make_action(progress, cls, now)._replace(
            priority=turn.priority, deadline=now + turn.deadline_s if turn.deadline_s is not None else None
        )
        # With pods, all CPU actions of a trajectory run in its pod.
        in_pod = self.policy.has_pods and progress.trajectory.has_environment
        at_home = turn.work.resource_kind is ResourceKind.CPU and (in_pod or not turn.is_outside_environment)
        if progress.is_creating_pod and at_home:
            progress.delayed.append((position, action))
        else:
            self._enqueue(progress, position, action, in_environment=at_home)

    def _enqueue(
        self, progress: TrajectoryProgress, position: int, action: QueuedAction, *, in_environment: bool
    ) -> None:
        self._changed = True
        self._position_of[action.id] = (progress, position)
        self._state.submit(action, environment=_environment_id(progress.number) if in_environment else None)
        if action.deadline is not None:
            self._schedule(max(action.deadline, action.submitted), partial(self._pass_deadline, action.id))

    def _pass_deadline(self, action_id: UUID, now: float) -> None:
        """Settle an action that is still queued at its deadline. Its trajectory goes on."""
        if action_id not in self._position_of:
            return
        self._changed = True
        self._missed += 1
        progress, position = self._position_of.pop(action_id)
        self._state.withdraw(action_id)
        self._continue_trajectory(progress, position, now)

    def _make_action(self, progress: TrajectoryProgress, cls: ActionClass, now: float) -> QueuedAction:
        return QueuedAction(
            id=UUID(int=next(self._ids)),
            cls=cls,
            task=self._tasks[progress.trajectory.task],
            submitted=now,
            grant_no=0,
            trajectory=progress.name,
            trajectory_started_at=progress.started_at if progress.started_at is not None else now,
            is_critical=progress.name in self.steps.critical,
        )

    def _start(self, grant: Grant, now: float) -> None:
        action = self._state.queued_action(grant.fence.action_id)
        life, at = self._position_of.pop(action.id)
        resident = self._state.apply_grant(grant, now=now)
        if action.cls.kind == "environment.create":
            self._schedule(now, partial(self._pod_created, life, grant))
            return
        service = action.cls.service
        restore_s = 0.0 if resident or service is None else service.restore_s(len(grant.devices))
        overhead_s = self.overheads.pod_start_s if self.policy.has_pods else self.overheads.start_s
        work = life.trajectory.actions[at].work
        units = self._units(work, grant.resources) if action.cls.sharing is None else float(work.choices[-1])
        attempt = SimAttempt(work, units, now + overhead_s + restore_s)
        running = _SimRunningAction(
            fence=grant.fence,
            cls=action.cls,
            progress=life,
            position=at,
            submitted=action.submitted,
            started=now,
            node=grant.node,
            attempt=attempt,
            restore_s=restore_s,
            segment_start=now,
        )
        self._running[action.id] = running
        self._on_node.setdefault(grant.node, {})[action.id] = running
        self._expect_end(running)
        self._share_node(grant.node, now)

    def _pod_created(self, progress: TrajectoryProgress, grant: Grant, now: float) -> None:
        self._changed = True
        self._state.release(grant.node, grant.fence.action_id, now=now)
        progress.is_creating_pod = False
        delayed, progress.delayed = progress.delayed, []
        for at, action in delayed:
            self._enqueue(progress, at, action, in_environment=True)

    def _expect_end(self, running: _SimRunningAction) -> None:
        version = running.attempt.version
        self._schedule(running.attempt.ends_at, partial(self._end, running, version))

    def _end(self, running: _SimRunningAction, version: int, now: float) -> None:
        if version != running.attempt.version:
            return
        self._changed = True
        action_id = running.fence.action_id
        life = running.progress
        work = running.attempt.work
        self._close_segment(running, now)
        del self._running[action_id], self._on_node[running.node][action_id]
        self._state.release(running.node, action_id, now=now)
        self._record_run(running, now)
        self._records.append(
            ActionRecord(
                id=action_id,
                trajectory=life.number,
                task=life.trajectory.task,
                work=work,
                node=running.node,
                submitted=running.submitted,
                started=running.started,
                ended=now,
                restore_s=running.restore_s,
            )
        )
        self._share_node(running.node, now)
        self._continue_trajectory(life, running.position, now)

    def _continue_trajectory(self, progress: TrajectoryProgress, position: int, now: float) -> None:
        self.steps.record_turn(progress.name, progress.trajectory, position)
        for following in progress.complete(position):
            self._think(progress, following, now)
        if not progress.is_finished:
            return
        self.steps.end(progress.name)
        task = progress.trajectory.task
        self._task_ends[task] = max(self._task_ends.get(task, 0.0), now)
        self._state.end_environment(progress.name)

    def _record_run(self, running: _SimRunningAction, now: float) -> None:
        attempt, elastic = running.attempt, running.cls.demand.elastic
        attempt.change(attempt.units, now=now, speed=attempt.speed)
        amount = 0
        if elastic is not None:
            per_unit = CORE_MILLI if attempt.work.resource_kind is ResourceKind.CPU else 1
            amount = round(attempt.mean_units * per_unit)
        self.durations.ended(
            running.cls, attempt.work, amount=amount, run_s=attempt.busy_s, steady=not running.was_resized
        )
        self._state.invalidate_estimates(running.cls)

    def _begin_resize(self, resize: ResizeDecision, now: float) -> None:
        running = self._running.get(resize.fence.action_id)
        if running is None or running.fence != resize.fence or running.is_resizing:
            return
        running.was_resized = running.is_resizing = True
        self._state.begin_resize(resize.fence, running.node, resize.resources)
        self._close_segment(running, now)
        pause_s = self.overheads.resize_s
        running.attempt.change(self._units(running.attempt.work, resize.resources), now=now, pause_s=pause_s)
        self._expect_end(running)
        self._schedule(now + pause_s, partial(self._finish_resize, running))

    def _finish_resize(self, running: _SimRunningAction, now: float) -> None:
        """Confirm a resize; only now are the resources of a shrink free."""
        self._changed = True
        running.is_resizing = False
        if running.fence.action_id in self._running:
            self._state.end_resize(running.fence, running.node, now=now)

    def _close_segment(self, running: _SimRunningAction, now: float) -> None:
        if now > running.segment_start:
            attempt = running.attempt
            batched = attempt.work.service in self.cluster.shared
            units = attempt.units * attempt.speed / FREE_BATCH_SIZE if batched else attempt.units
            piece = UsageSegment(
                running.progress.number, running.node, attempt.work.resource_kind, units, running.segment_start, now
            )
            self._segments.append(piece)
        running.segment_start = now

    def _share_node(self, node: int, now: float) -> None:
        """Update the speed of the actions on a node, which share it."""
        there = self._on_node.get(node, {})
        cores = self._state.capacity(node).get("cpu_milli", 0) / CORE_MILLI
        if cores:
            self._share_cores(node, there, cores, now)
        elif any(running.attempt.work.service in self.cluster.shared for running in there.values()):
            for running in there.values():
                self._change_units(running, running.attempt.units, now, speed=min(1.0, FREE_BATCH_SIZE / len(there)))

    def _share_cores(self, node: int, active: Mapping[UUID, _SimRunningAction], cores: float, now: float) -> None:
        """Give each action its fair share if they want more cores than the node has, as in overcommitted pods."""
        wanted = {
            action_id: self._wanted_units(running, self._state.allocated_resources(node, action_id) or {})
            for action_id, running in active.items()
        }
        weights = self._weights(active, cores, now)
        crowded = sum(wanted.values()) > cores
        if not crowded and node not in self._oversubscribed:
            return
        (self._oversubscribed.add if crowded else self._oversubscribed.discard)(node)
        for action_id, units in max_min_shares(wanted, cores, weights).items():
            self._change_units(active[action_id], units, now)

    def _weights(
        self, active: Mapping[UUID, _SimRunningAction], cores: float, now: float
    ) -> Mapping[UUID, float] | None:
        """Return the kernel weights of actions that share cores; None if no action does."""
        states = {
            action_id: CpuShareState(
                guarantee_milli=running.cls.sharing.guarantee_milli,
                expected_cpu_s=self._state.expected_cpu_s(running.cls),
                used_cpu_s=running.attempt.used_unit_s(now),
                is_critical=running.progress.name in self.steps.critical,
                is_declared=running.cls.sharing.is_declared,
            )
            for action_id, running in active.items()
            if running.cls.sharing is not None
        }
        if len(states) < len(active) or not states:
            return None
        found = cpu_weights(states, cores=cores, weights=CpuWeightRange(1, 10_000_000, per_core=10_000))
        return {action_id: float(found[action_id]) for action_id in states}

    def _wanted_units(self, running: _SimRunningAction, resources: Resources) -> float:
        """Return the units that the action uses if it is alone on its node."""
        if running.cls.sharing is not None:
            return float(running.attempt.work.choices[-1])
        return self._units(running.attempt.work, resources)

    def _change_units(self, running: _SimRunningAction, units: float, now: float, *, speed: float = 1.0) -> None:
        if (units, speed) != (running.attempt.units, running.attempt.speed):
            self._close_segment(running, now)
            running.attempt.change(units, now=now, speed=speed)
            self._expect_end(running)

    def _units(self, work: ActionWork, resources: Resources) -> float:
        """Return the units on which the action runs, limited to what it can use."""
        match work.resource_kind:
            case ResourceKind.CPU:
                units = resources["cpu_milli"] / CORE_MILLI
            case ResourceKind.GPU:
                units = float(resources.get("gpu") or self.cluster.dedicated[work.service or ""])
            case ResourceKind.API:
                units = 1.0
        return min(units, float(work.choices[-1]))


def _environment_id(rollout: int) -> UUID:
    return UUID(int=(1 << 64) + rollout)

"""Forecast of the queue without new arrivals: the policy's own rounds, simulated on a copy of a cell.

Every action takes its expected duration. Existing environments stay. An environment created during the forecast ends
with its last known action. Resizes take effect immediately.
"""

import copy
import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import islice
from uuid import UUID

from arl_core.capacity.running_index import RunningIndex
from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import (
    Grant,
    NodeResources,
    PinnedEnvironment,
    QueuedAction,
    ResizeDecision,
    Resources,
    RunningAction,
)
from arl_core.domain.states import UnstartedReason
from arl_core.durations.curves import CurveCache, DurationModel
from arl_core.policies.policy import SchedulingPolicy
from arl_core.queue.fairness import FairShares, ShareAccounting, total_resources
from arl_core.queue.queue_index import QueueIndex
from arl_core.queue.quotas import QuotaUsage

__all__ = ["STEP_BATCH", "ActiveAction", "ForecastInput", "ForecastSimulator", "QueueForecast"]

SAME_MOMENT_S = 0.01
"""Seconds within which ends are treated as simultaneous, followed by one round."""
STEP_BATCH = 1000
"""Running actions that are loaded, or that end, in one step."""


@dataclass(frozen=True, slots=True)
class ActiveAction:
    """A granted or running action and its persistent environment."""

    running: RunningAction
    environment: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastInput:
    """A copy of a cell at one moment; later changes by the scheduler do not affect it."""

    now: float
    nodes: Mapping[int, NodeResources]
    active: tuple[ActiveAction, ...]
    dirty_nodes: frozenset[int] = frozenset()
    """Nodes that the next round would examine for resizes."""
    queued: tuple[QueuedAction, ...]
    """Queued actions; those of one environment in their order of execution."""
    shares: FairShares
    """Fair shares in which every action of `active` and `queued` is registered."""
    durations: DurationModel
    quotas: QuotaUsage = field(default_factory=QuotaUsage)
    """Quotas of tasks, in which every action of `active` is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueForecast:
    """The forecast of the queued actions, in seconds from now. Running actions only release their allocations."""

    simulated: int
    starts_now: int
    """Number of actions granted before any other action ends."""
    started: int
    mean_wait_s: float | None
    """Mean wait of the started actions; None if none started."""
    p90_wait_s: float | None
    drained_s: float | None
    """Time at which the last action starts; None if some do not start."""
    unstarted: Mapping[UnstartedReason, int]
    """Number of actions that do not start, by reason."""


@dataclass(slots=True)
class _ForecastEnvironment:
    node: int
    allocated: Resources
    """Resources released at its end; empty for an existing environment, which stays."""


class ForecastSimulator:
    """A simulator that advances in short steps, so that the caller can do other work in between."""

    def __init__(self, start: ForecastInput, policy: SchedulingPolicy, *, limit: int) -> None:
        """Initialize the simulation.

        `limit` is the policy's limit of grants per round. A round that reaches it may have been cut short.
        """
        self._input, self._policy, self._limit = start, policy, limit
        self._now = start.now
        self._nodes = dict(start.nodes)
        self._available = {node: dict(pool.available) for node, pool in start.nodes.items()}
        self._stale: set[int] = set()
        self._curves = CurveCache(start.durations)
        self._curves.now = start.now
        self._accounts = ShareAccounting()
        self._accounts.shares = copy.deepcopy(start.shares)
        self._accounts.total = total_resources(pool.capacity for pool in start.nodes.values())
        self._quotas = copy.deepcopy(start.quotas)
        self._running = RunningIndex()
        self._active: dict[UUID, ActiveAction] = {}
        self._ends: dict[UUID, float] = {}
        self._events: list[tuple[float, UUID]] = []
        self._queue = QueueIndex()
        self._queued: dict[UUID, QueuedAction] = {}
        self._environment_queues: dict[UUID, deque[QueuedAction]] = {}
        self._environments: dict[UUID, _ForecastEnvironment] = {}
        self._busy: set[UUID] = set()
        self._waits: list[float] = []
        self._starts_now = 0
        self._is_started = self._is_finished = False
        self._moment_end: float | None = None
        """End of the moment that is being processed."""
        self._not_loaded = iter(start.active)

    def step(self) -> bool:
        """Run one round and advance to the next end; return False if nothing more would happen.

        Loading running actions and processing ends also take steps of at most `STEP_BATCH` actions.
        """
        if not self._is_started:
            self._load_active()
            return True
        if self._moment_end is None:
            if self._run_round():
                return True
            if not self._queued or not self._events:
                self._is_finished = True
                return False
            self._moment_end = self._events[0][0] + SAME_MOMENT_S
        self._advance(self._moment_end)
        return True

    def forecast(self) -> QueueForecast:
        """Return the result of the steps so far."""
        waits = sorted(self._waits)
        return QueueForecast(
            simulated=sum(1 + len(action.gang_members) for action in self._input.queued),
            starts_now=self._starts_now,
            started=len(waits),
            mean_wait_s=sum(waits) / len(waits) if waits else None,
            p90_wait_s=waits[math.ceil(0.9 * len(waits)) - 1] if waits else None,
            drained_s=(waits[-1] if waits else 0.0) if self._is_finished and not self._queued else None,
            unstarted=self._unstarted(),
        )

    def _unstarted(self) -> Counter[UnstartedReason]:
        """Count the actions that have not started, by reason. An action has the reason of the first one before it."""
        found: Counter[UnstartedReason] = Counter()
        if not self._is_started:
            found[UnstartedReason.TIME_LIMIT] = sum(1 + len(action.gang_members) for action in self._input.queued)
            return found
        room = self._quotas.room()
        reasons: dict[UUID, UnstartedReason] = {}
        for action in self._input.queued:
            if action.id not in self._queued:
                continue
            first = action.environment.id if action.environment is not None else action.id
            if first not in reasons:
                allowed = room is None or room.has_room(action)
                reasons[first] = UnstartedReason.NO_NODE_FITS if allowed else UnstartedReason.TASK_AT_QUOTA
            reason = reasons[first] if self._is_finished else UnstartedReason.TIME_LIMIT
            found[reason] += 1 + len(action.gang_members)
        return found

    def _load_active(self) -> None:
        for each in islice(self._not_loaded, STEP_BATCH):
            running = each.running._replace(resizing_to=None)
            self._schedule_end(
                ActiveAction(running, each.environment), ends=self._now + self._curves.remaining_s(running)
            )
            if each.environment is not None:
                self._environments[each.environment] = _ForecastEnvironment(each.running.node, {})
        if len(self._active) == len(self._input.active):
            self._running.mark_clean(except_nodes=self._input.dirty_nodes)
            self._load_queue()
            self._is_started = True

    def _load_queue(self) -> None:
        for action in self._input.queued:
            self._queued |= {each.id: each for each in (action, *action.gang_members)}
            if action.environment is None:
                self._queue.add(action)
                continue
            if action.environment.node is not None:
                self._environments.setdefault(action.environment.id, _ForecastEnvironment(action.environment.node, {}))
            self._environment_queues.setdefault(action.environment.id, deque()).append(action)
        for environment in self._environment_queues:
            self._offer_next_action(environment)

    def _run_round(self) -> bool:
        """Run a round; return True if another round must follow before any action ends."""
        self._curves.now = self._now
        plan = self._policy.plan(self._snapshot())
        self._running.mark_clean(except_nodes=plan.watched_nodes, reserved=plan.reserved)
        for resize in plan.resizes:
            self._resize(resize)
        for grant in plan.grants:
            self._start(grant)
        return bool(plan.resizes) or len(plan.grants) >= self._limit

    def _snapshot(self) -> CellSnapshot:
        for node in self._stale:
            self._nodes[node] = replace(self._nodes[node], available=dict(self._available[node]))
        self._stale.clear()
        return CellSnapshot(
            now=self._now,
            queue=self._queue,
            nodes=self._nodes,
            running=self._running,
            curves=self._curves,
            shares=self._accounts.shares,
            quotas=self._quotas,
        )

    def _advance(self, until: float) -> None:
        for _ in range(STEP_BATCH):
            if not self._events or self._events[0][0] > until:
                self._moment_end = None
                return
            ends, action_id = heappop(self._events)
            if self._ends.get(action_id) == ends:
                self._now = max(self._now, ends)
                self._finish_action(action_id)

    def _start(self, grant: Grant) -> None:
        action = self._queued.pop(grant.fence.action_id)
        self._queue.discard(action.id)
        waited_s = self._now - self._input.now
        self._waits.append(waited_s)
        self._starts_now += int(waited_s == 0.0)
        environment = action.environment.id if action.environment is not None else None
        if environment is not None:
            self._environment_queues[environment].popleft()
            self._enter_environment(environment, grant)
        running = RunningAction(
            fence=grant.fence,
            cls=action.cls,
            node=grant.node,
            resources=grant.resources,
            granted=self._now,
            task=action.task,
            started=self._now,
            allocated_since=self._now,
            in_environment=environment is not None,
        )
        expected_s = self._curves.expected_s(action.cls, grant.resources)
        share_s = self._curves.share_s(action.cls, grant.resources, self._accounts.total)
        self._accounts.record_granted(action.id, action.task, share_s, grant.resources)
        self._quotas.add_usage(action.task, grant.resources)
        self._adjust_available(grant.node, self._allocated(running, environment), sign=-1)
        self._schedule_end(ActiveAction(running, environment), ends=self._now + expected_s)

    def _enter_environment(self, environment: UUID, grant: Grant) -> None:
        if environment in self._environments:
            return
        holds = self._policy.environment_allocation(grant.resources)
        self._environments[environment] = _ForecastEnvironment(grant.node, holds)
        self._adjust_available(grant.node, holds, sign=-1)
        self._add_environments(grant.node, 1)

    def _schedule_end(self, active: ActiveAction, *, ends: float) -> None:
        action_id = active.running.fence.action_id
        self._active[action_id], self._ends[action_id] = active, ends
        heappush(self._events, (ends, action_id))
        self._running.add(active.running)
        if active.environment is not None:
            self._busy.add(active.environment)

    def _resize(self, resize: ResizeDecision) -> None:
        working = self._active.get(resize.fence.action_id)
        if working is None or working.running.cls is None:
            return
        running = working.running
        before_s, after_s = (
            self._curves.expected_s(working.running.cls, a) for a in (running.resources, resize.resources)
        )
        rest_s = (self._ends[resize.fence.action_id] - self._now) * after_s / before_s
        resized = running._replace(
            resources=resize.resources, allocated_since=self._now, remaining_work=rest_s / after_s, resizing_to=None
        )
        self._adjust_available(running.node, self._allocated(running, working.environment), sign=1)
        self._adjust_available(running.node, self._allocated(resized, working.environment), sign=-1)
        self._schedule_end(ActiveAction(resized, working.environment), ends=self._now + rest_s)

    def _finish_action(self, action_id: UUID) -> None:
        working = self._active.pop(action_id)
        running = working.running
        del self._ends[action_id]
        self._running.discard(action_id)
        self._adjust_available(running.node, self._allocated(running, working.environment), sign=1)
        self._accounts.record_released(
            action_id, running.task, running.resources, allocated_s=self._now - running.granted
        )
        self._accounts.shares.remove_action(running.task)
        self._quotas.remove_usage(running.task, running.resources)
        if working.environment is not None:
            self._busy.discard(working.environment)
            self._offer_next_action(working.environment)

    def _offer_next_action(self, environment: UUID) -> None:
        if environment in self._busy:
            return
        home, line = self._environments.get(environment), self._environment_queues.get(environment)
        if line:
            node = home.node if home is not None else None
            self._queue.add(line[0]._replace(environment=PinnedEnvironment(environment, node)))
        elif home is not None and home.allocated:
            del self._environments[environment]
            self._adjust_available(home.node, home.allocated, sign=1)
            self._add_environments(home.node, -1)

    def _allocated(self, running: RunningAction, environment: UUID | None) -> Resources:
        return self._policy.action_allocation(running.resources, in_environment=environment is not None, in_pod=False)

    def _add_environments(self, node: int, by: int) -> None:
        pool = self._nodes[node]
        self._nodes[node] = replace(pool, environments=pool.environments + by)

    def _adjust_available(self, node: int, resources: Resources, *, sign: int) -> None:
        free = self._available.setdefault(node, {})
        for resource, amount in resources.items():
            free[resource] = free.get(resource, 0) + sign * amount
        if node in self._nodes:
            self._stale.add(node)

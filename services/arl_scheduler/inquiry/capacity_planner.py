"""Capacity plans: simulations with other nodes or more actions. They do not affect rounds."""

import asyncio
import copy
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from arl_core.capacity.snapshot import CellSnapshot
from arl_core.domain.model import QueuedAction, ResourceDemand
from arl_core.domain.states import UnstartedReason
from arl_core.inquiry.capacity_plan import (
    BaselineDurations,
    ExtraLoad,
    NodeChange,
    schedulable_cores,
    with_extra_load,
    with_node_change,
)
from arl_core.inquiry.forecast import ActiveAction, ForecastInput, ForecastSimulator
from arl_core.policies.policy import SchedulingPolicy
from arl_scheduler.index.scheduler_index import SchedulerIndex
from arl_scheduler.leader.scheduling_loop import SchedulingLoop
from arl_scheduler.queries.poll_result import to_elastic_resource
from arl_wire.admin.capacity import CapacityForecast, CapacityPlan, CapacityPlanQuery, UnstartedActions
from arl_wire.errors import Conflict, Unavailable
from arl_wire.internal.scheduler import CapacityPlanRequest

__all__ = ["ROUND_GRANTS", "CapacityPlanner", "build_forecast_input"]

MAX_SIMULATED = 2000
"""Maximum number of simulated actions, members of gangs included. They are copied without a pause."""
ROUND_GRANTS = 100
"""Maximum grants of one simulated round; the leader's own rounds run in between."""
FORECAST_TIME_S = 4.0
"""Seconds of one forecast; a plan has up to two, and the gateway waits for both."""


class CapacityPlanner:
    """A planner that computes one capacity plan at a time."""

    def __init__(self, loop: SchedulingLoop, policy: SchedulingPolicy, *, work_s: float = FORECAST_TIME_S) -> None:
        """Plan with the leader's policy, with at most `ROUND_GRANTS` in a round."""
        self._loop = loop
        self._policy = policy
        self._work_s = work_s
        self._lock = asyncio.Lock()

    async def plan(self, request: CapacityPlanRequest) -> CapacityPlan:
        """Compute a plan.

        Raises `Unavailable` if another scheduler leads or another plan is computed, and `Conflict` under a policy of
        pods.
        """
        if self._policy.has_pods:
            raise Conflict(
                "capacity plans are not available under static provisioning: the end of a trajectory cannot be"
                " predicted"
            )
        if self._lock.locked():
            raise Unavailable("another capacity plan is being computed; try again", retry_after_s=1)
        async with self._lock:
            return await self._make_plan(request)

    async def _make_plan(self, request: CapacityPlanRequest) -> CapacityPlan:
        view = self._loop.view()
        if view is None:
            raise Unavailable("this scheduler does not lead, or has just started to lead; try again", retry_after_s=1)
        index, snapshot = view
        present = build_forecast_input(index, snapshot)
        left_out = _count_left_out(index, present)
        current = await self._forecast(present, left_out)
        if not request.question.has_changes:
            return CapacityPlan(current=current)
        changed = _apply_changes(present, request)
        return CapacityPlan(current=current, hypothetical=await self._forecast(changed, left_out))

    async def _forecast(self, start: ForecastInput, left_out: Counter[UnstartedReason]) -> CapacityForecast:
        ends_at = time.monotonic() + self._work_s
        forecasting = ForecastSimulator(start, self._policy, limit=ROUND_GRANTS)
        goes_on = True
        while goes_on and time.monotonic() < ends_at:
            # Rounds and requests run between the steps.
            await asyncio.sleep(0)
            goes_on = forecasting.step()
        found = forecasting.forecast()
        with_cores = schedulable_cores(start.nodes)
        unstarted = left_out + Counter(found.unstarted)
        return CapacityForecast(
            nodes=len(with_cores),
            cpu_milli=sum(with_cores.values()),
            queued=found.simulated + left_out.total(),
            simulated=found.simulated,
            starts_now=found.starts_now,
            started=found.started,
            mean_wait_s=_rounded(found.mean_wait_s),
            p90_wait_s=_rounded(found.p90_wait_s),
            drain_s=None if unstarted else _rounded(found.drained_s),
            complete=not goes_on and not unstarted,
            unstarted=[UnstartedActions(reason=reason, actions=count) for reason, count in sorted(unstarted.items())],
        )


def build_forecast_input(index: SchedulerIndex, snapshot: CellSnapshot) -> ForecastInput:
    """Copy the state without yielding to the event loop.

    Rate limits are ignored: a call starts as soon as its concurrency quota allows.
    """
    pools = index.rate_limit_timer.ignore_rate_limits(snapshot.nodes)
    return ForecastInput(
        now=snapshot.now,
        nodes={node: replace(pool, available=dict(pool.available)) for node, pool in pools.items()},
        active=tuple(
            ActiveAction(
                snapshot.running.on_node(hold.node)[hold.fence.action_id],
                index.environments.environment_id(hold.environment_name),
            )
            for hold in index.allocations
        ),
        dirty_nodes=snapshot.running.dirty_nodes,
        queued=tuple(_queued_actions(index, snapshot)),
        shares=copy.deepcopy(snapshot.shares),
        durations=BaselineDurations(snapshot.curves.durations),
        quotas=copy.deepcopy(snapshot.quotas),
    )


def _queued_actions(index: SchedulerIndex, snapshot: CellSnapshot) -> list[QueuedAction]:
    """Return the actions that may start, in order of arrival, and then those behind them in their environments."""
    found = list(_take_first(snapshot.queue.in_order()))
    room = MAX_SIMULATED - sum(1 + len(action.gang_members) for action in found)
    behind = {action.trajectory: 1 for action in found if action.environment is not None}
    busy = {hold.environment_name: 0 for hold in index.allocations if hold.environment_name is not None}
    for name, first in (behind | busy).items():
        if room <= 0:
            break
        line = index.environment_queue(name, first=first, limit=room) if name is not None else []
        found += line
        room -= len(line)
    return found


def _count_left_out(index: SchedulerIndex, present: ForecastInput) -> Counter[UnstartedReason]:
    """Count the queued actions that the forecast does not simulate, by reason."""
    paused, simulated = index.paused_count, sum(1 + len(action.gang_members) for action in present.queued)
    left = index.queued_count - paused
    reason = UnstartedReason.NOT_SIMULATED if left > MAX_SIMULATED else UnstartedReason.ENVIRONMENT_ENDING
    return +Counter({UnstartedReason.QUEUE_PAUSED: paused, reason: left - simulated})


def _take_first(actions: Iterable[QueuedAction]) -> Iterator[QueuedAction]:
    """Yield up to `MAX_SIMULATED` actions. A gang counts as all its members and is never split."""
    room = MAX_SIMULATED
    for action in actions:
        room -= 1 + len(action.gang_members)
        if room < 0:
            return
        yield action


def _apply_changes(start: ForecastInput, request: CapacityPlanRequest) -> ForecastInput:
    question = request.question
    closed = frozenset(request.without)
    nodes = with_node_change(start, NodeChange(added=question.add_nodes, cordoned=closed))
    part = question.core_fraction(sum(schedulable_cores(nodes.nodes).values()))
    changed = with_node_change(nodes, NodeChange(cores_factor=part))
    return with_extra_load(changed, _to_extra_load(question)) if question.actions else changed


def _to_extra_load(question: CapacityPlanQuery) -> ExtraLoad:
    least = max(1, round(1000 * question.cpu))
    most = max(least, round(1000 * (question.cpu_max or question.cpu)))
    minimum = {"cpu_milli": least, "memory_mib": question.memory_mib, "disk_mib": question.disk_mib}
    amdahl = {"model": "amdahl", "parallel_fraction": question.parallel_fraction}
    entry = {"resource": "cpu_milli", "min": least, "max": most, "step": 1000, "elasticity": amdahl}
    elastic = to_elastic_resource(entry) if most > least else None
    return ExtraLoad(count=question.actions, demand=ResourceDemand(minimum, elastic), run_time_s=question.seconds)


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None else None

"""What would be with other nodes or more actions: for whoever asks, and without any part in rounds."""

import asyncio
import copy
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from arl_core.forecast import Forecasting, Present, Working
from arl_core.model import Demand, Waiting
from arl_core.plan import Policy
from arl_core.snapshot import Snapshot
from arl_core.what_if import AsKnown, Nodes, Wave, open_cores, with_nodes, with_wave
from arl_scheduler.index import Index
from arl_scheduler.rounds import Rounds
from arl_scheduler.rows import elastic_of
from arl_wire.errors import Conflict, Unavailable
from arl_wire.internal import PlanAsk
from arl_wire.plans import CapacityPlan, PlanForecast, PlanQuestion

__all__ = ["ROUND", "Planning", "present_of"]

SIMULATED = 2000
"""Waiting actions, at most, the members of gangs among them: they are copied in one go."""
ROUND = 100
"""Grants of one simulated round, between which the leader's own have their turn."""
WORK_S = 4.0
"""For one forecast; the gateway waits for two."""


class Planning:
    def __init__(self, rounds: Rounds, policy: Policy, *, work_s: float = WORK_S) -> None:
        """The leader's policy, with `ROUND` grants in a round at most."""
        self._rounds = rounds
        self._policy = policy
        self._work_s = work_s
        self._one = asyncio.Lock()

    async def plan(self, ask: PlanAsk) -> CapacityPlan:
        """Raises `Unavailable` where another scheduler leads, or another plan is being made."""
        if self._policy.has_pods:
            raise Conflict("pods are held until their trajectories end, and nobody knows when that is: no plan of them")
        if self._one.locked():
            raise Unavailable("another plan is being made; try again", retry_after_s=1)
        async with self._one:
            return await self._plan(ask)

    async def _plan(self, ask: PlanAsk) -> CapacityPlan:
        view = self._rounds.view()
        if view is None:
            raise Unavailable("this scheduler does not lead, or has begun just now; try again", retry_after_s=1)
        index, snapshot = view
        waiting, present = index.waiting, present_of(index, snapshot)
        as_is = await self._forecast(present, waiting=waiting)
        if not ask.question.changes_anything:
            return CapacityPlan(as_is=as_is)
        changed = _changed(present, ask)
        waiting += ask.question.actions
        return CapacityPlan(as_is=as_is, changed=await self._forecast(changed, waiting=waiting))

    async def _forecast(self, present: Present, *, waiting: int) -> PlanForecast:
        ends_at = time.monotonic() + self._work_s
        forecasting = Forecasting(present, self._policy, limit=ROUND)
        goes_on = True
        while goes_on and time.monotonic() < ends_at:
            # Rounds and requests get their turn after each.
            await asyncio.sleep(0)
            goes_on = forecasting.step()
        found = forecasting.forecast()
        with_cores = open_cores(present.pools)
        return PlanForecast(
            nodes=len(with_cores),
            cpu_milli=sum(with_cores.values()),
            waiting=waiting,
            simulated=found.simulated,
            starts_now=found.starts_now,
            started=found.started,
            mean_wait_s=_rounded(found.mean_wait_s),
            p90_wait_s=_rounded(found.p90_wait_s),
            drained_s=_rounded(found.drained_s),
            complete=not goes_on,
        )


def present_of(index: Index, snapshot: Snapshot) -> Present:
    """Copied before anything else has its turn.

    Of rates nothing is counted: each call holds what it holds, and starts as soon as that is free.
    """
    pools = index.tokens.not_counted(snapshot.pools)
    return Present(
        now=snapshot.now,
        pools={node: replace(pool, free=dict(pool.free)) for node, pool in pools.items()},
        working=tuple(
            Working(snapshot.running.on(hold.node)[hold.fence.action_id], index.homes.environment(hold.home))
            for hold in index.holds
        ),
        stirred=snapshot.running.stirred,
        waiting=tuple(_waiting(index, snapshot)),
        shares=copy.deepcopy(snapshot.shares),
        durations=AsKnown(snapshot.curves.durations),
    )


def _waiting(index: Index, snapshot: Snapshot) -> list[Waiting]:
    """Who may start, in order of arrival, and who comes after each in its environment."""
    found = list(_first(each for each in snapshot.waiting.in_order() if each.task not in snapshot.quotas))
    room = SIMULATED - sum(1 + len(action.together) for action in found)
    behind = {action.trajectory: 1 for action in found if action.environment is not None}
    busy = {hold.home: 0 for hold in index.holds if hold.home is not None}
    for name, first in (behind | busy).items():
        if room <= 0:
            break
        line = index.line(name, first=first, limit=room) if name is not None else []
        found += line
        room -= len(line)
    return found


def _first(actions: Iterable[Waiting]) -> Iterator[Waiting]:
    """As many as are simulated; a gang counts as all of its members, and is taken whole or not."""
    room = SIMULATED
    for action in actions:
        room -= 1 + len(action.together)
        if room < 0:
            return
        yield action


def _changed(present: Present, ask: PlanAsk) -> Present:
    question = ask.question
    closed = frozenset(ask.without)
    nodes = with_nodes(present, Nodes(added=question.add_nodes, closed=closed))
    part = question.cores_part(sum(open_cores(nodes.pools).values()))
    changed = with_nodes(nodes, Nodes(cores_part=part))
    return with_wave(changed, _wave(question)) if question.actions else changed


def _wave(question: PlanQuestion) -> Wave:
    least = max(1, round(1000 * question.cpu))
    most = max(least, round(1000 * (question.cpu_max or question.cpu)))
    minimum = {"cpu_milli": least, "memory_mib": question.memory_mib, "disk_mib": question.disk_mib}
    amdahl = {"model": "amdahl", "parallel_fraction": question.parallel_fraction}
    entry = {"resource": "cpu_milli", "min": least, "max": most, "step": 1000, "elasticity": amdahl}
    elastic = elastic_of(entry) if most > least else None
    return Wave(count=question.actions, demand=Demand(minimum, elastic), seconds=question.seconds)


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None else None

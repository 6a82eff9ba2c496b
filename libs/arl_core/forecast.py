"""What becomes of what waits if nothing more comes: the policy's own rounds, one after another, on a copy of a cell.

Everything takes as long as the policy expects. Environments that live stay; one that is made on the way ends with the
last action that is known of it. What a resize changes holds at once.
"""

import copy
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice
from uuid import UUID

from arl_core.accounts import Accounts
from arl_core.curves import Curves, Durations
from arl_core.fairness import Shares, total_amounts
from arl_core.model import Amounts, Environment, Grant, Pool, Resize, Running, Waiting
from arl_core.plan import Policy
from arl_core.running import RunningIndex
from arl_core.snapshot import Snapshot
from arl_core.waiting import WaitingIndex

__all__ = ["AT_ONCE", "Forecast", "Forecasting", "Present", "Working"]

TOGETHER_S = 0.01
"""What ends within so long is one moment, and one round follows."""
AT_ONCE = 1000
"""Running actions that are taken in, or end, in one step."""


@dataclass(frozen=True, slots=True)
class Working:
    """A granted or running action, and the persistent environment it is in."""

    running: Running
    environment: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A cell at one moment, copied: whatever its scheduler does afterwards changes nothing here."""

    now: float
    pools: Mapping[int, Pool]
    working: tuple[Working, ...]
    stirred: frozenset[int] = frozenset()
    """Nodes at which the next round would look for whom to resize."""
    waiting: tuple[Waiting, ...]
    """Those of one environment in the order in which they run there, one after another."""
    shares: Shares
    """Every action of `working` and `waiting` has begun in them."""
    durations: Durations


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds from now. Of the actions that wait now; what runs already only frees what it holds."""

    simulated: int
    starts_now: int
    """Granted before anything has ended."""
    started: int
    mean_wait_s: float | None
    """Of those that started; None where none did."""
    p90_wait_s: float | None
    drained_s: float | None
    """When the last of them starts; None where not all do."""


@dataclass(slots=True)
class _Home:
    node: int
    holds: Amounts
    """What it gives back at its end; nothing of one that lives now, as that stays."""


class Forecasting:
    """`step` by `step`, so that whoever has other things to do can do them in between."""

    def __init__(self, present: Present, policy: Policy, *, limit: int) -> None:
        """`limit` is the policy's own: a round that made so many grants may have been cut short."""
        self._present, self._policy, self._limit = present, policy, limit
        self._now = present.now
        self._pools = dict(present.pools)
        self._free = {node: dict(pool.free) for node, pool in present.pools.items()}
        self._stale: set[int] = set()
        self._curves = Curves(present.durations)
        self._curves.now = present.now
        self._accounts = Accounts()
        self._accounts.shares = copy.deepcopy(present.shares)
        self._accounts.total = total_amounts(pool.capacity for pool in present.pools.values())
        self._running = RunningIndex()
        self._working: dict[UUID, Working] = {}
        self._ends: dict[UUID, float] = {}
        self._events: list[tuple[float, UUID]] = []
        self._waiting = WaitingIndex()
        self._queued: dict[UUID, Waiting] = {}
        self._lines: dict[UUID, deque[Waiting]] = {}
        self._homes: dict[UUID, _Home] = {}
        self._busy: set[UUID] = set()
        self._waits: list[float] = []
        self._starts_now = 0
        self._begun = False
        self._until: float | None = None
        """The end of the moment that is being gone through."""
        self._beginning = iter(present.working)

    def step(self) -> bool:
        """One round, and on to what ends next. False where nothing more would happen.

        The first steps only take in what runs, and those between two rounds what ends: `AT_ONCE` in each.
        """
        if not self._begun:
            self._begin()
            return True
        if self._until is None:
            if self._round():
                return True
            if not self._queued or not self._events:
                return False
            self._until = self._events[0][0] + TOGETHER_S
        self._advance(self._until)
        return True

    def forecast(self) -> Forecast:
        """As far as the steps went."""
        waits = sorted(self._waits)
        return Forecast(
            simulated=sum(1 + len(action.together) for action in self._present.waiting),
            starts_now=self._starts_now,
            started=len(waits),
            mean_wait_s=sum(waits) / len(waits) if waits else None,
            p90_wait_s=waits[math.ceil(0.9 * len(waits)) - 1] if waits else None,
            drained_s=(waits[-1] if waits else 0.0) if not self._queued else None,
        )

    def _begin(self) -> None:
        for each in islice(self._beginning, AT_ONCE):
            running = each.running._replace(changing_to=None)
            self._run(Working(running, each.environment), ends=self._now + self._curves.remaining_s(running))
            if each.environment is not None:
                self._homes[each.environment] = _Home(each.running.node, {})
        if len(self._working) == len(self._present.working):
            self._running.calm(but=self._present.stirred)
            self._line_up()
            self._begun = True

    def _line_up(self) -> None:
        for action in self._present.waiting:
            self._queued |= {each.id: each for each in (action, *action.together)}
            if action.environment is None:
                self._waiting.add(action)
                continue
            if action.environment.node is not None:
                self._homes.setdefault(action.environment.id, _Home(action.environment.node, {}))
            self._lines.setdefault(action.environment.id, deque()).append(action)
        for environment in self._lines:
            self._offer_next(environment)

    def _round(self) -> bool:
        """Whether another is to follow before anything ends."""
        self._curves.now = self._now
        plan = self._policy.plan(self._snapshot())
        self._running.calm(but=plan.watched, reserved=plan.reserved)
        for resize in plan.resizes:
            self._resize(resize)
        for grant in plan.grants:
            self._start(grant)
        return bool(plan.resizes) or len(plan.grants) >= self._limit

    def _snapshot(self) -> Snapshot:
        for node in self._stale:
            self._pools[node] = replace(self._pools[node], free=dict(self._free[node]))
        self._stale.clear()
        return Snapshot(
            now=self._now,
            waiting=self._waiting,
            pools=self._pools,
            running=self._running,
            curves=self._curves,
            shares=self._accounts.shares,
        )

    def _advance(self, until: float) -> None:
        for _ in range(AT_ONCE):
            if not self._events or self._events[0][0] > until:
                self._until = None
                return
            ends, action_id = heappop(self._events)
            if self._ends.get(action_id) == ends:
                self._now = max(self._now, ends)
                self._end(action_id)

    def _start(self, grant: Grant) -> None:
        action = self._queued.pop(grant.fence.action_id)
        self._waiting.discard(action.id)
        waited_s = self._now - self._present.now
        self._waits.append(waited_s)
        self._starts_now += int(waited_s == 0.0)
        environment = action.environment.id if action.environment is not None else None
        if environment is not None:
            self._lines[environment].popleft()
            self._move_in(environment, grant)
        running = Running(
            fence=grant.fence,
            cls=action.cls,
            node=grant.node,
            amounts=grant.amounts,
            granted=self._now,
            task=action.task,
            started=self._now,
            since=self._now,
            at_home=environment is not None,
        )
        expected_s = self._curves.expected_s(action.cls, grant.amounts)
        share_s = self._curves.share_s(action.cls, grant.amounts, self._accounts.total)
        self._accounts.granted(action.id, action.task, share_s, grant.amounts)
        self._change(grant.node, self._held(running, environment), sign=-1)
        self._run(Working(running, environment), ends=self._now + expected_s)

    def _move_in(self, environment: UUID, grant: Grant) -> None:
        if environment in self._homes:
            return
        holds = self._policy.environment_holds(grant.amounts)
        self._homes[environment] = _Home(grant.node, holds)
        self._change(grant.node, holds, sign=-1)
        self._count_home(grant.node, 1)

    def _run(self, working: Working, *, ends: float) -> None:
        action_id = working.running.fence.action_id
        self._working[action_id], self._ends[action_id] = working, ends
        heappush(self._events, (ends, action_id))
        self._running.add(working.running)
        if working.environment is not None:
            self._busy.add(working.environment)

    def _resize(self, resize: Resize) -> None:
        working = self._working.get(resize.fence.action_id)
        if working is None or working.running.cls is None:
            return
        running = working.running
        before_s, after_s = (self._curves.expected_s(working.running.cls, a) for a in (running.amounts, resize.amounts))
        rest_s = (self._ends[resize.fence.action_id] - self._now) * after_s / before_s
        resized = running._replace(amounts=resize.amounts, since=self._now, left=rest_s / after_s, changing_to=None)
        self._change(running.node, self._held(running, working.environment), sign=1)
        self._change(running.node, self._held(resized, working.environment), sign=-1)
        self._run(Working(resized, working.environment), ends=self._now + rest_s)

    def _end(self, action_id: UUID) -> None:
        working = self._working.pop(action_id)
        running = working.running
        del self._ends[action_id]
        self._running.discard(action_id)
        self._change(running.node, self._held(running, working.environment), sign=1)
        self._accounts.released(action_id, running.task, running.amounts, held_s=self._now - running.granted)
        self._accounts.shares.end(running.task)
        if working.environment is not None:
            self._busy.discard(working.environment)
            self._offer_next(working.environment)

    def _offer_next(self, environment: UUID) -> None:
        if environment in self._busy:
            return
        home, line = self._homes.get(environment), self._lines.get(environment)
        if line:
            node = home.node if home is not None else None
            self._waiting.add(line[0]._replace(environment=Environment(environment, node)))
        elif home is not None and home.holds:
            del self._homes[environment]
            self._change(home.node, home.holds, sign=1)
            self._count_home(home.node, -1)

    def _held(self, running: Running, environment: UUID | None) -> Amounts:
        return self._policy.action_holds(running.amounts, at_home=environment is not None, in_pod=False)

    def _count_home(self, node: int, by: int) -> None:
        pool = self._pools[node]
        self._pools[node] = replace(pool, environments=pool.environments + by)

    def _change(self, node: int, amounts: Amounts, *, sign: int) -> None:
        free = self._free.setdefault(node, {})
        for resource, amount in amounts.items():
            free[resource] = free.get(resource, 0) + sign * amount
        if node in self._pools:
            self._stale.add(node)

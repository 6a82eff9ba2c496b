"""Event by event: trajectories think and submit, the policy plans, actions run and end.

The policies are those that the scheduler runs, on the same snapshots; only what is around them is simulated.
"""

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from arl_core.fence import Fence
from arl_core.model import ActionClass, Amounts, Grant, Resize, Waiting
from arl_core.plan import Policy
from arl_sim.attempts import Attempt, fair_shares
from arl_sim.books import Books
from arl_sim.expectations import Expectations
from arl_sim.lives import Life
from arl_sim.results import Piece, Record, Result
from arl_sim.site import CORE_MILLI, TOGETHER, Classes, Site, pools_of
from arl_sim.workload import Need, Work, Workload

__all__ = ["RESIZE_S", "START_S", "Overheads", "Simulation", "Stuck"]

START_S = 0.02
"""From a grant until the action works: two hops and the start of a process."""
RESIZE_S = 0.005
"""An action stands still for so long when its amounts change; until then a shrink frees nothing."""
SAME_MOMENT_S = 1e-9
_NO_TURN = -1
"""Of what makes an environment."""

Handler = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What is charged besides work, in seconds."""

    start_s: float = START_S
    pod_start_s: float = 0.0
    """The same where trajectories have pods, which get it for nothing unless somebody measured it."""
    resize_s: float = RESIZE_S


class Stuck(RuntimeError):
    """Actions wait, nothing runs, and the policy starts none."""


@dataclass(slots=True)
class _Running:
    fence: Fence
    cls: ActionClass
    life: Life
    at: int
    """Its turn."""
    submitted: float
    started: float
    node: int
    attempt: Attempt
    restore_s: float
    piece_from: float
    resized: bool = False
    resizing: bool = False


@dataclass
class Simulation:
    """One run of a workload under a policy. The same input gives the same result, always."""

    workload: Workload
    site: Site
    policy: Policy
    classes: Classes
    expectations: Expectations
    overheads: Overheads = Overheads()
    _events: list[tuple[float, int, Handler]] = field(default_factory=list)
    _running: dict[UUID, _Running] = field(default_factory=dict)
    _on_node: dict[int, dict[UUID, _Running]] = field(default_factory=dict)
    _records: list[Record] = field(default_factory=list)
    _pieces: list[Piece] = field(default_factory=list)
    _task_ends: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._books = Books(self.policy, pools_of(self.site, self.workload.services), self.expectations)
        self._sequence = itertools.count()
        self._ids = itertools.count(1)
        self._turn_of: dict[UUID, tuple[Life, int]] = {}
        self._tasks = {task: number for number, task in enumerate(sorted({r.task for r in self.workload.rollouts}))}
        self._squeezed: set[int] = set()
        self._changed = False

    def run(self) -> Result:
        """Raises `Overbooked` or `Stuck` where the policy is at fault."""
        for number, rollout in enumerate(self.workload.rollouts):
            self._at(rollout.starts_s, partial(self._begin, Life(number, rollout)))
        rounds = 0
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] <= now + SAME_MOMENT_S:
                heapq.heappop(self._events)[2](now)
            if self._changed:
                self._round(now)
                rounds += 1
            if not self._events and self._books.waiting:
                raise Stuck(f"{self._books.waiting} actions wait for ever")
        return Result(self.site, tuple(self._records), self._task_ends, tuple(self._pieces), rounds)

    def _at(self, moment: float, handler: Handler) -> None:
        heapq.heappush(self._events, (moment, next(self._sequence), handler))

    def _round(self, now: float) -> None:
        self._changed = False
        plan = self._books.plan(self.policy, now=now)
        for resize in plan.resizes:
            self._resize(resize, now)
        for grant in plan.grants:
            self._start(grant, now)

    def _begin(self, life: Life, now: float) -> None:
        if self.policy.has_pods and life.rollout.has_environment:
            # A pod is there for the whole of its trajectory, which also thinks before it acts.
            life.makes_pod = True
            self._offer(life, _NO_TURN, self._waiting_of(life, self.classes.environment(), now), at_home=True)
        for at in life.first():
            self._think(life, at, now)

    def _think(self, life: Life, at: int, now: float) -> None:
        self._at(now + life.rollout.turns[at].think_s, partial(self._act, life, at))

    def _act(self, life: Life, at: int, now: float) -> None:
        turn = life.rollout.turns[at]
        cls = self.classes.of(turn.work)
        self.expectations.submitted(cls, turn.work)
        if life.began is None:
            life.began = now
        action = self._waiting_of(life, cls, now)
        # A pod is all that its trajectory has.
        in_pod = self.policy.has_pods and life.rollout.has_environment
        at_home = turn.work.need is Need.CPU and (in_pod or not turn.outside)
        if life.makes_pod and at_home:
            life.delayed.append((at, action))
        else:
            self._offer(life, at, action, at_home=at_home)

    def _offer(self, life: Life, at: int, action: Waiting, *, at_home: bool) -> None:
        self._changed = True
        self._turn_of[action.id] = (life, at)
        self._books.submit(action, environment=_environment_id(life.number) if at_home else None)

    def _waiting_of(self, life: Life, cls: ActionClass, now: float) -> Waiting:
        return Waiting(
            id=UUID(int=next(self._ids)),
            cls=cls,
            task=self._tasks[life.rollout.task],
            submitted=now,
            grant_no=0,
            trajectory=life.name,
            began=life.began if life.began is not None else now,
        )

    def _start(self, grant: Grant, now: float) -> None:
        action = self._books.queued(grant.fence.action_id)
        life, at = self._turn_of.pop(action.id)
        resident = self._books.grant(grant, now=now)
        if action.cls.kind == "environment.create":
            self._at(now, partial(self._pod_made, life, grant))
            return
        service = action.cls.service
        restore_s = 0.0 if resident or service is None else service.restore_s(len(grant.devices))
        overhead_s = self.overheads.pod_start_s if self.policy.has_pods else self.overheads.start_s
        work = life.rollout.turns[at].work
        attempt = Attempt(work, self._units(work, grant.amounts), now + overhead_s + restore_s)
        running = _Running(
            fence=grant.fence,
            cls=action.cls,
            life=life,
            at=at,
            submitted=action.submitted,
            started=now,
            node=grant.node,
            attempt=attempt,
            restore_s=restore_s,
            piece_from=now,
        )
        self._running[action.id] = running
        self._on_node.setdefault(grant.node, {})[action.id] = running
        self._expect_end(running)
        self._share(grant.node, now)

    def _pod_made(self, life: Life, grant: Grant, now: float) -> None:
        self._changed = True
        self._books.release(grant.node, grant.fence.action_id, now=now)
        life.makes_pod = False
        delayed, life.delayed = life.delayed, []
        for at, action in delayed:
            self._offer(life, at, action, at_home=True)

    def _expect_end(self, running: _Running) -> None:
        version = running.attempt.version
        self._at(running.attempt.ends, partial(self._end, running, version))

    def _end(self, running: _Running, version: int, now: float) -> None:
        if version != running.attempt.version:
            return
        self._changed = True
        action_id = running.fence.action_id
        life = running.life
        work = running.attempt.work
        self._cut(running, now)
        del self._running[action_id], self._on_node[running.node][action_id]
        self._books.release(running.node, action_id, now=now)
        self._learn(running, now)
        self._records.append(
            Record(
                id=action_id,
                rollout=life.number,
                task=life.rollout.task,
                work=work,
                node=running.node,
                submitted=running.submitted,
                started=running.started,
                ended=now,
                restore_s=running.restore_s,
            )
        )
        self._share(running.node, now)
        self._go_on(life, running.at, now)

    def _go_on(self, life: Life, at: int, now: float) -> None:
        for following in life.over(at):
            self._think(life, following, now)
        if not life.is_over:
            return
        task = life.rollout.task
        self._task_ends[task] = max(self._task_ends.get(task, 0.0), now)
        self._books.end_environment(life.name)

    def _learn(self, running: _Running, now: float) -> None:
        attempt, elastic = running.attempt, running.cls.demand.elastic
        attempt.change(attempt.units, now=now, pace=attempt.pace)
        amount = 0
        if elastic is not None:
            per_unit = CORE_MILLI if attempt.work.need is Need.CPU else 1
            amount = round(attempt.mean_units * per_unit)
        self.expectations.ended(
            running.cls, attempt.work, amount=amount, run_s=attempt.busy_s, steady=not running.resized
        )
        self._books.learnt(running.cls)

    def _resize(self, resize: Resize, now: float) -> None:
        running = self._running.get(resize.fence.action_id)
        if running is None or running.fence != resize.fence or running.resizing:
            return
        running.resized = running.resizing = True
        self._books.begin_resize(resize.fence, running.node, resize.amounts)
        self._cut(running, now)
        pause_s = self.overheads.resize_s
        running.attempt.change(self._units(running.attempt.work, resize.amounts), now=now, pause_s=pause_s)
        self._expect_end(running)
        self._at(now + pause_s, partial(self._resized, running))

    def _resized(self, running: _Running, now: float) -> None:
        """The manager has confirmed it; only now is free what a shrink gave back."""
        self._changed = True
        running.resizing = False
        if running.fence.action_id in self._running:
            self._books.end_resize(running.fence, running.node, now=now)

    def _cut(self, running: _Running, now: float) -> None:
        if now > running.piece_from:
            attempt = running.attempt
            batched = attempt.work.service in self.site.shared
            units = attempt.units * attempt.pace / TOGETHER if batched else attempt.units
            piece = Piece(running.life.number, running.node, attempt.work.need, units, running.piece_from, now)
            self._pieces.append(piece)
        running.piece_from = now

    def _share(self, node: int, now: float) -> None:
        """What the actions on a node share changes with their number."""
        there = self._on_node.get(node, {})
        cores = self._books.capacity(node).get("cpu_milli", 0) / CORE_MILLI
        if cores:
            self._share_cores(node, there, cores, now)
        elif any(running.attempt.work.service in self.site.shared for running in there.values()):
            for running in there.values():
                self._go_on_with(running, running.attempt.units, now, pace=min(1.0, TOGETHER / len(there)))

    def _share_cores(self, node: int, there: Mapping[UUID, _Running], cores: float, now: float) -> None:
        """Where actions may use more cores than the node has, as in overcommitted pods, each has its fair share."""
        wanted = {
            action_id: self._units(running.attempt.work, self._books.held(node, action_id) or {})
            for action_id, running in there.items()
        }
        crowded = sum(wanted.values()) > cores
        if not crowded and node not in self._squeezed:
            return
        (self._squeezed.add if crowded else self._squeezed.discard)(node)
        for action_id, units in fair_shares(wanted, cores).items():
            self._go_on_with(there[action_id], units, now)

    def _go_on_with(self, running: _Running, units: float, now: float, *, pace: float = 1.0) -> None:
        if (units, pace) != (running.attempt.units, running.attempt.pace):
            self._cut(running, now)
            running.attempt.change(units, now=now, pace=pace)
            self._expect_end(running)

    def _units(self, work: Work, amounts: Amounts) -> float:
        """On which it runs: no more than it can use."""
        match work.need:
            case Need.CPU:
                units = amounts["cpu_milli"] / CORE_MILLI
            case Need.GPU:
                units = float(amounts.get("gpu") or self.site.dedicated[work.service or ""])
            case Need.API:
                units = 1.0
        return min(units, float(work.choices[-1]))


def _environment_id(rollout: int) -> UUID:
    return UUID(int=(1 << 64) + rollout)

"""The leader's memory of what waits, what is held, and where environments live.

Rebuilt from Postgres by one poll; between polls hints keep it fresh. Rows win: what this index
believes and a poll contradicts is corrected by that poll.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from uuid import UUID, uuid4

from arl_core.accounts import Accounts
from arl_core.curves import Curves
from arl_core.fairness import total_amounts
from arl_core.fence import Fence
from arl_core.model import ActionClass, Amounts, Environment, Gang, Grant, Plan, Waiting
from arl_core.plan import FirstComeFirstServed, Policy
from arl_core.refilling import RefillingLedger
from arl_core.snapshot import Snapshot
from arl_scheduler.classes import Classes
from arl_scheduler.deadlines import Deadlines
from arl_scheduler.holds import Holds
from arl_scheduler.homes import Hold, Home, Homes, HomesByNode, Name, Standing
from arl_scheduler.offers import Offers
from arl_scheduler.pools import Pools
from arl_scheduler.rows import EnvironmentRow, Held, NodeRow, PollResult
from arl_scheduler.tokens import Tokens
from arl_store.ids import as_read
from arl_wire.internal import QueuedAction

__all__ = ["Index", "Name"]


class Index:
    def __init__(
        self,
        policy: Policy | None = None,
        curves: Curves | None = None,
        usual_s: Callable[[ActionClass], float] = lambda cls: 0.0,
    ) -> None:
        self._policy = policy or FirstComeFirstServed()
        self.mark = 0
        self.nodes: dict[int, NodeRow] = {}
        self._ledger = RefillingLedger()
        self._waiting = Offers()
        self._queued: dict[UUID, Waiting] = {}
        self._home_of: dict[UUID, Name] = {}
        self._homes = Homes()
        self._classes = Classes()
        self.deadlines = Deadlines(usual_s)
        self._accounts = Accounts()
        self.curves = curves or Curves()
        self.holds = Holds(self._policy, self._ledger, self.curves)
        self._living = HomesByNode()
        self._pools = Pools(self._ledger, self._living)
        self.tokens = Tokens(self._ledger, self._waiting.waiting, self._pools)
        self._paused: frozenset[int] = frozenset()
        self._lent: Counter[Name] = Counter()
        """Pods whose cores an ephemeral action uses."""
        self._to_confirm: set[Name] = set()
        self._confirming: set[Name] = set()
        self._returning: set[Name] = set()
        self._returned: set[Name] = set()

    @property
    def waiting(self) -> int:
        return len(self._queued)

    @property
    def homes(self) -> Homes:
        """For reading."""
        return self._homes

    @property
    def held(self) -> int:
        return len(self.holds)

    def queues(self) -> dict[int, tuple[int, float]]:
        """How many actions of each queue wait, and since when the oldest does."""
        found: dict[int, tuple[int, float]] = {}
        for action in self._queued.values():
            depth, oldest = found.get(action.task, (0, action.submitted))
            found[action.task] = (depth + 1, min(oldest, action.submitted))
        return found

    def admit(self, rows: Iterable[QueuedAction]) -> None:
        """Take queued rows in. Rows already known, or held under a later grant, are nothing new."""
        for row in rows:
            id = as_read(row.id)
            hold = self.holds.of(id)
            if hold is not None and hold.fence.grant_no > row.grant_no:
                continue
            if hold is not None:
                self._release(id)
            known = self._queued.get(id)
            if known is not None and known.grant_no < row.grant_no:
                self._forget_queued(id)
            if known is None or known.grant_no < row.grant_no:
                self._queue(id, row)

    def granted(self, grants: Iterable[Grant], *, now: float) -> None:
        """These grants are committed."""
        total, has_pods, share_s = self._accounts.total, self._policy.has_pods, self.curves.share_s
        for grant in grants:
            fence, amounts = grant.fence, grant.amounts
            id = fence.action_id
            action, name = self._queued.pop(id), self._home_of.get(id)
            pod = self._pod_for(action.trajectory, amounts) if has_pods and name is None else None
            # It was active in its task's share, and stays so.
            hold = Hold(fence, action.cls, grant.node, amounts, name, action.task, now, None, pod)
            self._accounts.granted(id, action.task, share_s(action.cls, amounts, total), amounts)
            if name is None and pod is None:
                self.holds.add(hold)
                self._waiting.forget(id)
            else:
                self._hold(hold)
                self._leave(id)

    def refused(self, ids: Iterable[UUID]) -> None:
        """Postgres did not take these: they are not queued any more, or about to be settled."""
        for action_id in ids:
            self._forget_queued(action_id)

    def freed(self, fences: Iterable[Fence], *, requeued: Collection[Fence] = ()) -> None:
        """These attempts are over. Amounts count once, however often this is said.

        Those that are `requeued` keep their place in their trajectory: it waits for the poll that reads them.
        """
        for fence in fences:
            hold = self.holds.under(fence)
            if hold is None:
                continue
            if hold.home is not None and fence in requeued:
                self._homes[hold.home].returning = True
                self._returning.add(hold.home)
            self._release(hold.fence.action_id)

    def poll_begins(self) -> None:
        self._returned, self._returning = self._returning, set()
        self._confirming, self._to_confirm = self._to_confirm, set()

    def reconcile(self, poll: PollResult) -> None:
        """Make the index agree with one snapshot, taken after everything this leader wrote before it."""
        self.mark = poll.mark
        self.nodes = {node.id: node for node in poll.nodes}
        self._accounts.shares.weigh(poll.weights)
        self._pause(poll.paused)
        self.holds.limit(poll.quotas)
        for node in poll.nodes:
            self._ledger.set_capacity(node.id, node.capacity)
            self._ledger.set_rates(node.id, node.rates)
        self._accounts.total = total_amounts(node.capacity for node in poll.nodes)
        for environment in poll.environments:
            self._learn_environment(environment)
        held = {row.fence: row for row in poll.held}
        for hold in self.holds:
            if hold.fence not in held:
                self._release(hold.fence.action_id)
        for fence, row in held.items():
            known = self.holds.under(fence)
            if known is None:
                self._adopt(row)
            elif known.started is None and row.started is not None:
                self.holds.started(known, row.started)
        # Held rows name their environments; queued ones of the same trajectory must find them.
        self.admit(poll.queued)
        self._forget_unmade_homes()
        for name in self._returned:
            if (home := self._homes.get(name)) is not None:
                home.returning = False
                self._promote(home)

    def snapshot(self, *, now: float, silent_after_s: float, watching_since: float) -> Snapshot:
        """What a round may look at: most of it is this index's own, and changes with it."""
        self.curves.now = now
        return Snapshot(
            now=now,
            waiting=self._waiting.waiting,
            running=self.holds.running,
            pools=self._pools.of(self.nodes, now=now, silent_after_s=silent_after_s, watching_since=watching_since),
            pods=self._homes.pods(self._lent) if self._policy.has_pods else {},
            curves=self.curves,
            shares=self._accounts.shares,
            total=self._accounts.total,
            quotas=self.holds.quotas,
        )

    def plan(self, *, now: float, silent_after_s: float, watching_since: float) -> Plan:
        """One round of this index's policy."""
        plan = self._policy.plan(self.snapshot(now=now, silent_after_s=silent_after_s, watching_since=watching_since))
        self.holds.running.calm(but=plan.watched, reserved=plan.reserved)
        return plan

    def standing(self, action_id: UUID) -> Standing | None:
        """Of a queued action; None where none is known by this id."""
        action, name = self._queued.get(action_id), self._home_of.get(action_id)
        home = self._homes[name] if name is not None else None
        if action is None:
            return None
        return Standing.of(self._waiting.standing_for(action), home, paused=action.task in self._paused)

    @property
    def offers(self) -> Offers:
        """For reading."""
        return self._waiting

    def line(self, name: Name, *, first: int, limit: int) -> list[Waiting]:
        """What waits in an environment from the `first` on; nothing where that is to end or its task held back."""
        home, held_back = self._homes.get(name), name[0] in self._paused or name[0] in self.holds.quotas
        if home is None or home.gone or home.deleted or held_back:
            return []
        return [home.seat(self._queued[each]) for each in home.line[first : first + limit]]

    def overdue(self, now: float) -> dict[UUID, str | None]:
        """Queued actions that can't meet their deadline any more, said once, and why if it has not passed."""
        self.deadlines.keep(self._queued, len(self._queued))
        return self.deadlines.due(now, self._queued.get)

    def next_deadline(self) -> float | None:
        return self.deadlines.next_at()

    def _queue(self, id: UUID, row: QueuedAction) -> None:
        trajectory = (row.queue_id, row.trajectory) if row.trajectory else None
        name = trajectory if row.environment["scope"] == "trajectory" else None
        home = self._homes.get(trajectory) if trajectory is not None else None
        began = min(home.began, row.submitted) if home is not None else None
        if home is None and name is not None:
            home = self._homes[name] = Home(name, row.environment_id or uuid4())
        action = Waiting(
            id=id,
            cls=self._classes.take(row),
            task=row.queue_id,
            submitted=row.submitted,
            grant_no=row.grant_no,
            priority=row.priority,
            deadline=row.deadline,
            environment=Environment(home.id, home.node) if home is not None and name is not None else None,
            trajectory=trajectory,
            began=began,
            gang=Gang(row.gang.id, row.gang.size) if row.gang is not None and row.grant_no == 0 else None,
        )
        self._queued[id] = action
        self._waiting.know(action)
        self._accounts.began(action.task, action.cls.demand.minimum)
        self.deadlines.add(action)
        if name is None or home is None:
            self._offer(action)
            return
        self._home_of[id] = name
        home.began = min(home.began, row.submitted)
        insort(home.line, id)
        self._promote(home)

    def _promote(self, home: Home) -> None:
        """Exactly the first in line is a candidate, and only where the environment is free and not ending."""
        if home.gone and home.deleted and home.busy is None:
            home.id, home.node, home.began = uuid4(), None, float("inf")
            home.known = home.assumed = home.gone = home.deleted = False
        free = home.busy is None and not home.gone and not home.deleted and not home.returning
        offer = (home.line[0], home.id, home.node) if home.line and free else None
        if offer != home.offered:
            if home.offered is not None:
                self._waiting.discard(home.offered[0])
            if offer is not None:
                self._offer(home.seat(self._queued[offer[0]]))
            home.offered = offer
        if not home.line and home.busy is None and not home.known and not home.assumed:
            self._ledger.release(home.id)
            self._homes.pop(home.name, None)
            home.node = None
        self._homes.line_changed(home)
        self._living.count(home)

    def _offer(self, action: Waiting) -> None:
        if action.task not in self._paused:
            self._waiting.add(action)

    def _pause(self, paused: frozenset[int]) -> None:
        """Take what waits in these queues out of the rounds' sight, and what waits in the resumed ones back in."""
        changed = paused ^ self._paused
        self._paused = paused
        self._accounts.shares.pause(paused)
        for action in [each for each in self._queued.values() if each.task in changed] if changed else ():
            self._waiting.discard(action.id)
            name = self._home_of.get(action.id)
            if name is None:
                self._offer(action)
            elif (home := self._homes[name]).offered is not None and home.offered[0] == action.id:
                home.offered = None
                self._promote(home)

    def _forget_queued(self, action_id: UUID) -> None:
        if (action := self._queued.pop(action_id, None)) is not None:
            self._accounts.shares.end(action.task)
            self._classes.give_back(action.cls)
        self._leave(action_id)

    def _leave(self, action_id: UUID) -> None:
        """It waits no longer: its environment's next is looked at."""
        self._waiting.forget(action_id)
        name = self._home_of.pop(action_id, None)
        if name is None or name not in self._homes:
            return
        home = self._homes[name]
        home.line = [other for other in home.line if other != action_id]
        if home.offered is not None and home.offered[0] == action_id:
            home.offered = None
        self._promote(home)

    def _hold(self, hold: Hold) -> None:
        self.holds.add(hold)
        if hold.pod is not None:
            self._lent[hold.pod] += 1
        if hold.home is None:
            return
        home = self._homes[hold.home]
        if home.node is None:
            home.node, home.assumed = hold.node, True
            self._ledger.take(home.id, hold.node, self._policy.environment_holds(hold.amounts))
        home.busy = hold.fence.action_id
        self._promote(home)

    def _release(self, action_id: UUID) -> None:
        hold = self.holds.remove(action_id)
        held_s = self.curves.now - hold.granted
        self._accounts.released(action_id, hold.task, hold.mean_amounts(until=self.curves.now), held_s=held_s)
        self._accounts.shares.end(hold.task)
        if hold.cls is not None:
            self._classes.give_back(hold.cls)
        if hold.pod is not None:
            self._lent[hold.pod] -= 1
            if not self._lent[hold.pod]:
                del self._lent[hold.pod]
        home = self._homes.get(hold.home) if hold.home is not None else None
        if home is None or home.busy != action_id:
            return
        home.busy = None
        if not home.known:
            self._to_confirm.add(home.name)
        self._promote(home)

    def _forget_unmade_homes(self) -> None:
        """An environment's row commits before its first action ends; a poll begun after that reads it or it is not."""
        for name in self._confirming:
            home = self._homes.get(name)
            if home is not None and not home.known and home.busy is None:
                self._ledger.release(home.id)
                home.node, home.assumed = None, False
                self._promote(home)

    def _adopt(self, row: Held) -> None:
        """A hold that this leader did not make: an earlier leader's."""
        id = row.fence.action_id
        before = self.holds.of(id) or self._queued.get(id)
        cls = self._classes.take_held(row, known_as=before.cls if before is not None else None)
        if self.holds.of(id) is not None:
            self._release(id)
        self._forget_queued(id)
        name = (row.queue_id, row.trajectory) if row.environment is not None and row.trajectory is not None else None
        if name is not None and row.environment is not None:
            home = self._homes.setdefault(name, Home(name, row.environment))
            if not home.known:
                home.id = row.environment
        trajectory = (row.queue_id, row.trajectory) if row.trajectory is not None else None
        pod = self._pod_for(trajectory, row.amounts) if name is None else None
        times = (row.granted, row.started)
        self._accounts.shares.begin(row.queue_id)
        self._hold(Hold(row.fence, cls, row.node, row.amounts, name, row.queue_id, *times, pod, row.amounts_seq))

    def _learn_environment(self, row: EnvironmentRow) -> None:
        name = (row.queue_id, row.trajectory)
        if name not in self._homes and row.gone and row.deleted:
            return
        home = self._homes.setdefault(name, Home(name, row.id))
        if home.id != row.id:
            if home.known or home.busy is not None or (row.gone and row.deleted):
                return
            self._ledger.release(home.id)
            home.id = row.id
        home.known, home.node, home.gone, home.deleted = True, row.node, row.gone, row.deleted
        home.began = min(home.began, row.created)
        self._homes.bury(home, stays=row.gone and not row.deleted)
        if row.gone:
            self._ledger.release(home.id)
            if self._lent[name]:
                self.holds.own_again(name)
        else:
            amounts = {"memory_mib": row.memory_mib, "disk_mib": row.disk_mib}
            self._ledger.take(home.id, row.node, self._policy.environment_holds(amounts))
        if row.gone and row.deleted:
            home.known = home.assumed = False
        self._promote(home)

    def _pod_for(self, trajectory: Name | None, amounts: Amounts) -> Name | None:
        """The pod on whose cores an action runs that does not live there."""
        if trajectory is None or not amounts.get("cpu_milli") or not self._policy.has_pods:
            return None
        home = self._homes.get(trajectory)
        return home.name if home is not None and home.node is not None and not home.gone else None

"""What granted and running actions hold, as rounds see it and as the ledger counts it."""

from collections.abc import Iterator, Mapping
from uuid import UUID

from arl_core.curves import Curves
from arl_core.fence import Fence
from arl_core.ledger import Ledger
from arl_core.model import Amounts, Resizable, Running
from arl_core.plan import Policy
from arl_core.quotas import Quota, Quotas
from arl_core.running import RunningIndex
from arl_scheduler.homes import Hold, Name

__all__ = ["Holds"]


class Holds:
    """At most one of an action. Amounts count in the ledger from `add` to `remove`, whatever is said in between."""

    def __init__(self, policy: Policy, ledger: Ledger, curves: Curves) -> None:
        self._policy = policy
        self._ledger = ledger
        self._curves = curves
        self._by_id: dict[UUID, Hold] = {}
        self._resizable: set[UUID] = set()
        self._released: list[Hold] = []
        self.running = RunningIndex()
        """For rounds."""
        self.quotas = Quotas()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Hold]:
        return iter(tuple(self._by_id.values()))

    def of(self, action_id: UUID) -> Hold | None:
        return self._by_id.get(action_id)

    def under(self, fence: Fence) -> Hold | None:
        """None where this fence holds nothing any more."""
        hold = self._by_id.get(fence.action_id)
        return hold if hold is not None and hold.fence == fence else None

    def resizable(self) -> list[Hold]:
        """Those that may be given other amounts while they run."""
        return [self._by_id[action_id] for action_id in sorted(self._resizable)]

    @property
    def any_resizable(self) -> bool:
        return bool(self._resizable)

    def limit(self, quotas: Mapping[int, Quota]) -> None:
        """Of tasks, from now on; what is held counts, and stays."""
        self.quotas.set(quotas, ((hold.task, hold.amounts) for hold in self))

    def add(self, hold: Hold) -> None:
        action_id, cls = hold.fence.action_id, hold.cls
        self._by_id[action_id] = hold
        self.quotas.took(hold.task, hold.amounts)
        self.running.add(hold.running())
        if cls is not None and cls.resizable is not Resizable.NONE:
            self._resizable.add(action_id)
        self._count(hold)

    def remove(self, action_id: UUID) -> Hold:
        hold = self._by_id.pop(action_id)
        self.running.discard(action_id)
        self._resizable.discard(action_id)
        self._released.append(hold)
        self.quotas.gave_back(hold.task, hold.amounts)
        self._ledger.release(action_id)
        return hold

    def released(self) -> list[Hold]:
        """What is held no longer, since this was last asked: it settled or is queued again."""
        released, self._released = self._released, []
        return released

    def started(self, hold: Hold, at: float) -> None:
        """Its row says that it runs since then."""
        self._by_id[hold.fence.action_id] = hold._replace(started=at)
        self.running.add(self._running(hold)._replace(started=at, since=at))

    def is_changing(self, hold: Hold) -> bool:
        """Whether its manager was asked for other amounts, and has not answered."""
        return self._running(hold).changing_to is not None

    def changing(self, fence: Fence, to: Amounts | None) -> None:
        """Its manager is asked to change its amounts to these; None once it has answered, or will not."""
        hold = self.under(fence)
        if hold is not None:
            self.running.add(self._running(hold)._replace(changing_to=to))

    def mark(self, hold: Hold, *, overrun: float) -> None:
        """How far beyond its limit it is, by `Running.overrun`; a round looks at its node again if that is new."""
        running = self._running(hold)
        if running.overrun != overrun:
            self.running.add(running._replace(overrun=overrun))

    def resized(self, fence: Fence, amounts: Amounts, *, seq: int, now: float) -> None:
        """Its row says that it has these amounts, and it counts as much."""
        hold = self.under(fence)
        if hold is None:
            return
        running = self._running(hold)
        spent = hold.spent_milli_s + hold.amounts.get("cpu_milli", 0) * max(0.0, now - running.since)
        resized = hold._replace(amounts=amounts, amounts_seq=seq, spent_milli_s=spent, resized_at=now)
        self._by_id[fence.action_id] = resized
        self.running.add(running._replace(amounts=amounts, since=now, left=self._left(running, now=now)))
        self._count(resized)

    def own_again(self, pod: Name) -> None:
        """The pod has ended: what still runs on its cores holds them itself."""
        for hold in self:
            if hold.pod == pod:
                held = self._policy.action_holds(hold.amounts, at_home=False, in_pod=False)
                self._ledger.take(hold.fence.action_id, hold.node, held)

    def _running(self, hold: Hold) -> Running:
        return self.running.on(hold.node)[hold.fence.action_id]

    def _left(self, running: Running, *, now: float) -> float:
        """The part of its work that is left, as far as estimates tell."""
        if running.cls is None:
            return 1.0
        self._curves.now = now
        return self._curves.remaining_s(running) / self._curves.expected_s(running.cls, running.amounts)

    def _count(self, hold: Hold) -> None:
        at_home, in_pod = hold.home is not None, hold.pod is not None
        held = self._policy.action_holds(hold.amounts, at_home=at_home, in_pod=in_pod)
        self._ledger.take(hold.fence.action_id, hold.node, held)

"""SPAR-M: actions start at their smallest width and are resized while they run; nothing is killed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from uuid import UUID

from arl_core.curves import Curve, Width, units_of
from arl_core.free import FreeAmounts
from arl_core.ledger import fits
from arl_core.load import Loads
from arl_core.model import Amounts, Grant, Plan, Resizable, Resize, Running, Waiting
from arl_core.reallocation import Candidate, reallocate
from arl_core.running import is_resizable
from arl_core.snapshot import Snapshot

__all__ = ["NEARLY_DONE_S", "SETTLED_S", "Widening"]

SETTLED_S = 0.5
"""What was resized is not shrunk before so long after."""
NEARLY_DONE_S = 0.3
"""What is expected to end so soon is not shrunk any more."""

_CORES = "cpu_milli"
_NOTHING: Amounts = {}


class Widening:
    """One round's. First who starts at all, then how wide everybody is: who starts, and who runs and may be resized."""

    def __init__(
        self, snapshot: Snapshot, free: FreeAmounts, loads: Loads, *, price_factor: float, headroom: float
    ) -> None:
        self._snapshot, self._free, self._loads = snapshot, free, loads
        self._price_factor, self._headroom = price_factor, headroom
        self._admitted: dict[UUID, Waiting] = {}
        self._claimed: dict[int, int] = {}
        """Milli-cores that would be used if others shrank, by node."""
        self._promised: dict[int, Counter[str]] = {}
        """What else those need who claim these."""
        self._kept: dict[int, int] = {}
        """Milli-cores that are free and not for whoever comes, by node."""
        self._claimable: list[tuple[int, int]] | None = None
        """Milli-cores below 0 and node, as they were at some time of this round: they only become fewer."""

    def admitted(self, action: Waiting) -> None:
        """It starts, at its smallest width so far."""
        self._admitted[action.id] = action

    def claim(self, action: Waiting) -> None:
        """What it needs to start is what others may be shrunk by."""
        cores = action.cls.demand.minimum.get(_CORES, 0)
        node = self._free.node_of(action) if cores else None
        if node is not None:
            if self._snapshot.running.spare(node) and self._suits(node, action, cores):
                self._claim(node, action)
            return
        tried: list[tuple[int, int]] = []
        while cores and (node := self._most_claimable()) is not None and self._unclaimed(node) >= cores:
            if self._snapshot.pools[node].accepting and self._suits(node, action, cores):
                self._claim(node, action)
                break
            tried.append(heappop(self._nodes()))
        for entry in tried:
            heappush(self._nodes(), entry)

    def has_claims(self, node: int) -> bool:
        """Whether others are to give up something there."""
        return self._claimed.get(node, 0) > 0

    def keep(self, node: int, cores: int) -> None:
        """So many of the milli-cores that are claimed there are free already, and kept for whoever claims them."""
        self._kept[node] = cores
        if node in self._claimed:
            self._claimed[node] = max(0, self._claimed[node] - cores)

    def plan(self, grants: Sequence[Grant]) -> Plan:
        """The same grants, some of them wider, and resizes of what runs."""
        admitted = [grant for grant in grants if grant.fence.action_id in self._admitted]
        changing = sorted(self._can_change({grant.node for grant in admitted}))
        starting: dict[int, list[Grant]] = {node: [] for node in changing}
        for grant in admitted if changing else ():
            if grant.node in starting:
                starting[grant.node].append(grant)
        wider: dict[UUID, Grant] = {}
        resizes: list[Resize] = []
        for node in changing:
            for change in self._on_node(node, starting[node]):
                if isinstance(change, Grant):
                    wider[change.fence.action_id] = change
                else:
                    resizes.append(change)
        return Plan(
            grants=tuple(wider.get(grant.fence.action_id, grant) for grant in grants) if wider else tuple(grants),
            resizes=tuple(resizes),
            watched=frozenset(self._claimed | self._kept),
        )

    def _can_change(self, starting: Iterable[int]) -> list[int]:
        """Where somebody starts, claims something or has moved, and anything is free or could be given up."""
        free, spare = self._free.free, self._snapshot.running.spare
        nodes = (self._snapshot.running.stirred | self._claimed.keys()).union(starting)
        return [node for node in nodes if node in free and (free[node].get(_CORES, 0) > 0 or spare(node) > 0)]

    def has_claimable(self, milli: int) -> bool:
        """Whether there is a node where so many could be had if others shrank."""
        node = self._most_claimable()
        return node is not None and self._unclaimed(node) >= milli

    def could_have(self, node: int) -> Amounts:
        """What is free there, and what those who run there could give up besides."""
        return {**self._free.free[node], _CORES: self._unclaimed(node)}

    def _suits(self, node: int, action: Waiting, cores: int) -> bool:
        """Whether all but cores is there beside what is promised, and those could be."""
        pool = self._snapshot.pools.get(node)
        if pool is None or not pool.serving or self._unclaimed(node) < cores or not self._free.suits(node, action.cls):
            return False
        promised = self._promised.get(node, _NOTHING)
        wanted = self._free.wanted(node, action).items()
        others = {name: amount + promised.get(name, 0) for name, amount in wanted if name != _CORES}
        return fits(others, self._free.free[node])

    def _claim(self, node: int, action: Waiting) -> None:
        needed = self._free.needed(action)
        self._claimed[node] = self._claimed.get(node, 0) + needed[_CORES]
        self._promised.setdefault(node, Counter()).update(needed)

    def _most_claimable(self) -> int | None:
        nodes = self._nodes()
        while nodes:
            amount, node = nodes[0]
            if -amount == self._unclaimed(node):
                return node
            heapreplace(nodes, (-self._unclaimed(node), node))
        return None

    def _nodes(self) -> list[tuple[int, int]]:
        """A heap of those on which somebody could give something up."""
        if self._claimable is None:
            spare = self._snapshot.running.spare
            self._claimable = [(-self._unclaimed(node), node) for node in self._free.free if spare(node) > 0]
            heapify(self._claimable)
        return self._claimable

    def _unclaimed(self, node: int) -> int:
        """Milli-cores that are free, or that those who run there could give up or are giving up already."""
        free = self._free.free[node].get(_CORES, 0)
        return free + self._snapshot.running.spare(node) - self._claimed.get(node, 0)

    def _on_its_way(self, node: int) -> int:
        """Milli-cores that were asked back and are not confirmed."""
        running = self._snapshot.running.on(node).values()
        changing = [
            (each.amounts[_CORES], each.changing_to[_CORES]) for each in running if each.changing_to is not None
        ]
        return sum(max(0, has - will_have) for has, will_have in changing)

    def _may_shrink(self, each: Running) -> bool:
        now = self._snapshot.now
        return (
            each.cls is not None
            and each.cls.demand.elastic is not None
            and each.cls.demand.elastic.resizable is Resizable.ANY
            and now - each.since >= SETTLED_S
            and self._snapshot.curves.remaining_s(each) >= NEARLY_DONE_S
        )

    def _on_node(self, node: int, starting: Sequence[Grant]) -> Iterator[Grant | Resize]:
        running = [
            each
            for each in self._snapshot.running.on(node).values()
            if is_resizable(each.cls) and each.changing_to is None and each.started is not None
        ]
        load = self._loads.of(node, _CORES)
        claimed = units_of(_CORES, max(0, self._claimed.get(node, 0) - self._on_its_way(node)))
        free = units_of(_CORES, self._free.free[node].get(_CORES, 0))
        candidates = [self._candidate(each) for each in running]
        candidates += [self._newcomer(grant) for grant in starting]
        held = sum(map(_cores, running)) + sum(units_of(_CORES, grant.amounts[_CORES]) for grant in starting)
        headroom = min(free, round(self._headroom * load.capacity))
        longest = max((each.rest_s for each in candidates), default=0.0)
        chosen = reallocate(
            candidates,
            units=held + free - claimed - headroom,
            waiting=load.waiting,
            price_factor=self._price_factor,
            capacity=load.capacity,
            backlog_s=self._loads.backlog_s(node, _CORES, enough_s=longest),
        )
        yield from self._changes(running, starting, chosen, budget=max(0.0, free - claimed - headroom))

    def _changes(
        self, running: Iterable[Running], starting: Iterable[Grant], chosen: dict[UUID, int], *, budget: float
    ) -> Iterator[Grant | Resize]:
        """Shrinks as they are, growths as far as what is free now goes: those who start before those who run."""
        for grant in starting:
            widths = self._curve(grant).widths
            width = _within(widths, chosen[grant.fence.action_id], budget + widths[0].units)
            budget -= width.units - widths[0].units
            if width is not widths[0]:
                yield grant._replace(amounts={**grant.amounts, _CORES: width.amount})
        for each in running:
            choices, held = self._choices(each), _cores(each)
            width = _within(choices, chosen[each.fence.action_id], budget + held)
            if width.units > held:
                budget -= width.units - held
            if width.amount != each.amounts[_CORES]:
                yield Resize(fence=each.fence, amounts={**each.amounts, _CORES: width.amount})

    def _candidate(self, each: Running) -> Candidate:
        widths, held = self._choices(each), _cores(each)
        place = next(at for at, width in enumerate(widths) if width.units == held)
        rest = self._snapshot.curves.remaining_s(each)
        left = rest / widths[place].seconds
        least = 0 if self._may_shrink(each) else place
        return Candidate(each.fence.action_id, widths, least, left, straggles=each.overrun > 0)

    def _curve(self, grant: Grant) -> Curve:
        return self._snapshot.curves.of(self._admitted[grant.fence.action_id].cls)

    def _newcomer(self, grant: Grant) -> Candidate:
        return Candidate(grant.fence.action_id, self._curve(grant).widths)

    def _choices(self, each: Running) -> Sequence[Width]:
        """The widths of its class, and what it has now, which may be none of them by what is known today."""
        if each.cls is None:
            raise ValueError(f"the class of {each.fence} is not known")
        widths, held = self._snapshot.curves.of(each.cls).widths, each.amounts[_CORES]
        if any(width.amount == held for width in widths):
            return widths
        now = Width(held, units_of(_CORES, held), self._snapshot.curves.expected_s(each.cls, each.amounts))
        return sorted((*widths, now), key=lambda width: width.amount)


def _cores(each: Running) -> float:
    return units_of(_CORES, each.amounts.get(_CORES, 0))


def _within(widths: Sequence[Width], place: int, units: float) -> Width:
    """That one, or the widest before it that is not wider than `units`."""
    while place and widths[place].units > units + 1e-9:
        place -= 1
    return widths[place]

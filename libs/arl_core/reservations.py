"""What is kept free for those whom nothing may overtake any more, and lent to what is over before they could start.

EASY backfilling (Lifka 1995, Tsafrir et al. 2007), one reservation for a node. Who is lent something can put off whom
it is kept for by his own delay at most, and by no more than one such delay: what began after a reservation counts as
over when it was expected to be. So an action starts once those have ended that ran when it was given its reservation,
and the last of those that were to be over by then.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable
from uuid import UUID

from arl_core.curves import units_of
from arl_core.free import FreeAmounts
from arl_core.load import Loads
from arl_core.model import ActionClass, Amounts, Grant, Reservation, Running, Waiting
from arl_core.running import given_back
from arl_core.snapshot import Snapshot

__all__ = ["RESERVATIONS", "Reservations"]

RESERVATIONS = 64
"""In one round, at most."""
IN_VAIN = 16
"""Demands that are remembered, of those that could be at the same places."""
LENDERS = 8
"""That are asked for one action, at most."""
MUCH_SOONER = 0.5
"""A reservation moves to where what it lacks is expected in less than this part of the time."""
HARDLY_EXCEEDED = 0.9
"""The quantile of its class at which who is lent something has to be over."""

_CORES = "cpu_milli"
_Where = tuple[frozenset[str], int | None, bool]


@runtime_checkable
class _Spread(Protocol):
    """Durations of which it is known how far they lie apart."""

    def quantile(self, cls: ActionClass, q: float, amount: int) -> float: ...


@dataclass(slots=True)
class _Kept:
    action: Waiting
    amounts: dict[str, int]
    lent_s: float
    """Whatever is over within so long is lent of it; 0 where nothing is."""


def _where(action: Waiting) -> _Where:
    """What decides about its nodes besides amounts."""
    environment = action.environment
    return action.cls.requires, environment.node if environment is not None else None, environment is not None


class Reservations:
    """One round's."""

    def __init__(self, snapshot: Snapshot, free: FreeAmounts, loads: Loads) -> None:
        self._snapshot, self._free, self._loads = snapshot, free, loads
        self._before = dict(snapshot.running.reserved)
        """Of those that this round has not looked at."""
        self._made: dict[UUID, Reservation] = {}
        self._kept: dict[int, _Kept] = {}
        """By node."""
        self._lent_s = 0.0
        """The longest for which anything is lent."""
        self._lenders: list[int] = []
        """Nodes on which anything is lent and cores are left."""
        self._in_vain: dict[_Where, list[Amounts]] = {}
        """Demands that no node would ever have, by where they could be."""
        durations = snapshot.curves.durations
        self._spread = durations if isinstance(durations, _Spread) else None
        self._late_s: dict[int, float] = {}
        """By class, where it was asked for."""

    def keep_for(self, action: Waiting) -> tuple[int, int] | None:
        """Keep what is free of what it needs where it comes first: the node, and how many milli-cores are kept there.

        None where it would never have enough, or too many have a reservation.
        """
        if len(self._kept) >= RESERVATIONS:
            return None
        before = self._before.pop(action.id, None)
        if self._is_in_vain(action):
            return None
        first = before.node if before is not None else None
        outside = self._snapshot.running.outside
        nodes = self._free.lacking_what_comes_back(action, outside=outside, first=first, but=self._kept)
        if not nodes:
            self._note_in_vain(action)
            return None
        lacking = {node: self._free.lacking(node, action) for node in nodes}
        waits_s = {node: self._until_free_s(node, lacking[node]) for node in nodes if node != first}
        node = min(waits_s, key=lambda each: (waits_s[each], each), default=nodes[0])
        lent_s = waits_s.get(node, 0.0)
        reservation = Reservation(node, self._snapshot.now)
        if before is not None and before.node in lacking:
            kept_s = self._until_free_s(before.node, lacking[before.node], since=before.since)
            if before.node == node or waits_s[node] >= MUCH_SOONER * kept_s:
                reservation, lent_s = before, kept_s
        self._made[action.id] = reservation
        return reservation.node, self._keep(reservation.node, action, lent_s)

    def _is_in_vain(self, action: Waiting) -> bool:
        """Nodes were looked through for less already, and none would ever have it: in a round none has more later."""
        demand = action.cls.demand.minimum
        known = self._in_vain.get(_where(action), ())
        return any(all(demand.get(name, 0) >= amount for name, amount in less.items()) for less in known)

    def _note_in_vain(self, action: Waiting) -> None:
        known = self._in_vain.setdefault(_where(action), [])
        known.append(action.cls.demand.minimum)
        del known[:-IN_VAIN]

    def lend_nothing_of(self, node: int) -> None:
        """Whoever it is kept for starts as soon as those who run there have given something up."""
        if node in self._lenders:
            self._lenders.remove(node)
        self._lent_s = max((self._kept[each].lent_s for each in self._lenders), default=0.0)

    def has_cores(self, milli: int) -> bool:
        """Whether so many might be lent anywhere."""
        return any(self._cores_on(node) >= milli for node in self._lenders)

    def lender_for(self, action: Waiting) -> int | None:
        """A node on which it may start at its smallest with what is kept there."""
        if not self._lenders:
            return None
        late_s, pinned = self._is_over_within_s(action.cls), self._free.node_of(action)
        if late_s > self._lent_s:
            return None
        nodes = self._lenders if pinned is None else [pinned] if pinned in self._lenders else []
        tried = islice((node for node in nodes if late_s <= self._kept[node].lent_s), LENDERS)
        return next((node for node in tried if self._free.fits_with(node, action, self._kept[node].amounts)), None)

    @contextmanager
    def lent(self, node: int) -> Iterator[None]:
        """What is kept there is free meanwhile; afterwards what is left of it is kept again."""
        kept = self._kept[node]
        self._free.give_back(node, kept.amounts)
        yield
        kept.amounts = self._free.set_aside(node, kept.action)
        if not self._cores_on(node):
            self._lenders.remove(node)

    def left(self, granted: list[Grant]) -> Mapping[UUID, Reservation]:
        """For the next round: those made, and those of whoever waits still and was not looked at."""
        gone = {grant.fence.action_id for grant in granted} if self._before else set()
        before = {id: each for id, each in self._before.items() if id in self._snapshot.waiting and id not in gone}
        return dict(islice((self._made | before).items(), RESERVATIONS))

    def _keep(self, node: int, action: Waiting, lent_s: float) -> int:
        amounts = self._free.set_aside(node, action)
        # Nobody may be known to give back what lacks, and do it at any moment.
        kept = self._kept[node] = _Kept(action, amounts, lent_s if lent_s < float("inf") else 0.0)
        if kept.lent_s > 0 and self._cores_on(node):
            self._lenders.append(node)
            self._lent_s = max(self._lent_s, kept.lent_s)
        return amounts.get(_CORES, 0)

    def _cores_on(self, node: int) -> int:
        """Milli-cores that are free there or kept."""
        return self._free.free[node].get(_CORES, 0) + self._kept[node].amounts.get(_CORES, 0)

    def _until_free_s(self, node: int, lacking: Amounts, *, since: float | None = None) -> float:
        """Until those who run there are expected to have given back so much; inf where they never will.

        Who began after `since` gives back when he was expected to, and is not waited for any longer.
        """
        if since is None:
            waits_s = (self._loads.until_free(node, name, units_of(name, lacks)) for name, lacks in lacking.items())
            return max(waits_s, default=0.0)
        left = dict(lacking)
        for rest_s, _, running in sorted(self._rests(node, since)):
            for name in tuple(left):
                left[name] -= given_back(running, name)
                if left[name] <= 0:
                    del left[name]
            if not left:
                return rest_s
        return float("inf") if left else 0.0

    def _rests(self, node: int, since: float) -> Iterator[tuple[float, UUID, Running]]:
        curves, now = self._snapshot.curves, self._snapshot.now
        for id, each in self._snapshot.running.on(node).items():
            if each.granted <= since or each.cls is None:
                yield curves.remaining_s(each), id, each
            else:
                expected_s = each.left * curves.expected_s(each.cls, each.amounts)
                yield max(0.0, expected_s - (now - each.since)), id, each

    def _is_over_within_s(self, cls: ActionClass) -> float:
        """What hardly any of its class takes longer than, at its smallest width."""
        least = self._snapshot.curves.of(cls).widths[0]
        if self._spread is None or least.seconds > self._lent_s:
            return least.seconds
        late_s = self._late_s.get(cls.key)
        if late_s is None:
            late_s = max(least.seconds, self._spread.quantile(cls, HARDLY_EXCEEDED, least.amount))
            self._late_s[cls.key] = late_s
        return late_s

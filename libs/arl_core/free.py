"""What is left of each pool while a round spends it, and where the next action goes."""

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import chain, islice, takewhile
from typing import TypeVar
from uuid import UUID

from arl_core.fence import Fence
from arl_core.groups import FreeGroups
from arl_core.ledger import fits
from arl_core.model import (
    ENVIRONMENT_RESOURCES,
    ActionClass,
    Amounts,
    Grant,
    Pool,
    Shape,
    Waiting,
    action_part,
    counted_in,
    environment_part,
    is_slot,
)

__all__ = ["ENVIRONMENT_HEADROOM", "FreeAmounts"]

ENVIRONMENT_HEADROOM = 8
"""New environments leave one part in so many of a node's memory and disk to actions outside of them."""

FEW = 8
RESTORE_WORTH = 4
"""Actions that may be before one at a node with its service, rather than that the service is brought to another node.

A copy takes about as long as so many batches; the node itself computes those that wait for one service together.
"""

_CORES = "cpu_milli"
_Entry = TypeVar("_Entry", tuple[int, int], tuple[int, int, int])


@dataclass(slots=True)
class FreeAmounts:
    """Choosing a node costs O(log n) unless many that have the cores lack something else."""

    pools: Mapping[int, Pool]
    free: dict[int, dict[str, int]]
    environments: dict[int, int]
    levels: list[tuple[int, int]]
    """Free cores and node, fewest first, of those that take something new; it changes as they are spent."""
    placed: dict[UUID, int] = field(default_factory=dict)
    _groups: FreeGroups | None = None
    _closed: tuple[int, ...] = ()
    """To what is new; what lives there goes on."""
    _by_homes: list[tuple[int, int, int]] | None = None
    """Where new environments go first, first."""
    _offering: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Heaps of nodes that take something new for these slots or calls, where they were looked for, by `_before_it`.

    It only becomes more while a round spends, which is seen once a node is at the top.
    """
    _taken_slots: dict[int, int] = field(default_factory=dict)
    """Of all services of a node, where it was looked for."""

    @classmethod
    def of(cls, pools: Mapping[int, Pool]) -> "FreeAmounts":
        free: dict[int, dict[str, int]] = {}
        environments: dict[int, int] = {}
        levels: list[tuple[int, int]] = []
        closed: list[int] = []
        for node, pool in pools.items():
            free[node] = left = {**pool.free}
            environments[node] = pool.environments
            if pool.serving and pool.accepting:
                levels.append((left.get(_CORES, 0), node))
            elif pool.serving:
                closed.append(node)
        levels.sort()
        return cls(pools, free, environments, levels, _closed=tuple(closed))

    @property
    def groups(self) -> FreeGroups:
        """Of whole devices."""
        if self._groups is None:
            self._groups = FreeGroups(self.pools)
        return self._groups

    def node_of(self, action: Waiting) -> int | None:
        """The node an action is pinned to by its environment, also one placed earlier in this round."""
        if action.environment is None:
            return None
        return self.placed.get(action.environment.id, action.environment.node)

    def take(self, action: Waiting, amounts: Amounts) -> Grant | None:
        """Grant `amounts` where its environment lives, or on any node that has them.

        The latter is `place` in fewer steps: there are tens of thousands a second.
        """
        if action.cls.shape is Shape.GROUP:
            return self.groups.serve(action)
        if action.environment is not None:
            pinned = self.node_of(action)
            return self.place(action, amounts, needed=_needed(amounts, pinned), pinned=pinned)
        place = self._anywhere(action.cls, amounts)
        if place is None:
            return None
        levels, homes = self.levels, self._by_homes
        cores, node = levels[place]
        free, home = self.free[node], self._place_for_homes(node) if homes is not None else None
        for resource, amount in amounts.items():
            if amount:
                free[resource] -= amount
        if self._taken_slots:
            self._count_slots(node, amounts)
        if (left := free.get(_CORES, 0)) != cores:
            del levels[place]
            insort(levels, (left, node), hi=place)
        if homes is not None and home is not None:
            _move(homes, home, self._place_for_homes(node))
        return Grant(Fence(action.id, action.grant_no + 1), node, amounts)

    def take_on(self, node: int, action: Waiting, amounts: Amounts) -> Grant | None:
        """Grant `amounts` on a node that `node_for` or `widest_for` said."""
        pinned = self.node_of(action)
        needed = _needed(amounts, pinned)
        return self._grant(node, action, amounts, needed, pinned) if self._fits(node, action.cls, needed) else None

    def grant_on(self, node: int, action: Waiting, amounts: Amounts, *, needed: Amounts) -> Grant:
        """Grant `amounts`, of which `needed` are not held yet, on a node of which that is known to fit."""
        return self._grant(node, action, amounts, needed, self.node_of(action))

    def nodes_for(self, cls: ActionClass, needed: Amounts) -> list[int]:
        """Where so much fits that is new."""
        levels = self.levels
        enough = levels[bisect_left(levels, (needed.get(_CORES, 0), -1)) :]
        return sorted(node for _, node in enough if self._fits(node, cls, needed))

    def open_nodes(self) -> list[int]:
        """That take something new."""
        return sorted(self._open())

    def suits(self, node: int, cls: ActionClass) -> bool:
        """Whether it is of its kind and enforces what it requires, whatever it has free."""
        pool = self.pools[node]
        return pool.shape is cls.shape and cls.requires <= pool.enforces

    def place(self, action: Waiting, amounts: Amounts, *, needed: Amounts, pinned: int | None) -> Grant | None:
        """Grant `amounts`, of which `needed` are not held yet; on the node `pinned`, or on any that has them."""
        node = self._choose(action, needed, pinned)
        return None if node is None else self._grant(node, action, amounts, needed, pinned)

    def node_for(self, action: Waiting, amounts: Amounts) -> int | None:
        """Where `take` would grant these amounts."""
        pinned = self.node_of(action)
        return self._choose(action, _needed(amounts, pinned), pinned)

    def widest_for(self, action: Waiting, amounts: Amounts) -> int | None:
        """Of the nodes where these amounts fit, one with most cores."""
        pinned = self.node_of(action)
        if pinned is not None or action.environment is not None:
            return self.node_for(action, amounts)
        cores = amounts.get(_CORES, 0)
        enough = takewhile(lambda level: level[0] >= cores, reversed(self.levels))
        return next((node for _, node in enough if self._fits(node, action.cls, amounts)), None)

    def lacking_what_comes_back(
        self, action: Waiting, *, outside: Callable[[int], Amounts], first: int | None, but: Container[int]
    ) -> list[int]:
        """Nodes that have all that it needs but what those who run there give back; a few.

        Among them `first`, and else those with most cores. Of memory and disk only that comes back which is held
        `outside` of environments: those end when somebody else wills.
        """
        pinned = self.node_of(action)
        comes_back = action_part(action.cls.demand.minimum)
        nodes: Iterable[int] = (node for _, node in reversed(self.levels) if node != first)
        if pinned is not None:
            nodes = (pinned,)
        elif first is not None and first in self.pools and self.pools[first].accepting:
            nodes = chain((first,), nodes)
        found = (
            node
            for node in nodes
            if node not in but
            and node in self.pools
            and self.pools[node].serving
            and fits(comes_back, self.pools[node].capacity)
            and self.suits(node, action.cls)
            and fits(environment_part(self.lacking(node, action)), outside(node))
        )
        return list(islice(found, FEW))

    def needed(self, action: Waiting) -> Amounts:
        """What it would take at its smallest: a living environment has its memory and disk."""
        return _needed(action.cls.demand.minimum, self.node_of(action))

    def lacking(self, node: int, action: Waiting) -> dict[str, int]:
        """What would have to be free there besides, for it to start at its smallest."""
        wanted, free = self.wanted(node, action), self.free[node]
        return {name: amount - free.get(name, 0) for name, amount in wanted.items() if 0 < amount > free.get(name, 0)}

    def wanted(self, node: int, action: Waiting) -> Amounts:
        """What has to be free there for it to start at its smallest: of a new environment with the headroom."""
        needed = self.needed(action)
        if action.environment is None or self.node_of(action) is not None or not self.environments[node]:
            return needed
        capacity = self.pools[node].capacity
        headroom = {name: capacity.get(name, 0) // ENVIRONMENT_HEADROOM for name in ENVIRONMENT_RESOURCES}
        return {name: amount + headroom.get(name, 0) for name, amount in needed.items()}

    def set_aside(self, node: int, action: Waiting) -> dict[str, int]:
        """Keep what is free there for an action that does not fit yet, and say how much. Others get what is beyond.

        With each that ends it comes nearer.
        """
        needed, free = self.needed(action), self.free[node]
        lacking = self.lacking(node, action)
        kept = {name: max(0, free.get(name, 0)) if name in lacking else amount for name, amount in needed.items()}
        self._spend(node, kept, homes=0)
        return kept

    def give_back(self, node: int, kept: Amounts) -> None:
        """What was set aside there is free again."""
        self._spend(node, {name: -amount for name, amount in kept.items()}, homes=0)

    def fits_with(self, node: int, action: Waiting, kept: Amounts) -> bool:
        """Whether its smallest amounts fit there together with what is kept.

        A new environment stays when its action ends, so its memory and disk have to fit without.
        """
        pool, pinned, free = self.pools[node], self.node_of(action), self.free[node]
        needed = _needed(action.cls.demand.minimum, pinned)
        if any(amount > free.get(name, 0) + kept.get(name, 0) for name, amount in needed.items() if amount):
            return False
        if not (pool.serving and (pinned == node or (pinned is None and pool.accepting))):
            return False
        if action.environment is not None and pinned is None:
            stays = environment_part(needed)
            if not fits(stays, free) or not self._leaves_headroom(node, stays):
                return False
        return self.suits(node, action.cls)

    def has_cores(self, milli: int) -> bool:
        """Whether any node has so many, for something new or for what lives there."""
        levels = self.levels
        if levels and levels[-1][0] >= milli:
            return True
        return any(self.free[node].get(_CORES, 0) >= milli for node in self._closed)

    def _choose(self, action: Waiting, needed: Amounts, pinned: int | None) -> int | None:
        if pinned is not None:
            pool = self.pools.get(pinned)
            return pinned if pool is not None and pool.serving and self._fits(pinned, action.cls, needed) else None
        if action.environment is None:
            place = self._anywhere(action.cls, needed)
            return None if place is None else self.levels[place][1]
        cores = needed.get(_CORES, 0)
        if not self.has_cores(cores):
            return None
        homes = (node for _, _, node in self._homes() if self.free[node].get(_CORES, 0) >= cores)
        fitting = (node for node in homes if self._fits(node, action.cls, needed))
        return next((node for node in fitting if self._leaves_headroom(node, needed)), None)

    def _anywhere(self, cls: ActionClass, needed: Amounts) -> int | None:
        """The place among `levels` of the node where this goes that is outside of environments.

        That is the one with fewest cores where it fits.
        """
        counted = counted_in(needed) if cls.shape is Shape.QUOTA else None
        if counted is not None:
            return self._least_busy(cls, needed, counted)
        levels, pools, shape, requires = self.levels, self.pools, cls.shape, cls.requires
        for place in range(bisect_left(levels, (needed.get(_CORES, 0), -1)), len(levels)):
            node = levels[place][1]
            pool = pools[node]
            if pool.shape is shape and requires <= pool.enforces and fits(needed, self.free[node]):
                return place
        return None

    def _least_busy(self, cls: ActionClass, needed: Amounts, counted: str) -> int | None:
        """Slots are not the device: whoever has fewest before it there is served first, if its service is there too.

        Calls go where most are free.
        """
        if counted not in self._offering:
            offering = (node for node in self._open() if counted in self.pools[node].capacity)
            self._offering[counted] = sorted((self._before_it(node, counted), node) for node in offering)
        heap, lacking = self._offering[counted], list[tuple[int, int]]()
        place = None
        while heap and place is None:
            before, node = heap[0]
            now = self._before_it(node, counted)
            if now != before:
                heapreplace(heap, (now, node))
            elif self._fits(node, cls, needed):
                place = bisect_left(self.levels, (self.free[node].get(_CORES, 0), node))
            else:
                lacking.append(heappop(heap))
        for each in lacking:
            # Of what it lacks, another may need less.
            if self.free[each[1]].get(counted):
                heappush(heap, each)
        return place

    def _before_it(self, node: int, counted: str) -> int:
        """Actions, of all services there, and what a restore is worth of them. Of calls, less where more are free."""
        if not is_slot(counted):
            return -self.free[node].get(counted, 0)
        taken = self._taken_slots.get(node)
        if taken is None:
            free, capacity = self.free[node], self.pools[node].capacity
            taken = sum(capacity[each] - free.get(each, 0) for each in capacity if is_slot(each))
            self._taken_slots[node] = taken
        return taken + (0 if counted in self.pools[node].at_hand else RESTORE_WORTH)

    def _count_slots(self, node: int, spent: Amounts) -> None:
        if node in self._taken_slots:
            self._taken_slots[node] += sum(amount for resource, amount in spent.items() if is_slot(resource))

    def _grant(self, node: int, action: Waiting, amounts: Amounts, needed: Amounts, pinned: int | None) -> Grant:
        environment = action.environment
        is_new_home = environment is not None and pinned is None
        self._spend(node, needed, homes=int(is_new_home))
        if environment is not None and is_new_home:
            self.placed[environment.id] = node
        return Grant(
            fence=Fence(action.id, action.grant_no + 1),
            node=node,
            amounts=amounts,
            environment=environment.id if environment is not None else None,
        )

    def _spend(self, node: int, needed: Amounts, *, homes: int) -> None:
        free = self.free[node]
        level = (free.get(_CORES, 0), node)
        place = self._place_for_homes(node) if self._by_homes is not None else None
        for resource, amount in needed.items():
            if amount:
                free[resource] -= amount
        self._count_slots(node, needed)
        self.environments[node] += homes
        _move(self.levels, level, (free.get(_CORES, 0), node))
        if self._by_homes is not None and place is not None:
            _move(self._by_homes, place, self._place_for_homes(node))

    def _homes(self) -> list[tuple[int, int, int]]:
        if self._by_homes is None:
            self._by_homes = sorted(map(self._place_for_homes, self._open()))
        return self._by_homes

    def _open(self) -> Iterable[int]:
        return (node for node, pool in self.pools.items() if pool.accepting and pool.serving)

    def _place_for_homes(self, node: int) -> tuple[int, int, int]:
        return (self.environments[node], -self.free[node].get("memory_mib", 0), node)

    def _fits(self, node: int, cls: ActionClass, needed: Amounts) -> bool:
        pool = self.pools[node]
        return pool.shape is cls.shape and cls.requires <= pool.enforces and fits(needed, self.free[node])

    def _leaves_headroom(self, node: int, needed: Amounts) -> bool:
        """Environments hold their memory while their trajectories wait for other actions, scoring for instance.

        Were all memory theirs, those actions could never start and no environment would ever end.
        """
        if not self.environments[node]:
            return True
        free, capacity = self.free[node], self.pools[node].capacity
        for resource in ENVIRONMENT_RESOURCES:
            amount = needed.get(resource)
            if amount is not None and free.get(resource, 0) - amount < capacity[resource] // ENVIRONMENT_HEADROOM:
                return False
        return True


def _needed(amounts: Amounts, pinned: int | None) -> Amounts:
    return amounts if pinned is None else action_part(amounts)


def _move(entries: list[_Entry], old: _Entry, new: _Entry) -> None:
    at = bisect_left(entries, old)
    if at < len(entries) and entries[at] == old:
        del entries[at]
        insort(entries, new)

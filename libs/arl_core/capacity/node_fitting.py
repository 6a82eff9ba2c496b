"""What is left of each pool while a round spends it, and where the next action goes."""

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import chain, islice, takewhile
from typing import TypeVar
from uuid import UUID

from arl_core.capacity.device_groups import DeviceGroupFitter
from arl_core.capacity.ledger import fits
from arl_core.domain.model import (
    ENVIRONMENT_RESOURCES,
    ActionClass,
    Fence,
    Grant,
    NodeResources,
    QueuedAction,
    Resources,
    ResourceShape,
    action_resources,
    counted_resource,
    environment_resources,
    is_slot_resource,
)

__all__ = ["ENVIRONMENT_HEADROOM", "NodeFitter"]

ENVIRONMENT_HEADROOM = 8
"""New environments leave one part in so many of a node's memory and disk to actions outside of them."""

MAX_RESERVATION_NODES = 8
RESTORE_COST_ACTIONS = 4
"""Actions that may be before one at a node with its service, rather than that the service is brought to another node.

A copy takes about as long as so many batches; the node itself computes those that wait for one service together.
"""

_CORES = "cpu_milli"
_Entry = TypeVar("_Entry", tuple[int, int], tuple[int, int, int])


@dataclass(slots=True)
class NodeFitter:
    """Choosing a node costs O(log n) unless many that have the cores lack something else."""

    nodes: Mapping[int, NodeResources]
    available: dict[int, dict[str, int]]
    environments: dict[int, int]
    nodes_by_cores: list[tuple[int, int]]
    """Free cores and node, fewest first, of those that take something new; it changes as they are spent."""
    placements: dict[UUID, int] = field(default_factory=dict)
    _device_groups: DeviceGroupFitter | None = None
    _unschedulable: tuple[int, ...] = ()
    """To what is new; what lives there goes on."""
    _nodes_by_environments: list[tuple[int, int, int]] | None = None
    """Where new environments go first, first."""
    _load_heaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Heaps of nodes that take something new for these slots or calls, where they were looked for, by `_before_it`.

    It only becomes more while a round spends, which is seen once a node is at the top.
    """
    _used_slots: dict[int, int] = field(default_factory=dict)
    """Of all services of a node, where it was looked for."""

    @classmethod
    def from_nodes(cls, nodes: Mapping[int, NodeResources]) -> "NodeFitter":
        free: dict[int, dict[str, int]] = {}
        environments: dict[int, int] = {}
        levels: list[tuple[int, int]] = []
        closed: list[int] = []
        for node, pool in nodes.items():
            free[node] = left = {**pool.available}
            environments[node] = pool.environments
            if pool.is_serving and pool.is_schedulable:
                levels.append((left.get(_CORES, 0), node))
            elif pool.is_serving:
                closed.append(node)
        levels.sort()
        return cls(nodes, free, environments, levels, _unschedulable=tuple(closed))

    @property
    def device_groups(self) -> DeviceGroupFitter:
        """Of whole devices."""
        if self._device_groups is None:
            self._device_groups = DeviceGroupFitter(self.nodes)
        return self._device_groups

    def pinned_node(self, action: QueuedAction) -> int | None:
        """The node an action is pinned to by its environment, also one placed earlier in this round."""
        if action.environment is None:
            return None
        return self.placements.get(action.environment.id, action.environment.node)

    def allocate(self, action: QueuedAction, resources: Resources) -> Grant | None:
        """Grant `amounts` where its environment lives, or on any node that has them.

        The latter is `place` in fewer steps: there are tens of thousands a second.
        """
        if action.cls.shape is ResourceShape.GROUP:
            return self.device_groups.allocate(action)
        if action.environment is not None:
            pinned = self.pinned_node(action)
            return self.place(action, resources, needed=_needed_resources(resources, pinned), pinned=pinned)
        place = self._best_fit_index(action.cls, resources)
        if place is None:
            return None
        levels, homes = self.nodes_by_cores, self._nodes_by_environments
        cores, node = levels[place]
        free, home = self.available[node], self._environment_rank(node) if homes is not None else None
        for resource, amount in resources.items():
            if amount:
                free[resource] -= amount
        if self._used_slots:
            self._add_used_slots(node, resources)
        if (left := free.get(_CORES, 0)) != cores:
            del levels[place]
            insort(levels, (left, node), hi=place)
        if homes is not None and home is not None:
            _reposition(homes, home, self._environment_rank(node))
        return Grant(Fence(action.id, action.grant_no + 1), node, resources)

    def allocate_on(self, node: int, action: QueuedAction, resources: Resources) -> Grant | None:
        """Grant `amounts` on a node that `node_for` or `widest_for` said."""
        pinned = self.pinned_node(action)
        needed = _needed_resources(resources, pinned)
        return self._grant(node, action, resources, needed, pinned) if self._fits(node, action.cls, needed) else None

    def grant_on(self, node: int, action: QueuedAction, resources: Resources, *, needed: Resources) -> Grant:
        """Grant `amounts`, of which `needed` are not held yet, on a node of which that is known to fit."""
        return self._grant(node, action, resources, needed, self.pinned_node(action))

    def fitting_nodes(self, cls: ActionClass, needed: Resources) -> list[int]:
        """Where so much fits that is new."""
        levels = self.nodes_by_cores
        enough = levels[bisect_left(levels, (needed.get(_CORES, 0), -1)) :]
        return sorted(node for _, node in enough if self._fits(node, cls, needed))

    def schedulable_nodes(self) -> list[int]:
        """That take something new."""
        return sorted(self._schedulable())

    def is_suitable(self, node: int, cls: ActionClass) -> bool:
        """Whether it is of its kind and enforces what it requires, whatever it has free."""
        pool = self.nodes[node]
        return pool.shape is cls.shape and cls.requires <= pool.enforced

    def place(
        self, action: QueuedAction, resources: Resources, *, needed: Resources, pinned: int | None
    ) -> Grant | None:
        """Grant `amounts`, of which `needed` are not held yet; on the node `pinned`, or on any that has them."""
        node = self._choose_node(action, needed, pinned)
        return None if node is None else self._grant(node, action, resources, needed, pinned)

    def find_node(self, action: QueuedAction, resources: Resources) -> int | None:
        """Where `take` would grant these amounts."""
        pinned = self.pinned_node(action)
        return self._choose_node(action, _needed_resources(resources, pinned), pinned)

    def find_roomiest_node(self, action: QueuedAction, resources: Resources) -> int | None:
        """Of the nodes where these amounts fit, one with most cores."""
        pinned = self.pinned_node(action)
        if pinned is not None or action.environment is not None:
            return self.find_node(action, resources)
        cores = resources.get(_CORES, 0)
        enough = takewhile(lambda level: level[0] >= cores, reversed(self.nodes_by_cores))
        return next((node for _, node in enough if self._fits(node, action.cls, resources)), None)

    def find_reservation_nodes(
        self, action: QueuedAction, *, outside: Callable[[int], Resources], first: int | None, excluded: Container[int]
    ) -> list[int]:
        """Nodes that have all that it needs but what those who run there give back; a few.

        Among them `first`, and else those with most cores. Of memory and disk only that comes back which is held
        `outside` of environments: those end when somebody else wills.
        """
        pinned = self.pinned_node(action)
        comes_back = action_resources(action.cls.demand.minimum)
        nodes: Iterable[int] = (node for _, node in reversed(self.nodes_by_cores) if node != first)
        if pinned is not None:
            nodes = (pinned,)
        elif first is not None and first in self.nodes and self.nodes[first].is_schedulable:
            nodes = chain((first,), nodes)
        found = (
            node
            for node in nodes
            if node not in excluded
            and node in self.nodes
            and self.nodes[node].is_serving
            and fits(comes_back, self.nodes[node].capacity)
            and self.is_suitable(node, action.cls)
            and fits(environment_resources(self.missing_resources(node, action)), outside(node))
        )
        return list(islice(found, MAX_RESERVATION_NODES))

    def needed_resources(self, action: QueuedAction) -> Resources:
        """What it would take at its smallest: a living environment has its memory and disk."""
        return _needed_resources(action.cls.demand.minimum, self.pinned_node(action))

    def missing_resources(self, node: int, action: QueuedAction) -> dict[str, int]:
        """What would have to be free there besides, for it to start at its smallest."""
        wanted, free = self.required_available(node, action), self.available[node]
        return {name: amount - free.get(name, 0) for name, amount in wanted.items() if 0 < amount > free.get(name, 0)}

    def required_available(self, node: int, action: QueuedAction) -> Resources:
        """What has to be free there for it to start at its smallest: of a new environment with the headroom."""
        needed = self.needed_resources(action)
        if action.environment is None or self.pinned_node(action) is not None or not self.environments[node]:
            return needed
        capacity = self.nodes[node].capacity
        headroom = {name: capacity.get(name, 0) // ENVIRONMENT_HEADROOM for name in ENVIRONMENT_RESOURCES}
        return {name: amount + headroom.get(name, 0) for name, amount in needed.items()}

    def reserve(self, node: int, action: QueuedAction) -> dict[str, int]:
        """Keep what is free there for an action that does not fit yet, and say how much. Others get what is beyond.

        With each that ends it comes nearer.
        """
        needed, free = self.needed_resources(action), self.available[node]
        lacking = self.missing_resources(node, action)
        kept = {name: max(0, free.get(name, 0)) if name in lacking else amount for name, amount in needed.items()}
        self._deduct(node, kept, new_environments=0)
        return kept

    def release_reserved(self, node: int, reserved: Resources) -> None:
        """What was set aside there is free again."""
        self._deduct(node, {name: -amount for name, amount in reserved.items()}, new_environments=0)

    def fits_with_reserved(self, node: int, action: QueuedAction, reserved: Resources) -> bool:
        """Whether its smallest amounts fit there together with what is kept.

        A new environment stays when its action ends, so its memory and disk have to fit without.
        """
        pool, pinned, free = self.nodes[node], self.pinned_node(action), self.available[node]
        needed = _needed_resources(action.cls.demand.minimum, pinned)
        if any(amount > free.get(name, 0) + reserved.get(name, 0) for name, amount in needed.items() if amount):
            return False
        if not (pool.is_serving and (pinned == node or (pinned is None and pool.is_schedulable))):
            return False
        if action.environment is not None and pinned is None:
            stays = environment_resources(needed)
            if not fits(stays, free) or not self._keeps_headroom(node, stays):
                return False
        return self.is_suitable(node, action.cls)

    def has_cores(self, milli: int) -> bool:
        """Whether any node has so many, for something new or for what lives there."""
        levels = self.nodes_by_cores
        if levels and levels[-1][0] >= milli:
            return True
        return any(self.available[node].get(_CORES, 0) >= milli for node in self._unschedulable)

    def _choose_node(self, action: QueuedAction, needed: Resources, pinned: int | None) -> int | None:
        if pinned is not None:
            pool = self.nodes.get(pinned)
            return pinned if pool is not None and pool.is_serving and self._fits(pinned, action.cls, needed) else None
        if action.environment is None:
            place = self._best_fit_index(action.cls, needed)
            return None if place is None else self.nodes_by_cores[place][1]
        cores = needed.get(_CORES, 0)
        if not self.has_cores(cores):
            return None
        homes = (node for _, _, node in self._environment_order() if self.available[node].get(_CORES, 0) >= cores)
        fitting = (node for node in homes if self._fits(node, action.cls, needed))
        return next((node for node in fitting if self._keeps_headroom(node, needed)), None)

    def _best_fit_index(self, cls: ActionClass, needed: Resources) -> int | None:
        """The place among `levels` of the node where this goes that is outside of environments.

        That is the one with fewest cores where it fits.
        """
        counted = counted_resource(needed) if cls.shape is ResourceShape.QUOTA else None
        if counted is not None:
            return self._least_loaded_index(cls, needed, counted)
        levels, pools, shape, requires = self.nodes_by_cores, self.nodes, cls.shape, cls.requires
        for place in range(bisect_left(levels, (needed.get(_CORES, 0), -1)), len(levels)):
            node = levels[place][1]
            pool = pools[node]
            if pool.shape is shape and requires <= pool.enforced and fits(needed, self.available[node]):
                return place
        return None

    def _least_loaded_index(self, cls: ActionClass, needed: Resources, counted: str) -> int | None:
        """Slots are not the device: whoever has fewest before it there is served first, if its service is there too.

        Calls go where most are free.
        """
        if counted not in self._load_heaps:
            offering = (node for node in self._schedulable() if counted in self.nodes[node].capacity)
            self._load_heaps[counted] = sorted((self._queue_length(node, counted), node) for node in offering)
        heap, lacking = self._load_heaps[counted], list[tuple[int, int]]()
        place = None
        while heap and place is None:
            before, node = heap[0]
            now = self._queue_length(node, counted)
            if now != before:
                heapreplace(heap, (now, node))
            elif self._fits(node, cls, needed):
                place = bisect_left(self.nodes_by_cores, (self.available[node].get(_CORES, 0), node))
            else:
                lacking.append(heappop(heap))
        for each in lacking:
            # Of what it lacks, another may need less.
            if self.available[each[1]].get(counted):
                heappush(heap, each)
        return place

    def _queue_length(self, node: int, counted: str) -> int:
        """Actions, of all services there, and what a restore is worth of them. Of calls, less where more are free."""
        if not is_slot_resource(counted):
            return -self.available[node].get(counted, 0)
        taken = self._used_slots.get(node)
        if taken is None:
            free, capacity = self.available[node], self.nodes[node].capacity
            taken = sum(capacity[each] - free.get(each, 0) for each in capacity if is_slot_resource(each))
            self._used_slots[node] = taken
        return taken + (0 if counted in self.nodes[node].warm_slots else RESTORE_COST_ACTIONS)

    def _add_used_slots(self, node: int, spent: Resources) -> None:
        if node in self._used_slots:
            self._used_slots[node] += sum(amount for resource, amount in spent.items() if is_slot_resource(resource))

    def _grant(
        self, node: int, action: QueuedAction, resources: Resources, needed: Resources, pinned: int | None
    ) -> Grant:
        environment = action.environment
        is_new_home = environment is not None and pinned is None
        self._deduct(node, needed, new_environments=int(is_new_home))
        if environment is not None and is_new_home:
            self.placements[environment.id] = node
        return Grant(
            fence=Fence(action.id, action.grant_no + 1),
            node=node,
            resources=resources,
            environment=environment.id if environment is not None else None,
        )

    def _deduct(self, node: int, needed: Resources, *, new_environments: int) -> None:
        free = self.available[node]
        level = (free.get(_CORES, 0), node)
        place = self._environment_rank(node) if self._nodes_by_environments is not None else None
        for resource, amount in needed.items():
            if amount:
                free[resource] -= amount
        self._add_used_slots(node, needed)
        self.environments[node] += new_environments
        _reposition(self.nodes_by_cores, level, (free.get(_CORES, 0), node))
        if self._nodes_by_environments is not None and place is not None:
            _reposition(self._nodes_by_environments, place, self._environment_rank(node))

    def _environment_order(self) -> list[tuple[int, int, int]]:
        if self._nodes_by_environments is None:
            self._nodes_by_environments = sorted(map(self._environment_rank, self._schedulable()))
        return self._nodes_by_environments

    def _schedulable(self) -> Iterable[int]:
        return (node for node, pool in self.nodes.items() if pool.is_schedulable and pool.is_serving)

    def _environment_rank(self, node: int) -> tuple[int, int, int]:
        return (self.environments[node], -self.available[node].get("memory_mib", 0), node)

    def _fits(self, node: int, cls: ActionClass, needed: Resources) -> bool:
        pool = self.nodes[node]
        return pool.shape is cls.shape and cls.requires <= pool.enforced and fits(needed, self.available[node])

    def _keeps_headroom(self, node: int, needed: Resources) -> bool:
        """Environments hold their memory while their trajectories wait for other actions, scoring for instance.

        Were all memory theirs, those actions could never start and no environment would ever end.
        """
        if not self.environments[node]:
            return True
        free, capacity = self.available[node], self.nodes[node].capacity
        for resource in ENVIRONMENT_RESOURCES:
            amount = needed.get(resource)
            if amount is not None and free.get(resource, 0) - amount < capacity[resource] // ENVIRONMENT_HEADROOM:
                return False
        return True


def _needed_resources(resources: Resources, pinned: int | None) -> Resources:
    return resources if pinned is None else action_resources(resources)


def _reposition(entries: list[_Entry], old: _Entry, new: _Entry) -> None:
    at = bisect_left(entries, old)
    if at < len(entries) and entries[at] == old:
        del entries[at]
        insort(entries, new)

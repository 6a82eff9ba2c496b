"""Available resources of each node during a round, and the choice of a node for the next action."""

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import chain, islice, takewhile
from typing import TypeVar
from uuid import UUID

from arl_core.capacity.device_groups import DeviceGroupFitter
from arl_core.capacity.ledger import fits
from arl_core.capacity.walltime import is_suited
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
"""Divisor of a node's memory and disk; new environments leave this part to actions outside environments."""

MAX_RESERVATION_NODES = 8
RESTORE_COST_ACTIONS = 4
"""Cost of restoring a service on another node, in queued actions ahead on a node that has it.

A restore takes about as long as this many batches. A node computes the queued actions of one service as one batch.
"""

_CORES = "cpu_milli"
_Entry = TypeVar("_Entry", tuple[int, int], tuple[int, int, int])


@dataclass(slots=True)
class NodeFitter:
    """The available amounts of nodes in a round. Choosing a node costs O(log n) in the common case."""

    nodes: Mapping[int, NodeResources]
    available: dict[int, dict[str, int]]
    environments: dict[int, int]
    nodes_by_cores: list[tuple[int, int]]
    """Free cores and node of the schedulable nodes, fewest cores first; updated with every grant."""
    placements: dict[UUID, int] = field(default_factory=dict)
    _device_groups: DeviceGroupFitter | None = None
    _unschedulable: tuple[int, ...] = ()
    """Nodes that accept no new actions but still serve their environments."""
    _nodes_by_environments: list[tuple[int, int, int]] | None = None
    """Schedulable nodes in the order in which they get new environments."""
    _load_heaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Heaps of schedulable nodes by slot or call resource, ordered by `_queue_length`; built on first use.

    Queue lengths only grow during a round. An outdated entry is corrected when it reaches the top of a heap.
    """
    _used_slots: dict[int, int] = field(default_factory=dict)
    """Used slots of all services of a node; computed on first use."""

    @classmethod
    def from_nodes(cls, nodes: Mapping[int, NodeResources]) -> "NodeFitter":
        """Return a fitter with copies of the nodes' available amounts."""
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
        """Return the fitter for groups of whole devices."""
        if self._device_groups is None:
            self._device_groups = DeviceGroupFitter(self.nodes)
        return self._device_groups

    def pinned_node(self, action: QueuedAction) -> int | None:
        """Return the node that the action's environment is on, including placements made earlier in this round."""
        if action.environment is None:
            return None
        return self.placements.get(action.environment.id, action.environment.node)

    def allocate(self, action: QueuedAction, resources: Resources) -> Grant | None:
        """Grant the amounts on the node of the action's environment, or on any node with enough available.

        The second case repeats `place` in fewer steps because it runs tens of thousands of times per second.
        """
        if action.cls.shape is ResourceShape.GROUP:
            return self.device_groups.allocate(action)
        if action.environment is not None:
            pinned = self.pinned_node(action)
            return self.place(action, resources, needed=_needed_resources(resources, pinned), pinned=pinned)
        place = self._index_of_node(action.cls, resources)
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
        """Grant the amounts on a node from `find_node` or `find_roomiest_node`; return None if they do not fit."""
        pinned = self.pinned_node(action)
        needed = _needed_resources(resources, pinned)
        return self._grant(node, action, resources, needed, pinned) if self._fits(node, action.cls, needed) else None

    def grant_on(self, node: int, action: QueuedAction, resources: Resources, *, needed: Resources) -> Grant:
        """Grant the amounts on a node that is known to fit; only `needed` is deducted from the node."""
        return self._grant(node, action, resources, needed, self.pinned_node(action))

    def fitting_nodes(self, cls: ActionClass, needed: Resources) -> list[int]:
        """Return the schedulable nodes on which these amounts fit, by node."""
        levels = self.nodes_by_cores
        enough = levels[bisect_left(levels, (needed.get(_CORES, 0), -1)) :]
        return sorted(node for _, node in enough if self._fits(node, cls, needed))

    def schedulable_nodes(self) -> list[int]:
        """Return the nodes that accept new actions, by node."""
        return sorted(self._schedulable())

    def is_suitable(self, node: int, cls: ActionClass) -> bool:
        """Return True if the node may start actions of the class, regardless of free amounts."""
        return is_suited(cls, self.nodes[node])

    def place(
        self, action: QueuedAction, resources: Resources, *, needed: Resources, pinned: int | None
    ) -> Grant | None:
        """Grant the amounts on `pinned`, or on any node with enough available; only `needed` is deducted."""
        node = self._choose_node(action, needed, pinned)
        return None if node is None else self._grant(node, action, resources, needed, pinned)

    def find_node(self, action: QueuedAction, resources: Resources) -> int | None:
        """Return the node on which `allocate` would grant these amounts; None if there is none."""
        pinned = self.pinned_node(action)
        return self._choose_node(action, _needed_resources(resources, pinned), pinned)

    def find_roomiest_node(self, action: QueuedAction, resources: Resources) -> int | None:
        """Return the node with the most free cores among those on which these amounts fit."""
        pinned = self.pinned_node(action)
        if pinned is not None or action.environment is not None:
            return self.find_node(action, resources)
        cores = resources.get(_CORES, 0)
        enough = takewhile(lambda level: level[0] >= cores, reversed(self.nodes_by_cores))
        return next((node for _, node in enough if self._fits(node, action.cls, resources)), None)

    def find_reservation_nodes(
        self, action: QueuedAction, *, outside: Callable[[int], Resources], first: int | None, excluded: Container[int]
    ) -> list[int]:
        """Return a few nodes that would fit the action once their running actions end.

        `first` is preferred, then the nodes with the most free cores. Only memory and disk `outside` of environments
        count as released, because clients decide when environments end.
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
        """Return what the action's minimum takes from a node; an existing environment has its memory and disk."""
        return _needed_resources(action.cls.demand.minimum, self.pinned_node(action))

    def missing_resources(self, node: int, action: QueuedAction) -> dict[str, int]:
        """Return the additional amounts that must become free on the node to start the action at its minimum."""
        wanted, free = self.required_available(node, action), self.available[node]
        return {name: amount - free.get(name, 0) for name, amount in wanted.items() if 0 < amount > free.get(name, 0)}

    def required_available(self, node: int, action: QueuedAction) -> Resources:
        """Return the amounts that must be free on the node to start the action at its minimum.

        A new environment also needs the headroom.
        """
        needed = self.needed_resources(action)
        if action.environment is None or self.pinned_node(action) is not None or not self.environments[node]:
            return needed
        capacity = self.nodes[node].capacity
        headroom = {name: capacity.get(name, 0) // ENVIRONMENT_HEADROOM for name in ENVIRONMENT_RESOURCES}
        return {name: amount + headroom.get(name, 0) for name, amount in needed.items()}

    def reserve(self, node: int, action: QueuedAction) -> dict[str, int]:
        """Reserve the free amounts of a node for an action that does not fit yet; return the reserved amounts.

        Other actions get only the rest. Every action that ends brings the reserved action closer to its start.
        """
        needed, free = self.needed_resources(action), self.available[node]
        lacking = self.missing_resources(node, action)
        kept = {name: max(0, free.get(name, 0)) if name in lacking else amount for name, amount in needed.items()}
        self._deduct(node, kept, new_environments=0)
        return kept

    def release_reserved(self, node: int, reserved: Resources) -> None:
        """Release amounts that `reserve` set aside."""
        self._deduct(node, {name: -amount for name, amount in reserved.items()}, new_environments=0)

    def fits_with_reserved(self, node: int, action: QueuedAction, reserved: Resources) -> bool:
        """Return True if the action's minimum fits on the node together with the reserved amounts.

        A new environment stays when its action ends, so its memory and disk must fit without the reserved amounts.
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
        """Return True if any serving node has this many free milli-cores, for new actions or for its environments."""
        levels = self.nodes_by_cores
        if levels and levels[-1][0] >= milli:
            return True
        return any(self.available[node].get(_CORES, 0) >= milli for node in self._unschedulable)

    def _choose_node(self, action: QueuedAction, needed: Resources, pinned: int | None) -> int | None:
        if pinned is not None:
            pool = self.nodes.get(pinned)
            return pinned if pool is not None and pool.is_serving and self._fits(pinned, action.cls, needed) else None
        if action.environment is None:
            place = self._index_of_node(action.cls, needed)
            return None if place is None else self.nodes_by_cores[place][1]
        cores = needed.get(_CORES, 0)
        if not self.has_cores(cores):
            return None
        homes = (node for _, _, node in self._environment_order() if self.available[node].get(_CORES, 0) >= cores)
        fitting = (node for node in homes if self._fits(node, action.cls, needed))
        return next((node for node in fitting if self._keeps_headroom(node, needed)), None)

    def _index_of_node(self, cls: ActionClass, needed: Resources) -> int | None:
        """Return the index in `nodes_by_cores` of the node for an action outside environments.

        It is the node with the fewest free cores on which the action fits; for shared cores, the one with the most.
        """
        if cls.shape is ResourceShape.QUOTA and (counted := counted_resource(needed)) is not None:
            return self._least_loaded_index(cls, needed, counted)
        levels, pools = self.nodes_by_cores, self.nodes
        shape, requires, limit_s = cls.shape, cls.requires, cls.time_limit_s
        order = range(bisect_left(levels, (needed.get(_CORES, 0), -1)), len(levels))
        for place in order if cls.sharing is None else reversed(order):
            node = levels[place][1]
            pool = pools[node]
            may = pool.shape is shape and requires <= pool.enforced and limit_s <= pool.time_left_s  # as `is_suited`
            if may and fits(needed, self.available[node]):
                return place
        return None

    def _least_loaded_index(self, cls: ActionClass, needed: Resources, counted: str) -> int | None:
        """Return the index of the node with the shortest queue for these slots or calls.

        Slots do not measure device load, so the queue length decides; a missing service adds the restore cost. Calls go
        to the node with the most free calls.
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
            # The node may lack another resource of which the next action needs less.
            if self.available[each[1]].get(counted):
                heappush(heap, each)
        return place

    def _queue_length(self, node: int, counted: str) -> int:
        """Return the actions of all services on the node, plus the restore cost if the service is not warm.

        For calls, return the negated number of free calls.
        """
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
        return is_suited(cls, self.nodes[node]) and fits(needed, self.available[node])

    def _keeps_headroom(self, node: int, needed: Resources) -> bool:
        """Return True if the environment headroom of the node stays free after deducting these amounts.

        Environments keep their memory while their trajectories wait for other actions, for example scoring. If
        environments used all memory, those actions could never start and no environment would ever end.
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

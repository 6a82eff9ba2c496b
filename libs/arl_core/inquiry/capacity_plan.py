"""Hypothetical cells with other nodes or more queued actions. Values in, values out."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from uuid import UUID

from arl_core.domain.model import ActionClass, NodeResources, QueuedAction, ResourceDemand, ResourceShape
from arl_core.durations.curves import DurationModel
from arl_core.inquiry.forecast import ForecastInput

__all__ = ["BaselineDurations", "ExtraLoad", "NodeChange", "schedulable_cores", "with_extra_load", "with_node_change"]

_CORES = "cpu_milli"
_EXTRA_LOAD_KEY = 1 << 63
"""Class key of the extra load; real keys are signed 64-bit integers."""
_EXTRA_LOAD_TASK = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """A hypothetical change of the schedulable nodes."""

    cores_factor: float = 1.0
    """Factor on the cores of each schedulable node."""
    added: int = 0
    """Number of added copies of the node with the most cores, before scaling."""
    cordoned: frozenset[int] = frozenset()
    """Nodes that accept no new actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraLoad:
    """Identical extra actions that arrive now, outside persistent environments, in a task of their own."""

    count: int
    demand: ResourceDemand
    run_time_s: float
    """Seconds per action at its smallest amounts."""


class BaselineDurations:
    """A snapshot of `durations` that fixes each value at first use, so that learning does not distort a comparison."""

    def __init__(self, durations: DurationModel, *, extra_load_s: float = 0.0) -> None:
        self._durations, self._extra_load_s = durations, extra_load_s
        self._cache: dict[tuple[int, int], float] = {}

    def seconds(self, cls: ActionClass, amount: int) -> float:
        """Return the expected seconds; later calls for the same class and amount return the same value."""
        known = self._cache.get((cls.key, amount))
        if known is None:
            known = self._cache[cls.key, amount] = self._query(cls, amount)
        return known

    def _query(self, cls: ActionClass, amount: int) -> float:
        if cls.key != _EXTRA_LOAD_KEY:
            return self._durations.seconds(cls, amount)
        elastic = cls.demand.elastic
        if elastic is None:
            return self._extra_load_s
        return self._extra_load_s * elastic.elasticity.relative_duration(amount, base=elastic.amounts[0])


def with_node_change(start: ForecastInput, change: NodeChange) -> ForecastInput:
    """Apply the change; running actions stay on their nodes even if a node becomes too small."""
    largest = max(
        filter(_has_schedulable_cores, start.nodes.values()), key=lambda pool: pool.capacity[_CORES], default=None
    )
    pools = {
        node: replace(pool, is_schedulable=False) if node in change.cordoned else pool
        for node, pool in start.nodes.items()
    }
    if largest is not None:
        first = max(pools) + 1
        pools |= {node: _copy_node(largest, node) for node in range(first, first + change.added)}
    scaled = {
        node: _scale_cores(pool, change.cores_factor) if _has_schedulable_cores(pool) else pool
        for node, pool in pools.items()
    }
    return replace(start, nodes=scaled)


def with_extra_load(start: ForecastInput, load: ExtraLoad) -> ForecastInput:
    """Queue the extra actions now, behind all queued actions."""
    cls = ActionClass(key=_EXTRA_LOAD_KEY, kind="exec", shape=ResourceShape.DIVISIBLE, demand=load.demand)
    more = [
        QueuedAction(
            id=UUID(int=(1 << 128) - 1 - each), cls=cls, task=_EXTRA_LOAD_TASK, submitted=start.now, grant_no=0
        )
        for each in range(load.count)
    ]
    shares = copy.deepcopy(start.shares)
    for action in more:
        shares.add_action(action.task)
    durations = BaselineDurations(start.durations, extra_load_s=load.run_time_s)
    return replace(start, queued=(*start.queued, *more), shares=shares, durations=durations)


def schedulable_cores(nodes: Mapping[int, NodeResources]) -> dict[int, int]:
    """Return the milli-cores of each schedulable node."""
    return {node: pool.capacity[_CORES] for node, pool in nodes.items() if _has_schedulable_cores(pool)}


def _has_schedulable_cores(pool: NodeResources) -> bool:
    return pool.is_schedulable and pool.is_serving and pool.capacity.get(_CORES, 0) > 0


def _copy_node(pool: NodeResources, node: int) -> NodeResources:
    """Return an empty copy of the node, without the original's own `node:` feature and without its end."""
    enforces = pool.enforced - {f"node:{pool.node}"}
    return replace(pool, node=node, available=dict(pool.capacity), environments=0, enforced=enforces, time_left_s=inf)


def _scale_cores(pool: NodeResources, factor: float) -> NodeResources:
    cores = int(pool.capacity[_CORES] * factor)
    lost = pool.capacity[_CORES] - cores
    free = {**pool.available, _CORES: pool.available.get(_CORES, 0) - lost}
    return replace(pool, capacity={**pool.capacity, _CORES: cores}, available=free)

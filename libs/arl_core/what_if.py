"""A cell as it is not: with other nodes, with more that waits. Values in, values out."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from arl_core.curves import Durations
from arl_core.forecast import Present
from arl_core.model import ActionClass, Demand, Pool, Shape, Waiting

__all__ = ["AsKnown", "Nodes", "Wave", "open_cores", "with_nodes", "with_wave"]

_CORES = "cpu_milli"
_WAVE = 1 << 63
"""The class key of what comes besides: others have 64 bits with a sign."""
_TASK = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What is changed of the nodes that take something new."""

    cores_part: float = 1.0
    """Each node of cores has so many times what it has."""
    added: int = 0
    """More like the one with most cores, before that."""
    closed: frozenset[int] = frozenset()
    """They take nothing new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Actions that are alike and come now, each outside of kept environments, of a task of their own."""

    count: int
    demand: Demand
    seconds: float
    """Each, with its smallest amounts."""


class AsKnown:
    """`durations` as they were when each was first asked for: what is learnt meanwhile changes no comparison."""

    def __init__(self, durations: Durations, *, wave_s: float = 0.0) -> None:
        self._durations, self._wave_s = durations, wave_s
        self._known: dict[tuple[int, int], float] = {}

    def seconds(self, cls: ActionClass, amount: int) -> float:
        known = self._known.get((cls.key, amount))
        if known is None:
            known = self._known[cls.key, amount] = self._asked(cls, amount)
        return known

    def _asked(self, cls: ActionClass, amount: int) -> float:
        if cls.key != _WAVE:
            return self._durations.seconds(cls, amount)
        elastic = cls.demand.elastic
        if elastic is None:
            return self._wave_s
        return self._wave_s * elastic.elasticity.relative_duration(amount, base=elastic.amounts[0])


def with_nodes(present: Present, nodes: Nodes) -> Present:
    """What runs goes on where it runs, also on a node that has less than that."""
    largest = max(filter(_takes_cores, present.pools.values()), key=lambda pool: pool.capacity[_CORES], default=None)
    pools = {
        node: replace(pool, accepting=False) if node in nodes.closed else pool for node, pool in present.pools.items()
    }
    if largest is not None:
        first = max(pools) + 1
        pools |= {node: _like(largest, node) for node in range(first, first + nodes.added)}
    scaled = {node: _scaled(pool, nodes.cores_part) if _takes_cores(pool) else pool for node, pool in pools.items()}
    return replace(present, pools=scaled)


def with_wave(present: Present, wave: Wave) -> Present:
    """They came at this moment, after all that is there."""
    cls = ActionClass(key=_WAVE, kind="exec", shape=Shape.DIVISIBLE, demand=wave.demand)
    more = [
        Waiting(id=UUID(int=(1 << 128) - 1 - each), cls=cls, task=_TASK, submitted=present.now, grant_no=0)
        for each in range(wave.count)
    ]
    shares = copy.deepcopy(present.shares)
    for action in more:
        shares.begin(action.task)
    durations = AsKnown(present.durations, wave_s=wave.seconds)
    return replace(present, waiting=(*present.waiting, *more), shares=shares, durations=durations)


def open_cores(pools: Mapping[int, Pool]) -> dict[int, int]:
    """Milli-cores of each node that takes something new."""
    return {node: pool.capacity[_CORES] for node, pool in pools.items() if _takes_cores(pool)}


def _takes_cores(pool: Pool) -> bool:
    return pool.accepting and pool.serving and pool.capacity.get(_CORES, 0) > 0


def _like(pool: Pool, node: int) -> Pool:
    """Empty. What only the one node has is not among what it enforces."""
    enforces = pool.enforces - {f"node:{pool.node}"}
    return replace(pool, node=node, free=dict(pool.capacity), environments=0, enforces=enforces)


def _scaled(pool: Pool, part: float) -> Pool:
    cores = int(pool.capacity[_CORES] * part)
    lost = pool.capacity[_CORES] - cores
    free = {**pool.free, _CORES: pool.free.get(_CORES, 0) - lost}
    return replace(pool, capacity={**pool.capacity, _CORES: cores}, free=free)

"""The hardware that a workload is simulated on, and how its actions ask for it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from arl_core.elasticity import Amdahl
from arl_core.model import ActionClass, Demand, Elastic, Pool, Resident, Resizable, Service, Shape, slots_of
from arl_sim.workload import Need, Work

__all__ = ["CORE_MILLI", "TOGETHER", "Asking", "Classes", "Site", "groups_of_eight", "pools_of"]

CORE_MILLI = 1000
SLOTS = 64
"""Actions that a shared service takes at once."""
TOGETHER = 4.0
"""So many actions in one batch take no longer than one alone; an assumption."""
ENVIRONMENT_MIB = 2048
NODE_MIB = 1 << 20
"""Memory never decides in these simulations; it only has to be there."""


class Asking(StrEnum):
    """How much an action says that it can use."""

    ELASTIC = "elastic"  # from its least to its most
    FIXED = "fixed"  # what its author would ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Nodes of cores, nodes of devices, and calls at once."""

    cpu_nodes: tuple[int, ...]
    gpu_nodes: tuple[int, ...]
    api_calls: int
    dedicated: Mapping[str, int] = field(default_factory=dict)
    """Devices that a service has for itself alone, its weights on them from the start; `gpu_nodes` are the others."""
    shared: frozenset[str] = frozenset()
    """Of these, services that take many actions at once, in batches, instead of one after another."""

    @classmethod
    def of(cls, *, cores: int, gpus: int, api_calls: int, cores_per_node: int = 64) -> "Site":
        """Whole nodes of cores, at least one, and nodes of 8 devices with a smaller rest."""
        nodes = max(1, cores // cores_per_node)
        per_node = min(cores, cores_per_node)
        return cls(cpu_nodes=(per_node,) * nodes, gpu_nodes=groups_of_eight(gpus), api_calls=api_calls)

    @property
    def cores(self) -> int:
        return sum(self.cpu_nodes)

    @property
    def gpus(self) -> int:
        return sum(self.gpu_nodes) + sum(self.dedicated.values())


def groups_of_eight(devices: int) -> tuple[int, ...]:
    """Nodes of 8 devices; what is left over makes smaller nodes of powers of two."""
    rest = [size for size in (4, 2, 1) if devices % 8 & size]
    return (8,) * (devices // 8) + tuple(rest)


def pools_of(site: Site, services: Mapping[str, Service]) -> list[Pool]:
    """A pool for each node, numbered from 1: first those of cores, then of devices, then the API's."""
    pools = [_divisible(cores) for cores in site.cpu_nodes]
    pools += [_devices(count) for count in site.gpu_nodes]
    pools += [
        _pool("gpu", Shape.QUOTA, {slots_of(name): SLOTS}) if name in site.shared else _devices(count, services[name])
        for name, count in site.dedicated.items()
    ]
    pools.append(_pool("api", Shape.QUOTA, {"concurrency": site.api_calls}))
    return [replace(pool, node=node) for node, pool in enumerate(pools, start=1)]


def _divisible(cores: int) -> Pool:
    return _pool("cpu", Shape.DIVISIBLE, {"cpu_milli": cores * CORE_MILLI, "memory_mib": NODE_MIB})


def _devices(count: int, owner: Service | None = None) -> Pool:
    pool = replace(_pool("gpu", Shape.GROUP, {"gpu": count}), free_devices=tuple(range(count)))
    if owner is None:
        return pool
    resident = Resident(owner, pool.free_devices, used_at=0.0)
    return replace(pool, enforces=frozenset({_dedicated(owner.name)}), resident=(resident,))


def _pool(kind: str, shape: Shape, capacity: Mapping[str, int]) -> Pool:
    return Pool(node=0, kind=kind, shape=shape, capacity=capacity, free=dict(capacity))


class Classes:
    """What actions of each kind of work ask for. One class for all work that is alike, or one for each action."""

    def __init__(self, site: Site, services: Mapping[str, Service], asking: Asking, *, apart: bool = False) -> None:
        self._site = site
        self._services = services
        self._asking = asking
        self._apart = apart
        self._known: dict[tuple[str, tuple[float, ...]], ActionClass] = {}
        self._made = 0

    def of(self, work: Work) -> ActionClass:
        name = (work.cls, work.choices)
        if self._apart or name not in self._known:
            self._made += 1
            self._known[name] = self._new(work, self._made)
        return self._known[name]

    def environment(self) -> ActionClass:
        """Of the action that makes an environment."""
        demand = Demand({"memory_mib": ENVIRONMENT_MIB})
        return ActionClass(key=0, kind="environment.create", shape=Shape.DIVISIBLE, demand=demand)

    def _new(self, work: Work, key: int) -> ActionClass:
        match work.need:
            case Need.CPU:
                demand = self._demand(work, "cpu_milli", CORE_MILLI, {"memory_mib": ENVIRONMENT_MIB})
                return ActionClass(key=key, kind="exec", shape=Shape.DIVISIBLE, demand=demand)
            case Need.API:
                return ActionClass(key=key, kind="api", shape=Shape.QUOTA, demand=Demand({"concurrency": 1}))
            case Need.GPU:
                return self._scoring(work, key)

    def _scoring(self, work: Work, key: int) -> ActionClass:
        name = work.service or ""
        if name in self._site.shared:
            return ActionClass(key=key, kind="score", shape=Shape.QUOTA, demand=Demand({slots_of(name): 1}))
        devices = self._site.dedicated.get(name)
        if devices is not None:
            demand, requires = Demand({"gpu": devices}), frozenset({_dedicated(name)})
        else:
            demand, requires = self._demand(work, "gpu", 1, {}), frozenset[str]()
        return ActionClass(
            key=key,
            kind="score",
            shape=Shape.GROUP,
            demand=demand,
            requires=requires,
            service=self._services.get(name),
        )

    def _demand(self, work: Work, resource: str, unit: int, other: Mapping[str, int]) -> Demand:
        if self._asking is Asking.FIXED or len(work.choices) == 1:
            return Demand({resource: round(self._fixed(work) * unit), **other})
        choices = tuple(round(choice * unit) for choice in work.choices)
        resizable = Resizable.ANY if work.need is Need.CPU else Resizable.NONE
        elastic = Elastic(resource, choices, Amdahl(work.parallel_fraction), resizable=resizable)
        return Demand({resource: choices[0], **other}, elastic)

    def _fixed(self, work: Work) -> float:
        if self._asking is not Asking.FIXED:
            return work.choices[0]
        if work.need is not Need.GPU:
            return work.asked
        widest = 1 << int(math.log2(max(self._site.gpu_nodes, default=1)))
        return max(work.choices[0], min(work.asked, widest))


def _dedicated(service: str) -> str:
    return f"dedicated:{service}"

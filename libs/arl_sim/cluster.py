"""The hardware that a workload is simulated on, and how its actions ask for it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from arl_core.domain.elasticity import AmdahlScaling
from arl_core.domain.model import (
    ActionClass,
    ElasticResource,
    ExclusiveService,
    NodeResources,
    ResidentService,
    ResizeSupport,
    ResourceDemand,
    ResourceShape,
    slot_resource,
)
from arl_sim.workload import ActionWork, ResourceKind

__all__ = [
    "CORE_MILLI",
    "FREE_BATCH_SIZE",
    "DemandMode",
    "SimActionClasses",
    "SimCluster",
    "create_nodes",
    "split_into_nodes",
]

CORE_MILLI = 1000
SERVICE_SLOTS = 64
"""Actions that a shared service takes at once."""
FREE_BATCH_SIZE = 4.0
"""So many actions in one batch take no longer than one alone; an assumption."""
ENVIRONMENT_MIB = 2048
NODE_MIB = 1 << 20
"""Memory never decides in these simulations; it only has to be there."""


class DemandMode(StrEnum):
    """How much an action says that it can use."""

    ELASTIC = "elastic"  # from its least to its most
    FIXED = "fixed"  # what its author would ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCluster:
    """Nodes of cores, nodes of devices, and calls at once."""

    cpu_nodes: tuple[int, ...]
    gpu_nodes: tuple[int, ...]
    api_calls: int
    dedicated: Mapping[str, int] = field(default_factory=dict)
    """Devices that a service has for itself alone, its weights on them from the start; `gpu_nodes` are the others."""
    shared: frozenset[str] = frozenset()
    """Of these, services that take many actions at once, in batches, instead of one after another."""

    @classmethod
    def from_totals(cls, *, cores: int, gpus: int, api_calls: int, cores_per_node: int = 64) -> "SimCluster":
        """Whole nodes of cores, at least one, and nodes of 8 devices with a smaller rest."""
        nodes = max(1, cores // cores_per_node)
        per_node = min(cores, cores_per_node)
        return cls(cpu_nodes=(per_node,) * nodes, gpu_nodes=split_into_nodes(gpus), api_calls=api_calls)

    @property
    def cores(self) -> int:
        return sum(self.cpu_nodes)

    @property
    def gpus(self) -> int:
        return sum(self.gpu_nodes) + sum(self.dedicated.values())


def split_into_nodes(devices: int) -> tuple[int, ...]:
    """Nodes of 8 devices; what is left over makes smaller nodes of powers of two."""
    rest = [size for size in (4, 2, 1) if devices % 8 & size]
    return (8,) * (devices // 8) + tuple(rest)


def create_nodes(cluster: SimCluster, services: Mapping[str, ExclusiveService]) -> list[NodeResources]:
    """A pool for each node, numbered from 1: first those of cores, then of devices, then the API's."""
    pools = [_cpu_node(cores) for cores in cluster.cpu_nodes]
    pools += [_gpu_node(count) for count in cluster.gpu_nodes]
    pools += [
        _make_node("gpu", ResourceShape.QUOTA, {slot_resource(name): SERVICE_SLOTS})
        if name in cluster.shared
        else _gpu_node(count, services[name])
        for name, count in cluster.dedicated.items()
    ]
    pools.append(_make_node("api", ResourceShape.QUOTA, {"concurrency": cluster.api_calls}))
    return [replace(pool, node=node) for node, pool in enumerate(pools, start=1)]


def _cpu_node(cores: int) -> NodeResources:
    return _make_node("cpu", ResourceShape.DIVISIBLE, {"cpu_milli": cores * CORE_MILLI, "memory_mib": NODE_MIB})


def _gpu_node(count: int, owner: ExclusiveService | None = None) -> NodeResources:
    pool = replace(_make_node("gpu", ResourceShape.GROUP, {"gpu": count}), available_devices=tuple(range(count)))
    if owner is None:
        return pool
    resident = ResidentService(owner, pool.available_devices, used_at=0.0)
    return replace(pool, enforced=frozenset({_dedicated_label(owner.name)}), resident_services=(resident,))


def _make_node(kind: str, shape: ResourceShape, capacity: Mapping[str, int]) -> NodeResources:
    return NodeResources(node=0, kind=kind, shape=shape, capacity=capacity, available=dict(capacity))


class SimActionClasses:
    """What actions of each kind of work ask for. One class for all work that is alike, or one for each action."""

    def __init__(
        self,
        cluster: SimCluster,
        services: Mapping[str, ExclusiveService],
        demand_mode: DemandMode,
        *,
        is_separate: bool = False,
    ) -> None:
        self._cluster = cluster
        self._services = services
        self._demand_mode = demand_mode
        self._is_separate = is_separate
        self._cache: dict[tuple[str, tuple[float, ...]], ActionClass] = {}
        self._count = 0

    def class_for(self, work: ActionWork) -> ActionClass:
        name = (work.cls, work.choices)
        if self._is_separate or name not in self._cache:
            self._count += 1
            self._cache[name] = self._make_class(work, self._count)
        return self._cache[name]

    def environment_class(self) -> ActionClass:
        """Of the action that makes an environment."""
        demand = ResourceDemand({"memory_mib": ENVIRONMENT_MIB})
        return ActionClass(key=0, kind="environment.create", shape=ResourceShape.DIVISIBLE, demand=demand)

    def _make_class(self, work: ActionWork, key: int) -> ActionClass:
        match work.resource_kind:
            case ResourceKind.CPU:
                demand = self._demand(work, "cpu_milli", CORE_MILLI, {"memory_mib": ENVIRONMENT_MIB})
                return ActionClass(key=key, kind="exec", shape=ResourceShape.DIVISIBLE, demand=demand)
            case ResourceKind.API:
                return ActionClass(
                    key=key, kind="api", shape=ResourceShape.QUOTA, demand=ResourceDemand({"concurrency": 1})
                )
            case ResourceKind.GPU:
                return self._scoring_class(work, key)

    def _scoring_class(self, work: ActionWork, key: int) -> ActionClass:
        name = work.service or ""
        if name in self._cluster.shared:
            return ActionClass(
                key=key, kind="score", shape=ResourceShape.QUOTA, demand=ResourceDemand({slot_resource(name): 1})
            )
        devices = self._cluster.dedicated.get(name)
        if devices is not None:
            demand, requires = ResourceDemand({"gpu": devices}), frozenset({_dedicated_label(name)})
        else:
            demand, requires = self._demand(work, "gpu", 1, {}), frozenset[str]()
        return ActionClass(
            key=key,
            kind="score",
            shape=ResourceShape.GROUP,
            demand=demand,
            requires=requires,
            service=self._services.get(name),
        )

    def _demand(self, work: ActionWork, resource: str, unit: int, other: Mapping[str, int]) -> ResourceDemand:
        if self._demand_mode is DemandMode.FIXED or len(work.choices) == 1:
            return ResourceDemand({resource: round(self._fixed_units(work) * unit), **other})
        choices = tuple(round(choice * unit) for choice in work.choices)
        resizable = ResizeSupport.ANY if work.resource_kind is ResourceKind.CPU else ResizeSupport.NONE
        elastic = ElasticResource(resource, choices, AmdahlScaling(work.parallel_fraction), resizable=resizable)
        return ResourceDemand({resource: choices[0], **other}, elastic)

    def _fixed_units(self, work: ActionWork) -> float:
        if self._demand_mode is not DemandMode.FIXED:
            return work.choices[0]
        if work.resource_kind is not ResourceKind.GPU:
            return work.fixed_units
        widest = 1 << int(math.log2(max(self._cluster.gpu_nodes, default=1)))
        return max(work.choices[0], min(work.fixed_units, widest))


def _dedicated_label(service: str) -> str:
    return f"dedicated:{service}"

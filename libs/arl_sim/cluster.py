"""Simulated hardware, and the demands of simulated actions."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from arl_core.domain.elasticity import AmdahlScaling, NoScaling
from arl_core.domain.model import (
    ActionClass,
    CpuSharing,
    ElasticResource,
    ExclusiveService,
    NodeResources,
    ResidentService,
    ResizeSupport,
    ResourceDemand,
    ResourceShape,
    slot_resource,
)
from arl_core.durations.shared_demand import SHARED_GUARANTEE_MILLI, SHARED_SLOT_MILLI
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
"""Actions that a shared service runs concurrently."""
FREE_BATCH_SIZE = 4.0
"""Batch size up to which a batch takes no longer than one action; an assumption."""
ENVIRONMENT_MIB = 2048
NODE_MIB = 1 << 20
"""Memory of a node in MiB if none is given; large enough never to limit a simulation."""


class DemandMode(StrEnum):
    """The demand that an action declares."""

    ELASTIC = "elastic"  # from its minimum to its maximum
    UNDECLARED = "undeclared"  # the same range without the effect of more cores
    FIXED = "fixed"  # the amount that its author would request
    SHARED = "shared"  # no amount; the kernel divides the cores of the node


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCluster:
    """A cluster of CPU nodes, GPU nodes and concurrent API calls."""

    cpu_nodes: tuple[int, ...]
    gpu_nodes: tuple[int, ...]
    api_calls: int
    dedicated: Mapping[str, int] = field(default_factory=dict)
    """Devices dedicated to a service, with resident weights from the start; `gpu_nodes` are the others."""
    shared: frozenset[str] = frozenset()
    """Dedicated services that run many actions in batches instead of one after another."""
    node_memory_mib: int = NODE_MIB
    """Memory of each CPU node."""

    @classmethod
    def from_totals(cls, *, cores: int, gpus: int, api_calls: int, cores_per_node: int = 64) -> "SimCluster":
        """Return a cluster of whole CPU nodes, at least one, and GPU nodes of 8 devices plus smaller ones."""
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
    """Return nodes of 8 devices; the remainder forms smaller nodes of powers of two."""
    rest = [size for size in (4, 2, 1) if devices % 8 & size]
    return (8,) * (devices // 8) + tuple(rest)


def create_nodes(
    cluster: SimCluster, services: Mapping[str, ExclusiveService], slots: Iterable[str] = ()
) -> list[NodeResources]:
    """Return the nodes, numbered from 1: CPU nodes, then GPU nodes, then the API node, which has all `slots`."""
    pools = [_cpu_node(cores, cluster.node_memory_mib) for cores in cluster.cpu_nodes]
    pools += [_gpu_node(count) for count in cluster.gpu_nodes]
    pools += [
        _make_node("gpu", ResourceShape.QUOTA, {slot_resource(name): SERVICE_SLOTS})
        if name in cluster.shared
        else _gpu_node(count, services[name])
        for name, count in cluster.dedicated.items()
    ]
    calls = dict.fromkeys(("concurrency", *sorted(slots)), cluster.api_calls)
    pools.append(_make_node("api", ResourceShape.QUOTA, calls))
    return [replace(pool, node=node) for node, pool in enumerate(pools, start=1)]


def _cpu_node(cores: int, memory_mib: int) -> NodeResources:
    return _make_node("cpu", ResourceShape.DIVISIBLE, {"cpu_milli": cores * CORE_MILLI, "memory_mib": memory_mib})


def _gpu_node(count: int, owner: ExclusiveService | None = None) -> NodeResources:
    pool = replace(_make_node("gpu", ResourceShape.GROUP, {"gpu": count}), available_devices=tuple(range(count)))
    if owner is None:
        return pool
    resident = ResidentService(owner, pool.available_devices, used_at=0.0)
    return replace(pool, enforced=frozenset({_dedicated_label(owner.name)}), resident_services=(resident,))


def _make_node(kind: str, shape: ResourceShape, capacity: Mapping[str, int]) -> NodeResources:
    return NodeResources(node=0, kind=kind, shape=shape, capacity=capacity, available=dict(capacity))


class SimActionClasses:
    """The action classes of simulated work: one class for equivalent work, or one per action."""

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
        self._cache: dict[tuple[object, ...], ActionClass] = {}
        self._count = 0

    def class_for(self, work: ActionWork) -> ActionClass:
        name = (work.cls, work.choices, work.memory_mib, work.resizable, work.slots)
        if self._is_separate or name not in self._cache:
            self._count += 1
            self._cache[name] = self._make_class(work, self._count)
        return self._cache[name]

    def environment_class(self, memory_mib: int | None = None) -> ActionClass:
        """Return the class of the action that creates an environment with this memory."""
        memory_mib = memory_mib or ENVIRONMENT_MIB
        demand = ResourceDemand({"memory_mib": memory_mib})
        return ActionClass(key=-memory_mib, kind="environment.create", shape=ResourceShape.DIVISIBLE, demand=demand)

    def _make_class(self, work: ActionWork, key: int) -> ActionClass:
        match work.resource_kind:
            case ResourceKind.CPU if self._demand_mode is DemandMode.SHARED:
                memory = {"memory_mib": work.memory_mib or ENVIRONMENT_MIB}
                return ActionClass(
                    key=key,
                    kind="exec",
                    shape=ResourceShape.DIVISIBLE,
                    demand=ResourceDemand({"cpu_milli": SHARED_SLOT_MILLI, **memory}),
                    sharing=CpuSharing(guarantee_milli=SHARED_GUARANTEE_MILLI),
                )
            case ResourceKind.CPU:
                demand = self._demand(work, "cpu_milli", CORE_MILLI, {"memory_mib": work.memory_mib or ENVIRONMENT_MIB})
                return ActionClass(key=key, kind="exec", shape=ResourceShape.DIVISIBLE, demand=demand)
            case ResourceKind.API:
                calls = ResourceDemand(dict.fromkeys(("concurrency", *work.slots), 1))
                return ActionClass(key=key, kind="api", shape=ResourceShape.QUOTA, demand=calls)
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
        resizable = work.resizable if work.resource_kind is ResourceKind.CPU else ResizeSupport.NONE
        is_declared = self._demand_mode is not DemandMode.UNDECLARED or work.resource_kind is not ResourceKind.CPU
        scaling = AmdahlScaling(work.parallel_fraction, unit) if is_declared else NoScaling()
        elastic = ElasticResource(resource, choices, scaling, resizable=resizable)
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

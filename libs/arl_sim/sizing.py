"""Simulation of one workload on given hardware: policy and number of nodes."""

import math
from dataclasses import dataclass, replace

from arl_core.policies.policy import SchedulingPolicy
from arl_core.policies.registry import POD_POLICIES, PolicyName, create_policy
from arl_sim.cluster import CORE_MILLI, DemandMode, SimActionClasses, SimCluster, split_into_nodes
from arl_sim.duration_models import LearnedDurations
from arl_sim.engine import SimOverheads, WorkloadSimulation
from arl_sim.results import SimResult
from arl_sim.workload import ResourceKind, SimWorkload
from arl_sim.workloads.published import PublishedWorkload, published_workload
from arl_sim.workloads.synthetic_step import synthetic_step

__all__ = ["DoesNotFitError", "SimHardware", "demand_mode_for", "generate_workload", "simulate"]

DEFAULT_OVERHEADS = SimOverheads()


class DoesNotFitError(ValueError):
    """An action demands more than any node has, so it would wait forever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimHardware:
    nodes: int
    cores: int
    """Cores of each node."""
    gpus: int
    calls: int
    """Concurrent API calls."""
    pod_cores: int
    memory_mib: int | None = None
    """Memory of each CPU node; None if it does not limit."""
    shared: bool = False
    """True if reward services batch many actions on dedicated devices; otherwise an action takes whole devices."""


def generate_workload(name: str, seed: int) -> SimWorkload:
    """Return the workload `prototype` or a `PublishedWorkload`. Raises ValueError for any other name."""
    return synthetic_step(seed) if name == "prototype" else published_workload(PublishedWorkload(name), seed)


def simulate(
    workload: SimWorkload, name: str, hardware: SimHardware, overheads: SimOverheads = DEFAULT_OVERHEADS
) -> SimResult:
    """Simulate the workload under a policy. Raises DoesNotFitError if an action fits on no node."""
    site = _create_cluster(workload, PolicyName(name), hardware)
    policy: SchedulingPolicy = create_policy(
        PolicyName(name), pod_cpu_milli=hardware.pod_cores * CORE_MILLI, limit=1_000_000
    )
    asking = demand_mode_for(name)
    known = LearnedDurations()
    classes = SimActionClasses(site, workload.services, asking)
    return WorkloadSimulation(workload, site, policy, classes, known, overheads).run()


def demand_mode_for(name: str) -> DemandMode:
    """Return the demand mode of a policy; some policies cannot use ranges."""
    return DemandMode.FIXED if name in POD_POLICIES or name == PolicyName.FCFS else DemandMode.ELASTIC


def _create_cluster(workload: SimWorkload, name: PolicyName, hardware: SimHardware) -> SimCluster:
    cpu_nodes = (hardware.cores,) * hardware.nodes
    site = SimCluster(cpu_nodes=cpu_nodes, gpu_nodes=split_into_nodes(hardware.gpus), api_calls=hardware.calls)
    works = [turn.work for rollout in workload.trajectories for turn in rollout.actions]
    widest = max((work.choices[0] for work in works if work.resource_kind is ResourceKind.CPU), default=0)
    if name in POD_POLICIES:
        widest = max(widest, hardware.pod_cores) if widest else 0
    if hardware.memory_mib is not None:
        largest_mib = max((work.memory_mib or 0 for work in works), default=0)
        if largest_mib > hardware.memory_mib:
            raise DoesNotFitError(f"{largest_mib} MiB are asked for at once, and a node has {hardware.memory_mib}")
        site = replace(site, node_memory_mib=hardware.memory_mib)
    if widest > hardware.cores:
        raise DoesNotFitError(f"{widest:g} cores are asked for at once, and a node has {hardware.cores}")
    degrees = {work.service or "": work.choices[0] for work in works if work.resource_kind is ResourceKind.GPU}
    largest = max(site.gpu_nodes, default=0)
    if max(degrees.values(), default=0) > largest:
        raise DoesNotFitError(f"{max(degrees.values()):g} devices are asked for at once, and a node has {largest}")
    if not degrees or (name not in POD_POLICIES and not hardware.shared):
        return site
    site = _dedicate_devices(site, degrees, hardware.gpus)
    return replace(site, shared=frozenset(degrees)) if hardware.shared else site


def _dedicate_devices(cluster: SimCluster, degrees: dict[str, float], gpus: int) -> SimCluster:
    """Divide the devices between the services; each gets at least what it needs."""
    whole = 1 << int(math.log2(max(1, gpus // len(degrees))))
    dedicated = {service: max(int(least), whole) for service, least in degrees.items()}
    return replace(cluster, gpu_nodes=(), dedicated=dedicated)

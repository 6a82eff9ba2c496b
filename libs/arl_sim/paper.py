"""The paper's comparison: one workload on ever less hardware, static provisioning against the policies.

Level 1 has 1,024 cores on 16 nodes and 48 devices on 6 nodes. Static provisioning divides the devices between the
services permanently. Each service gets at least what its model needs, so at the lower levels static provisioning has
more devices than the other policies.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.reference import ReferencePolicy
from arl_core.policies.spar import SparPolicy
from arl_core.policies.static_pods import StaticPods
from arl_sim.cluster import CORE_MILLI, DemandMode, SimActionClasses, SimCluster
from arl_sim.duration_models import LearnedDurations, SimDurationModel
from arl_sim.engine import WorkloadSimulation
from arl_sim.results import SimResult, SimStatistics, compute_statistics
from arl_sim.step_awareness import SimStepAwareness
from arl_sim.workload import SimWorkload
from arl_sim.workloads.synthetic_step import SERVICES, synthetic_step

__all__ = [
    "CORES",
    "GPUS",
    "LEVELS",
    "STEPS",
    "VALIDATION_SEEDS",
    "ComparedPolicy",
    "PaperHardware",
    "average_statistics",
    "create_cluster",
    "create_compared_policy",
    "run_steps",
]

CORES = 1024
GPUS = 48
API_CALLS = 48
POD_CORES = 4
LEVELS = (1.0, 0.5, 0.25, 0.125)
STEPS = 2
"""Consecutive training steps per seed; the second step uses what the first one learnt."""
VALIDATION_SEEDS = (10, 11, 12)
"""Seeds for validation; the constants were chosen with seeds 0, 1 and 2."""


class ComparedPolicy(StrEnum):
    STATIC = "static"  # one pod of 4 cores per trajectory
    SHRUNK = "shrunk"  # pods small enough that all trajectories fit
    OVERCOMMITTED = "overcommitted"  # pods of at most 4 cores, all admitted; the kernel shares the cores
    UNLIMITED = "unlimited"  # pods with CPU requests and no CPU limit, all admitted; the kernel shares the cores
    FCFS = "fcfs"  # actions at their authors' demand, first come, first served
    REFERENCE = "reference"  # our reconstruction of the paper's policy
    SPAR = "spar"
    SPAR_M = "spar_m"  # also resizes running actions
    SPAR_M_UNDECLARED = "spar_m_undeclared"  # without the declared effect of more cores
    SPAR_M_SHARED = "spar_m_shared"  # also shares resident services, on as many devices as static provisioning
    TANGRAM = "tangram"  # shares cores by weight, and resident services
    TANGRAM_HINTS = "tangram_hints"  # knows the number of turns of each trajectory


STATIC_POLICIES = frozenset(
    {ComparedPolicy.STATIC, ComparedPolicy.SHRUNK, ComparedPolicy.OVERCOMMITTED, ComparedPolicy.UNLIMITED}
)
WEIGHTED_POLICIES = frozenset({ComparedPolicy.TANGRAM, ComparedPolicy.TANGRAM_HINTS})
"""Policies under which CPU actions share cores by weight."""
SHARED_SERVICES_POLICIES = frozenset({ComparedPolicy.SPAR_M_SHARED, ComparedPolicy.UNLIMITED}) | WEIGHTED_POLICIES
"""Policies under which a service runs many actions in batches."""


@dataclass(frozen=True, slots=True)
class PaperHardware:
    """The fractions of the hardware at level 1."""

    cpu: float
    gpu: float

    @property
    def cores(self) -> int:
        return max(16, int(CORES * self.cpu))

    @property
    def gpus(self) -> int:
        return max(8, int(GPUS * self.gpu))


def run_steps(
    contender: ComparedPolicy,
    hardware: PaperHardware,
    *,
    seed: int,
    steps: int = STEPS,
    workload: Callable[[int], SimWorkload] = synthetic_step,
    durations: Callable[[], SimDurationModel] = LearnedDurations,
) -> list[SimResult]:
    """Simulate `steps` training steps; `workload` creates one from its own seed."""
    known = durations()
    site = create_cluster(contender, hardware)
    asking = DemandMode.ELASTIC if contender not in {*STATIC_POLICIES, ComparedPolicy.FCFS} else DemandMode.FIXED
    asking = DemandMode.SHARED if contender in WEIGHTED_POLICIES else asking
    asking = DemandMode.UNDECLARED if contender is ComparedPolicy.SPAR_M_UNDECLARED else asking
    classes = SimActionClasses(
        site, {service.name: service for service, _ in SERVICES}, asking, is_separate=known.has_separate_classes
    )
    policy = create_compared_policy(contender, hardware)
    workloads = [workload(100 * seed + step) for step in range(steps)]
    cores = site.cores if contender is ComparedPolicy.TANGRAM_HINTS else 0.0
    return [
        WorkloadSimulation(each, site, policy, classes, known, steps=SimStepAwareness(cores)).run()
        for each in workloads
    ]


def create_compared_policy(contender: ComparedPolicy, hardware: PaperHardware) -> SchedulingPolicy:
    match contender:
        case ComparedPolicy.STATIC:
            return StaticPods(POD_CORES * CORE_MILLI)
        case ComparedPolicy.SHRUNK:
            return StaticPods(max(1, int(POD_CORES * hardware.cpu)) * CORE_MILLI)
        case ComparedPolicy.OVERCOMMITTED:
            return StaticPods(POD_CORES * CORE_MILLI, is_overcommitted=True)
        case ComparedPolicy.UNLIMITED:
            return StaticPods(POD_CORES * CORE_MILLI, is_unlimited=True)
        case ComparedPolicy.FCFS:
            return FirstComeFirstServed()
        case ComparedPolicy.REFERENCE:
            return ReferencePolicy()
        case ComparedPolicy.SPAR:
            return SparPolicy()
    return SparPolicy(is_resizing=True)


def create_cluster(contender: ComparedPolicy, hardware: PaperHardware) -> SimCluster:
    site = SimCluster.from_totals(cores=hardware.cores, gpus=hardware.gpus, api_calls=API_CALLS)
    if contender not in {*STATIC_POLICIES, *SHARED_SERVICES_POLICIES}:
        return site
    share = max(1, hardware.gpus // len(SERVICES))
    whole = 1 << (share.bit_length() - 1)
    dedicated = {service.name: max(degrees[0], whole) for service, degrees in SERVICES}
    shared = frozenset(dedicated) if contender in SHARED_SERVICES_POLICIES else frozenset[str]()
    return replace(site, gpu_nodes=(), dedicated=dedicated, shared=shared)


def average_statistics(results: Iterable[SimResult]) -> SimStatistics:
    """Return the mean of each figure over the steps."""
    found = [compute_statistics(result) for result in results]
    names = [each.name for each in fields(SimStatistics)]
    return SimStatistics(**{name: sum(getattr(one, name) for one in found) / len(found) for name in names})

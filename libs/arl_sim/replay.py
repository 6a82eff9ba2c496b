"""Replay of recorded trajectories as one training step on given hardware, with our policy and its rivals."""

from enum import StrEnum

from arl_core.policies.policy import SchedulingPolicy
from arl_core.policies.spar import SparPolicy
from arl_core.policies.static_pods import StaticPods
from arl_sim.cluster import CORE_MILLI, DemandMode, SimActionClasses, SimCluster
from arl_sim.duration_models import LearnedDurations
from arl_sim.engine import WorkloadSimulation
from arl_sim.results import SimResult
from arl_sim.step_awareness import SimStepAwareness
from arl_sim.workload import SimWorkload

__all__ = ["ReplayPolicy", "create_policy", "replay"]


class ReplayPolicy(StrEnum):
    """The policies of a replay."""

    STATIC = "static"  # a pod of one core per trajectory
    UNLIMITED = "unlimited"  # pods with CPU requests and no CPU limit; the kernel shares the cores
    TANGRAM = "tangram"  # shared cores, without hints
    TANGRAM_HINTS = "tangram_hints"  # shared cores, and each trajectory says how many turns it has


def replay(workload: SimWorkload, policy: ReplayPolicy, *, nodes: int, cores: int) -> SimResult:
    """Simulate the workload on `nodes` nodes with `cores` cores each."""
    cluster = SimCluster(cpu_nodes=(cores,) * nodes, gpu_nodes=(), api_calls=max(1, len(workload.trajectories)))
    is_pod = policy in (ReplayPolicy.STATIC, ReplayPolicy.UNLIMITED)
    classes = SimActionClasses(cluster, {}, DemandMode.FIXED if is_pod else DemandMode.SHARED)
    hinted_cores = float(cluster.cores) if policy is ReplayPolicy.TANGRAM_HINTS else 0.0
    return WorkloadSimulation(
        workload, cluster, create_policy(policy), classes, LearnedDurations(), steps=SimStepAwareness(hinted_cores)
    ).run()


def create_policy(policy: ReplayPolicy) -> SchedulingPolicy:
    """Create the scheduling policy of a replay."""
    if policy is ReplayPolicy.STATIC:
        return StaticPods(CORE_MILLI)
    if policy is ReplayPolicy.UNLIMITED:
        return StaticPods(CORE_MILLI, is_unlimited=True)
    return SparPolicy(is_resizing=True)

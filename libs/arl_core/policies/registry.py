"""The policies that a scheduler can be told to follow, by name."""

from enum import StrEnum

from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.reference import ReferencePolicy
from arl_core.policies.spar import SparPolicy
from arl_core.policies.static_pods import StaticPods

__all__ = ["PolicyName", "create_policy"]


class PolicyName(StrEnum):
    SPAR = "spar"  # shortest priced area first, fair between tasks
    SPAR_M = "spar_m"  # the same, and running actions that allow it are resized
    REFERENCE = "reference"  # first come, first served with dynamic programming and eviction: our reconstruction
    FCFS = "fcfs"  # actions, in order of arrival
    STATIC = "static"  # a pod for each trajectory; shrunk ones are `static` with fewer cores
    OVERCOMMITTED = "overcommitted"  # pods that are all admitted; the kernel shares the cores between them


def create_policy(name: PolicyName, *, pod_cpu_milli: int, limit: int) -> SchedulingPolicy:
    """`limit` bounds the grants of one round, so that a burst can't keep the leader from anything else."""
    match name:
        case PolicyName.SPAR:
            return SparPolicy(limit=limit)
        case PolicyName.SPAR_M:
            return SparPolicy(is_resizing=True, limit=limit)
        case PolicyName.REFERENCE:
            return ReferencePolicy()
        case PolicyName.FCFS:
            return FirstComeFirstServed()
        case PolicyName.STATIC:
            return StaticPods(pod_cpu_milli)
        case PolicyName.OVERCOMMITTED:
            return StaticPods(pod_cpu_milli, is_overcommitted=True)

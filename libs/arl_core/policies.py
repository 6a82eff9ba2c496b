"""The policies that a scheduler can be told to follow, by name."""

from enum import StrEnum

from arl_core.plan import FirstComeFirstServed, Policy
from arl_core.pods import StaticPods
from arl_core.reference import Reference
from arl_core.spar import Spar

__all__ = ["PolicyName", "policy_of"]


class PolicyName(StrEnum):
    SPAR = "spar"  # shortest priced area first, fair between tasks
    SPAR_M = "spar_m"  # the same, and running actions that allow it are resized
    REFERENCE = "reference"  # first come, first served with dynamic programming and eviction: our reconstruction
    FCFS = "fcfs"  # actions, in order of arrival
    STATIC = "static"  # a pod for each trajectory; shrunk ones are `static` with fewer cores
    OVERCOMMITTED = "overcommitted"  # pods that are all admitted; the kernel shares the cores between them


def policy_of(name: PolicyName, *, pod_cpu_milli: int, limit: int) -> Policy:
    """`limit` bounds the grants of one round, so that a burst can't keep the leader from anything else."""
    match name:
        case PolicyName.SPAR:
            return Spar(limit=limit)
        case PolicyName.SPAR_M:
            return Spar(resizing=True, limit=limit)
        case PolicyName.REFERENCE:
            return Reference()
        case PolicyName.FCFS:
            return FirstComeFirstServed()
        case PolicyName.STATIC:
            return StaticPods(pod_cpu_milli)
        case PolicyName.OVERCOMMITTED:
            return StaticPods(pod_cpu_milli, overcommitted=True)

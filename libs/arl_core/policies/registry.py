"""Scheduling policies by name."""

from enum import StrEnum

from arl_core.policies.policy import FirstComeFirstServed, SchedulingPolicy
from arl_core.policies.reference import ReferencePolicy
from arl_core.policies.spar import SparPolicy
from arl_core.policies.static_pods import StaticPods

__all__ = ["CORE_SHARING_POLICIES", "POD_POLICIES", "PolicyName", "create_policy"]


class PolicyName(StrEnum):
    """The names of the scheduling policies."""

    SPAR = "spar"  # shortest priced area first, fair between tasks
    SPAR_M = "spar_m"  # like `spar`; running actions that allow it are resized
    REFERENCE = "reference"  # first come, first served with dynamic programming and eviction: our reconstruction
    FCFS = "fcfs"  # first come, first served by action
    STATIC = "static"  # one pod per trajectory; small pods are `static` with fewer cores
    OVERCOMMITTED = "overcommitted"  # pods with a CPU limit, all admitted; the kernel shares the cores between them
    UNLIMITED = "unlimited"  # pods with CPU requests and no CPU limit, all admitted; the kernel shares the cores


CORE_SHARING_POLICIES = frozenset({PolicyName.OVERCOMMITTED, PolicyName.UNLIMITED})
"""Policies under which cores are not counted, and every action may run on all cores of its node."""
POD_POLICIES = CORE_SHARING_POLICIES | {PolicyName.STATIC}
"""Policies with one pod per trajectory."""


def create_policy(name: PolicyName, *, pod_cpu_milli: int, limit: int) -> SchedulingPolicy:
    """Create a policy; `limit` bounds the grants of one round, so that a burst cannot block the leader's loop."""
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
        case PolicyName.UNLIMITED:
            return StaticPods(pod_cpu_milli, is_unlimited=True)

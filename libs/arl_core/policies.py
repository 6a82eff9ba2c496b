"""The policies that a scheduler can be told to follow, by name."""

from enum import StrEnum

from arl_core.plan import FirstComeFirstServed, Policy
from arl_core.pods import StaticPods

__all__ = ["PolicyName", "policy_of"]


class PolicyName(StrEnum):
    FCFS = "fcfs"  # actions, in order of arrival
    STATIC = "static"  # a pod for each trajectory; shrunk ones are `static` with fewer cores
    OVERCOMMITTED = "overcommitted"  # pods that are all admitted; the kernel shares the cores between them


def policy_of(name: PolicyName, *, pod_cpu_milli: int) -> Policy:
    match name:
        case PolicyName.FCFS:
            return FirstComeFirstServed()
        case PolicyName.STATIC:
            return StaticPods(pod_cpu_milli)
        case PolicyName.OVERCOMMITTED:
            return StaticPods(pod_cpu_milli, overcommitted=True)

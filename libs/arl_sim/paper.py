"""The comparison of the paper: one workload, ever less hardware, static provisioning and policies beside each other.

At level 1 it has 1,024 cores on 16 nodes and 48 devices on 6. Static provisioning divides the devices between the
services once and for all; each gets at least what its model needs, so at the lower levels it has more of them than
the others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from arl_core.plan import FirstComeFirstServed, Policy
from arl_core.pods import StaticPods
from arl_core.reference import Reference
from arl_core.spar import Spar
from arl_sim.engine import Simulation
from arl_sim.expectations import Expectations, Learnt
from arl_sim.prototype import SERVICES, prototype
from arl_sim.results import Result, Statistics, statistics_of
from arl_sim.site import CORE_MILLI, Asking, Classes, Site
from arl_sim.workload import Workload

__all__ = [
    "CORES",
    "GPUS",
    "HELD_OUT",
    "LEVELS",
    "STEPS",
    "Contender",
    "Hardware",
    "average",
    "policy_of",
    "run_steps",
    "site_of",
]

CORES = 1024
GPUS = 48
API_CALLS = 48
POD_CORES = 4
LEVELS = (1.0, 0.5, 0.25, 0.125)
STEPS = 2
"""Of each seed, one after another: what was learnt in the first is known in the second."""
HELD_OUT = (10, 11, 12)
"""Seeds that no constant was chosen by: that was done with 0, 1 and 2."""


class Contender(StrEnum):
    STATIC = "static"  # a pod of 4 cores for each trajectory
    SHRUNK = "shrunk"  # pods so small that all trajectories fit
    OVERCOMMITTED = "overcommitted"  # pods of 4 cores, all admitted; the kernel shares
    FCFS = "fcfs"  # actions with what their authors ask for, in order of arrival
    REFERENCE = "reference"  # our reconstruction of the paper's policy
    SPAR = "spar"
    SPAR_M = "spar_m"  # and running actions are resized
    SPAR_M_SHARED = "spar_m_shared"  # and scores share resident services, on as many devices as static provisioning


STATIC = frozenset({Contender.STATIC, Contender.SHRUNK, Contender.OVERCOMMITTED})


@dataclass(frozen=True, slots=True)
class Hardware:
    """Fractions of what there is at level 1."""

    cpu: float
    gpu: float

    @property
    def cores(self) -> int:
        return max(16, int(CORES * self.cpu))

    @property
    def gpus(self) -> int:
        return max(8, int(GPUS * self.gpu))


def run_steps(
    contender: Contender,
    hardware: Hardware,
    *,
    seed: int,
    steps: int = STEPS,
    workload: Callable[[int], Workload] = prototype,
    expectations: Callable[[], Expectations] = Learnt,
) -> list[Result]:
    """So many steps of training; `workload` makes one from its own seed."""
    known = expectations()
    site = site_of(contender, hardware)
    asking = Asking.ELASTIC if contender not in {*STATIC, Contender.FCFS} else Asking.FIXED
    classes = Classes(site, {service.name: service for service, _ in SERVICES}, asking, apart=known.apart)
    policy = policy_of(contender, hardware)
    workloads = [workload(100 * seed + step) for step in range(steps)]
    return [Simulation(each, site, policy, classes, known).run() for each in workloads]


def policy_of(contender: Contender, hardware: Hardware) -> Policy:
    match contender:
        case Contender.STATIC:
            return StaticPods(POD_CORES * CORE_MILLI)
        case Contender.SHRUNK:
            return StaticPods(max(1, int(POD_CORES * hardware.cpu)) * CORE_MILLI)
        case Contender.OVERCOMMITTED:
            return StaticPods(POD_CORES * CORE_MILLI, overcommitted=True)
        case Contender.FCFS:
            return FirstComeFirstServed()
        case Contender.REFERENCE:
            return Reference()
        case Contender.SPAR:
            return Spar()
        case Contender.SPAR_M | Contender.SPAR_M_SHARED:
            return Spar(resizing=True)


def site_of(contender: Contender, hardware: Hardware) -> Site:
    site = Site.of(cores=hardware.cores, gpus=hardware.gpus, api_calls=API_CALLS)
    if contender not in {*STATIC, Contender.SPAR_M_SHARED}:
        return site
    share = max(1, hardware.gpus // len(SERVICES))
    whole = 1 << (share.bit_length() - 1)
    dedicated = {service.name: max(degrees[0], whole) for service, degrees in SERVICES}
    shared = frozenset(dedicated) if contender is Contender.SPAR_M_SHARED else frozenset[str]()
    return replace(site, gpu_nodes=(), dedicated=dedicated, shared=shared)


def average(results: Iterable[Result]) -> Statistics:
    """The mean of each figure over some steps."""
    found = [statistics_of(result) for result in results]
    names = [each.name for each in fields(Statistics)]
    return Statistics(**{name: sum(getattr(one, name) for one in found) / len(found) for name in names})

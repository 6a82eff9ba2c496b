"""One workload on given hardware: which policy, how many nodes."""

import math
from dataclasses import dataclass, replace

from arl_core.plan import Policy
from arl_core.policies import PolicyName, policy_of
from arl_sim.engine import Overheads, Simulation
from arl_sim.expectations import Learnt
from arl_sim.prototype import prototype
from arl_sim.published import Published, published
from arl_sim.results import Result
from arl_sim.site import CORE_MILLI, Asking, Classes, Site, groups_of_eight
from arl_sim.workload import Need, Workload

__all__ = ["PODS", "DoesNotFit", "Hardware", "asking_of", "generate", "simulate"]

USUAL = Overheads()
PODS = frozenset({PolicyName.STATIC, PolicyName.OVERCOMMITTED})


class DoesNotFit(ValueError):
    """Some action asks for more than any node has, so it would wait for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    nodes: int
    cores: int
    """Of each node."""
    gpus: int
    calls: int
    """At once."""
    pod_cores: int
    shared: bool = False
    """Reward services take many actions at once and keep their devices; else an action takes whole devices."""


def generate(name: str, seed: int) -> Workload:
    """`prototype`, or one of `Published`."""
    return prototype(seed) if name == "prototype" else published(Published(name), seed)


def simulate(workload: Workload, name: str, hardware: Hardware, overheads: Overheads = USUAL) -> Result:
    """Raises `DoesNotFit`."""
    site = _site(workload, PolicyName(name), hardware)
    policy: Policy = policy_of(PolicyName(name), pod_cpu_milli=hardware.pod_cores * CORE_MILLI, limit=1_000_000)
    asking = asking_of(name)
    known = Learnt()
    classes = Classes(site, workload.services, asking)
    return Simulation(workload, site, policy, classes, known, overheads).run()


def asking_of(name: str) -> Asking:
    """Only some policies have a use for ranges."""
    return Asking.FIXED if name in PODS or name == PolicyName.FCFS else Asking.ELASTIC


def _site(workload: Workload, name: PolicyName, hardware: Hardware) -> Site:
    cpu_nodes = (hardware.cores,) * hardware.nodes
    site = Site(cpu_nodes=cpu_nodes, gpu_nodes=groups_of_eight(hardware.gpus), api_calls=hardware.calls)
    works = [turn.work for rollout in workload.rollouts for turn in rollout.turns]
    widest = max((work.choices[0] for work in works if work.need is Need.CPU), default=0)
    if name in PODS:
        widest = max(widest, hardware.pod_cores) if widest else 0
    if widest > hardware.cores:
        raise DoesNotFit(f"{widest:g} cores are asked for at once, and a node has {hardware.cores}")
    degrees = {work.service or "": work.choices[0] for work in works if work.need is Need.GPU}
    largest = max(site.gpu_nodes, default=0)
    if max(degrees.values(), default=0) > largest:
        raise DoesNotFit(f"{max(degrees.values()):g} devices are asked for at once, and a node has {largest}")
    if not degrees or (name not in PODS and not hardware.shared):
        return site
    site = _dedicated(site, degrees, hardware.gpus)
    return replace(site, shared=frozenset(degrees)) if hardware.shared else site


def _dedicated(site: Site, degrees: dict[str, float], gpus: int) -> Site:
    """Each service has its part of the devices, but no fewer than it needs."""
    whole = 1 << int(math.log2(max(1, gpus // len(degrees))))
    dedicated = {service: max(int(least), whole) for service, least in degrees.items()}
    return replace(site, gpu_nodes=(), dedicated=dedicated)

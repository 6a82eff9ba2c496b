"""A made-up accelerator: all that has to be said so that nodes have some, actions ask for some, and it is scheduled."""

from dataclasses import dataclass

from arl_core.control.rate_limits import RateLimit
from arl_core.domain.elasticity import AmdahlScaling
from arl_core.domain.model import ActionClass, ElasticResource, ResourceDemand, ResourceShape

__all__ = ["KINDS", "ResourceKind"]


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """What a suite needs to know of a resource: how much a node has, and what an action may ask for."""

    name: str
    node_has: int
    widths: tuple[int, ...]
    """What one action can use, the least first."""
    cores_milli: int = 0
    """That it needs besides."""
    rate: RateLimit | None = None
    """Of one that is spent."""
    is_held: bool = True
    """And given back. One that is not is spent only: what the node has of it is a burst."""
    shape: ResourceShape = ResourceShape.DIVISIBLE

    def demand(self, key: int = 1) -> ActionClass:
        """Of an action that is as wide as the policy finds worth while."""
        minimum = {self.name: self.widths[0]} | ({"cpu_milli": self.cores_milli} if self.cores_milli else {})
        elastic = ElasticResource(self.name, self.widths, AmdahlScaling(0.9)) if len(self.widths) > 1 else None
        return ActionClass(key=key, kind="exec", shape=self.shape, demand=ResourceDemand(minimum, elastic))

    def node(self) -> dict[str, int]:
        return {"cpu_milli": 8000, "memory_mib": 1024} | ({self.name: self.node_has} if self.is_held else {})


KINDS = (
    ResourceKind("cpu_milli", node_has=8000, widths=(1000, 2000, 4000)),
    ResourceKind("memory_mib", node_has=1024, widths=(100,)),
    ResourceKind("network_mbps", node_has=10_000, widths=(1000,), cores_milli=500),
    ResourceKind("acme.com/npu", node_has=4, widths=(1, 2, 4), cores_milli=100),
    ResourceKind("egress", node_has=5, widths=(1,), rate=RateLimit(per_s=2.0, burst=5), is_held=False),
    ResourceKind(
        "calls:search", node_has=3, widths=(1,), rate=RateLimit(per_s=2.0, burst=5), shape=ResourceShape.QUOTA
    ),
)

"""Resources for scheduler tests: the data that a node and an action need to use each of them."""

from dataclasses import dataclass

from arl_core.control.rate_limits import RateLimit
from arl_core.domain.elasticity import AmdahlScaling
from arl_core.domain.model import ActionClass, ElasticResource, ResourceDemand, ResourceShape

__all__ = ["KINDS", "ResourceKind"]


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A resource in a test suite: the amount of a node and the amounts that an action may demand."""

    name: str
    node_has: int
    widths: tuple[int, ...]
    """Amounts that one action can use, in ascending order."""
    cores_milli: int = 0
    """Milli-cores that an action needs in addition."""
    rate: RateLimit | None = None
    """Rate limit of a resource that is spent."""
    is_held: bool = True
    """True if an action frees the resource at its end; otherwise the node's amount is a burst."""
    shape: ResourceShape = ResourceShape.DIVISIBLE

    def demand(self, key: int = 1) -> ActionClass:
        """Return the class of an action whose degree of parallelism the policy chooses."""
        minimum = {self.name: self.widths[0]} | ({"cpu_milli": self.cores_milli} if self.cores_milli else {})
        elastic = (
            ElasticResource(self.name, self.widths, AmdahlScaling(0.9, unit=self.widths[0]))
            if len(self.widths) > 1
            else None
        )
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

from collections.abc import Mapping

from arl_kit.metrics import Metrics

__all__ = ["CpuMetrics"]

_BASE_UNITS = {
    "cpu_milli": ("cpu_cores", 1e-3),
    "memory_mib": ("memory_bytes", 2**20),
    "disk_mib": ("disk_bytes", 2**20),
}


class CpuMetrics:
    """Gauges of the node's capacity and allocations."""

    def __init__(self, metrics: Metrics) -> None:
        self.environments = metrics.gauge("environments", "Persistent environments on this node")
        self._capacity = metrics.gauge(
            "node_capacity", "Total resources of the node, by resource, in base units", "resource"
        )
        self._allocated = metrics.gauge(
            "node_allocated", "Resources allocated to attempts and environments, by resource, in base units", "resource"
        )

    def show_resources(self, *, capacity: Mapping[str, int], available: Mapping[str, int]) -> None:
        """Set the gauges from the node's capacity and free resources."""
        for resource, amount in capacity.items():
            name, unit = _BASE_UNITS.get(resource, (resource, 1))
            self._capacity.labels(name).set(amount * unit)
            self._allocated.labels(name).set((amount - available.get(resource, 0)) * unit)

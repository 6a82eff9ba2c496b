from collections.abc import Mapping

from arl_kit.metrics import SIZES, Metrics

__all__ = ["CpuMetrics"]

_BASE_UNITS = {
    "cpu_milli": ("cpu_cores", 1e-3),
    "memory_mib": ("memory_bytes", 2**20),
    "disk_mib": ("disk_bytes", 2**20),
}


class CpuMetrics:
    """What the node has and holds, and what became of what it was granted."""

    def __init__(self, metrics: Metrics) -> None:
        self.settled = metrics.counter("actions_settled", "Settled by this service, by outcome", "outcome")
        self.requeued = metrics.counter("attempts_requeued", "Ended in an infra_error with retries left")
        self.refused = metrics.counter("grants_refused", "Grants that did not fit, or whose environment was busy")
        self.starts = metrics.histogram("start_batch_actions", "Actions in one start statement", SIZES)
        self.settles = metrics.histogram("settle_batch_actions", "Actions in one settle statement", SIZES)
        self.running = metrics.gauge("attempts_running", "Attempts that hold something of this node")
        self.environments = metrics.gauge("environments", "Persistent environments on this node")
        self.poll_failures = metrics.counter("poll_failures", "Polls that failed")
        self._capacity = metrics.gauge("node_capacity", "What the node offers, in base units", "resource")
        self._held = metrics.gauge("node_held", "What attempts and environments hold of it", "resource")

    def show_amounts(self, *, capacity: Mapping[str, int], free: Mapping[str, int]) -> None:
        for resource, amount in capacity.items():
            name, unit = _BASE_UNITS.get(resource, (resource, 1))
            self._capacity.labels(name).set(amount * unit)
            self._held.labels(name).set((amount - free.get(resource, 0)) * unit)

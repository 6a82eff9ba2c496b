from collections.abc import Mapping
from typing import Any

from arl_core.residency.occupancy import ResidencyState
from arl_kit.metrics import SIZE_BUCKETS, Metrics

__all__ = ["GpuMetrics"]

RATIO_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5)


class GpuMetrics:
    """The metrics of a node's devices: batches, forwards, copies and residency."""

    def __init__(self, metrics: Metrics) -> None:
        self.batches = metrics.counter("gpu_batches", "Scored batches")
        self.items = metrics.counter("gpu_items", "Scored items")
        self.texts = metrics.counter("gpu_texts", "Texts that a forward computed; equal texts of a batch count once")
        self.tokens = metrics.counter("gpu_tokens", "Tokens that a forward computed, without padding")
        self.batch_actions = metrics.histogram("gpu_batch_actions", "Actions per batch", SIZE_BUCKETS)
        self.batch_items = metrics.histogram("gpu_batch_items", "Items per batch", SIZE_BUCKETS)
        self.padding = metrics.histogram(
            "gpu_padding_ratio", "Fraction of padding in the tokens of a batch", RATIO_BUCKETS
        )
        self.forward = metrics.histogram("gpu_forward_seconds", "Seconds of the forward of a batch")
        self.forward_cpu = metrics.counter("gpu_forward_cpu_seconds", "CPU seconds of forwards")
        self.model_cpu = metrics.counter(
            "gpu_model_cpu_seconds", "CPU seconds of models, including the work around forwards"
        )
        self.restore = metrics.histogram("gpu_restore_seconds", "Seconds to copy a service's weights to the device")
        self.restore_wait = metrics.histogram(
            "gpu_restore_wait_seconds", "Seconds that a batch waited for the weights of its service"
        )
        self.failed_copies = metrics.counter("gpu_failed_copies", "Copies of weights that failed and were rolled back")
        self.prefetches = metrics.counter(
            "gpu_prefetches", "Copies of weights that started before an action waited for them"
        )
        self.evictions = metrics.counter("gpu_evictions", "Services evicted from a device for another service")
        self.worker_deaths = metrics.counter("gpu_worker_deaths", "Workers that ended during a batch")
        self.host_evictions = metrics.counter(
            "gpu_host_evictions", "Services unloaded from host memory for another service"
        )
        self._residency = metrics.gauge(
            "gpu_residency", "1 for the current residency state of a service, otherwise 0", "service", "state"
        )
        self._used = metrics.gauge("gpu_device_used_bytes", "Bytes of weights on the devices")

    def observe_batch(self, response: Mapping[str, Any], *, actions: int, items: int) -> None:
        """Record a batch from the worker's response."""
        self.batches.inc()
        self.items.inc(items)
        self.texts.inc(response["texts"])
        self.tokens.inc(response["tokens"])
        self.batch_actions.observe(actions)
        self.batch_items.observe(items)
        self.padding.observe(response["padding"])
        self.forward.observe(response["forward_s"])
        self.forward_cpu.inc(response["forward_cpu_s"])
        self.model_cpu.inc(response["model_cpu_s"])
        if response["restore_s"] is not None:
            self.restore_wait.observe(response["restore_s"])

    def observe_residency(self, stats: Mapping[str, Any]) -> None:
        """Record the fields of `arl_gpu.worker.residency.ResidencyStats`."""
        for seconds in stats["restored_s"]:
            self.restore.observe(seconds)
        self.prefetches.inc(stats["prefetched"])
        self.evictions.inc(stats["evicted"])
        self.failed_copies.inc(stats["failed"])
        self.host_evictions.inc(stats["cooled"])

    def set_residency(self, states: Mapping[str, ResidencyState], *, used_bytes: int) -> None:
        """Set the state of every service. A removed service has no state."""
        self._used.set(used_bytes)
        self._residency.clear()
        for service, now in states.items():
            for state in ResidencyState:
                self._residency.labels(service, state.value).set(state is now)

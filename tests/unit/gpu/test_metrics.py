"""Metrics of a GPU manager about its devices."""

from arl_core.residency.occupancy import ResidencyState
from arl_gpu.dispatch.metrics import GpuMetrics
from arl_kit.metrics import Metrics


async def test_removed_service_disappears_from_residency_metrics() -> None:
    metrics = Metrics()
    shown = GpuMetrics(metrics)
    shown.set_residency({"kept": ResidencyState.HOST, "removed": ResidencyState.RESIDENT}, used_bytes=7)
    before = (await metrics.exposition()).decode()
    shown.set_residency({"kept": ResidencyState.RESIDENT}, used_bytes=5)
    after = (await metrics.exposition()).decode()
    assert 'tangram_gpu_residency{service="removed",state="resident"} 1.0' in before
    assert 'service="removed"' not in after
    assert 'tangram_gpu_residency{service="kept",state="resident"} 1.0' in after
    assert 'tangram_gpu_residency{service="kept",state="host"} 0.0' in after

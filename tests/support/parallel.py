"""A node whose workers compute with torch, without the rest of a system."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from arl_core.domain.model import Fence
from arl_gpu.catalog.registrations import DesiredService
from arl_gpu.dispatch.device_groups import DeviceGroups
from arl_gpu.dispatch.dispatcher import BatchDispatcher
from arl_gpu.dispatch.metrics import GpuMetrics
from arl_gpu.node.service_reconciler import ServiceReconciler
from arl_gpu.queue.batch_scheduler import BatchScheduler
from arl_gpu.queue.score_jobs import ScoreJob, ScoreReport
from arl_gpu.worker.client import WorkerClient
from arl_gpu.worker.host_memory import HostMemory
from arl_gpu.worker.process import WorkerConfig
from arl_kit.metrics import Metrics

__all__ = ["Node", "a_node", "a_worker", "wish"]

BATCH_TOKENS = 24
LIMIT_S = 60.0


@dataclass
class Node:
    host: HostMemory
    workers: Sequence[WorkerClient]
    registry: ServiceReconciler
    groups: DeviceGroups
    scoring: BatchDispatcher
    ends: dict[Fence, "asyncio.Future[ScoreReport]"] = field(default_factory=dict)

    async def offer(self, *wishes: DesiredService) -> None:
        self.registry.set_desired(wishes, read=self.registry.begin_read())
        await self.registry.apply_offers()
        await self.registry.apply_moves()

    async def scored(self, service: str, items: Sequence[dict[str, Any]]) -> ScoreReport:
        job = ScoreJob(Fence(uuid4(), 1), service, 300.0, list(items), [len(item["token_ids"]) for item in items])
        self.ends[job.fence] = asyncio.get_running_loop().create_future()
        self.scoring.add(job)
        return await self.ends[job.fence]


@asynccontextmanager
async def a_node(
    models: Path, devices: int, *, device_mib: int, host_bytes: int | None = None, before: str = ""
) -> AsyncIterator[Node]:
    """Run a node; `before` is source that its workers run first."""
    host = HostMemory(host_bytes)
    workers = [a_worker(device_mib=device_mib, host=host, before=before) for _ in range(devices)]
    registry = ServiceReconciler(
        [], workers, models, on_response=lambda at, said: scoring.update_device(at, said), is_idle=lambda name: True
    )
    groups = DeviceGroups(workers, lambda: registry.splits)
    node: Node
    scoring = BatchDispatcher(
        workers,
        lambda report: node.ends[report.fence].set_result(report),
        on_failure=pytest.fail,
        scheduler=BatchScheduler(batch_tokens=BATCH_TOKENS, max_inflight_tokens=1000, model_swap_delay_s=0.05),
        metrics=GpuMetrics(Metrics()),
        groups=groups,
    )
    node = Node(host, workers, registry, groups, scoring)
    scoring.start()
    try:
        yield node
    finally:
        scoring.cancel(node.ends)
        await scoring.stop()
        host.close()


def a_worker(
    *,
    device_mib: int,
    device: str = "cpu",
    services: Mapping[str, Mapping[str, Any]] | None = None,
    host: HostMemory | None = None,
    before: str = "",
) -> WorkerClient:
    """Return a worker that imports torch from where this process does."""
    found = find_spec("torch")
    assert found is not None
    assert found.origin is not None
    script = f"""
import runpy, sys
sys.path.insert(1, {str(Path(found.origin).parents[1])!r})
{before}
runpy.run_module('arl_gpu.worker.process', run_name='__main__', alter_sys=True)
"""
    specs = {name: dict(spec) for name, spec in (services or {}).items()}
    config = WorkerConfig(services=specs, device=device, device_mib=device_mib, copy_mib_per_s=None)
    return WorkerClient(config, threads=1, limit_s=LIMIT_S, host=host, command=(sys.executable, "-P", "-c", script))


def wish(name: str, kind: str, source: str, **options: Any) -> DesiredService:
    return DesiredService(
        name=name,
        kind=kind,
        source=source,
        options=options,
        pinned=False,
        registered_at=1.0,
        drained_at=None,
        load_asked=None,
    )

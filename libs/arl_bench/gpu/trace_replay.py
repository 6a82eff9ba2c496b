"""Replay requests at their times through the manager's loop and a worker, without the rest of the system.

`python -m arl_bench.gpu.trace_replay` reads the requests as JSON on standard input and prints its results as JSON. A
benchmark compares eviction policies with it: the same requests and the same model, only the policy differs.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from arl_bench.gpu.request_replay import CountingWorker, RequestReplayer, TimedRequest
from arl_core.residency.eviction import EvictionPolicy
from arl_gpu.catalog.service_files import installed_services
from arl_gpu.models.interface import Item
from arl_gpu.queue.batch_scheduler import BatchScheduler
from arl_gpu.worker.process import WorkerConfig

__all__ = ["ReplayResult", "ReplayScenario", "run_replay"]

LIMIT_S = 600.0
MAX_INFLIGHT_TOKENS = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayScenario:
    """A load. `requests`: time, service and items. Each of `services` is a separate copy of `model`."""

    model: str
    services: Sequence[str]
    requests: Sequence[tuple[float, str, Sequence[tuple[str, str]]]]
    device_mib: int
    copy_mib_per_s: float | None
    eviction: str
    model_swap_delay_s: float
    batch_tokens: int
    threads: int = 1


@dataclass(slots=True)
class ReplayResult:
    """Scores of each request in order, and the seconds from its time to its scores."""

    wait_s: list[float]
    scores: list[list[float | None]]
    lost: int = 0
    restored_s: list[float] = field(default_factory=list)
    evicted: int = 0
    prefetched: int = 0


async def run_replay(scenario: ReplayScenario) -> ReplayResult:
    """Replay a scenario. Raises `LookupError` if the model is not installed."""
    files = next(iter(installed_services([scenario.model])), None)
    if files is None:
        raise LookupError(f"{scenario.model} is not installed")
    config = WorkerConfig(
        services={name: files.spec | {"name": name} for name in scenario.services},
        device_mib=scenario.device_mib,
        copy_mib_per_s=scenario.copy_mib_per_s,
        eviction=EvictionPolicy(scenario.eviction),
    )
    return await _replay_requests(scenario, CountingWorker(config, threads=scenario.threads, limit_s=LIMIT_S))


async def _replay_requests(scenario: ReplayScenario, worker: CountingWorker) -> ReplayResult:
    """Replay the requests after every service is in host memory."""
    for name in scenario.services:
        await worker.restore(name)
    worker.reset_counters()
    limits = {"batch_tokens": scenario.batch_tokens, "max_inflight_tokens": MAX_INFLIGHT_TOKENS}
    timed = RequestReplayer(
        dict.fromkeys(scenario.services, worker),
        lambda: BatchScheduler(model_swap_delay_s=scenario.model_swap_delay_s, **limits),
    )
    ended = await timed.run([TimedRequest(at, service, _items(pairs)) for at, service, pairs in scenario.requests])
    return ReplayResult(
        wait_s=[each.wait_s for each in ended],
        scores=[each.scores for each in ended],
        lost=sum(not each.is_ok for each in ended),
        restored_s=worker.restored_s,
        evicted=worker.evicted,
        prefetched=worker.prefetched,
    )


def _items(pairs: Sequence[tuple[str, str]]) -> list[Item]:
    return [{"text": text, "reference": reference} for text, reference in pairs]


if __name__ == "__main__":
    json.dump(asdict(asyncio.run(run_replay(ReplayScenario(**json.load(sys.stdin))))), sys.stdout)

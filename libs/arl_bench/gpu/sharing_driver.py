"""Serve several services with synthetic weights on one device, by each sharing strategy, under the same requests.

`python -m arl_bench.gpu.sharing_driver` reads its load as JSON on standard input and prints its results as JSON. Every
strategy uses the product's own loop and planner. Only restore and eviction differ, or all services stay resident.
"""

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arl_bench.gpu.request_replay import CountingWorker, RequestReplayer, TimedRequest
from arl_bench.gpu.synthetic_models import MIB, SharedWorkerConfig, SharingMode
from arl_gpu.queue.batch_scheduler import BatchScheduler
from arl_gpu.worker.client import WorkerDied

__all__ = ["SharingResult", "SharingScenario", "run_sharing"]

LIMIT_S = 900.0
WORKER_COMMAND = (sys.executable, "-P", "-m", "arl_bench.gpu.synthetic_models")
BATCH_TOKENS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingScenario:
    """A load. `mib`: weights of each service. `requests`: time, service and tokens, in the order of their times.

    `directory`: a directory on a real disk for files that are read again.
    """

    mib: Mapping[str, int]
    requests: Sequence[tuple[float, str, int]]
    strategy: str
    device: str
    device_mib: int
    copy_mib_per_s: float | None
    model_swap_delay_s: float
    directory: str
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingResult:
    """Time and score of each request in order, and the restores and evictions in total."""

    act_s: list[float]
    scores: list[float | None]
    lost: int
    restored_s: list[float]
    evicted: int
    prepared_s: float
    """Seconds until every service was ready."""


async def run_sharing(scenario: SharingScenario) -> SharingResult:
    """Run one strategy. Raises `WorkerDied` if the device is missing or too small, and `OSError` without disk space."""
    _check_disk_space(scenario)
    strategy, begun = SharingMode(scenario.strategy), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tangram-sharing-", dir=scenario.directory) as directory:
        workers = _create_workers(scenario, strategy, Path(directory))
        try:
            await asyncio.gather(*(_restore(name, worker) for name, worker in workers.items()))
            prepared_s = time.monotonic() - begun
            longest = max((tokens for _, _, tokens in scenario.requests), default=1)
            timed = RequestReplayer(workers, lambda: _create_scheduler(scenario), max_tokens=longest)
            ended = await timed.run(
                [
                    TimedRequest(at, name, [_make_item(number, tokens)])
                    for number, (at, name, tokens) in enumerate(scenario.requests)
                ]
            )
        finally:
            await asyncio.gather(*(worker.end() for worker in set(workers.values())))
    return SharingResult(
        act_s=[each.wait_s for each in ended],
        scores=[each.scores[0] for each in ended],
        lost=sum(not each.is_ok for each in ended),
        restored_s=[took for worker in set(workers.values()) for took in worker.restored_s],
        evicted=sum(worker.evicted for worker in set(workers.values())),
        prepared_s=prepared_s,
    )


async def _restore(name: str, worker: CountingWorker) -> None:
    answer = await worker.restore(name)
    if "error" in answer:
        raise WorkerDied(f"{name} did not come to the device: {answer['error']}: {answer['message']}")
    worker.reset_counters()


def _check_disk_space(scenario: SharingScenario) -> None:
    needed, free = sum(scenario.mib.values()) * MIB, shutil.disk_usage(scenario.directory).free
    if SharingMode(scenario.strategy) is SharingMode.RELOAD and needed > free:
        raise OSError(
            f"{scenario.directory} has {free // MIB} MiB free, and files of {needed // MIB} must be read again"
        )


def _create_workers(scenario: SharingScenario, strategy: SharingMode, directory: Path) -> dict[str, CountingWorker]:
    """Create one worker for all services, or one per service with its share of the device."""
    shares = len(scenario.mib) if strategy is SharingMode.SHARE else 1
    options: dict[str, Any] = {"strategy": strategy, "shares": shares, "cuda": scenario.device.startswith("cuda")}
    specs = {
        name: {
            "name": name,
            "kind": "synthetic",
            "directory": str(directory),
            "options": options | {"name": name, "seed": number, "mib": mib},
        }
        for number, (name, mib) in enumerate(scenario.mib.items())
    }
    if strategy is SharingMode.SHARE:
        return {
            name: _create_worker(scenario, strategy, shares, {name: spec}, scenario.mib[name])
            for name, spec in specs.items()
        }
    return dict.fromkeys(specs, _create_worker(scenario, strategy, shares, specs, scenario.device_mib))


def _create_worker(
    scenario: SharingScenario, strategy: SharingMode, shares: int, specs: dict[str, dict[str, Any]], mib: int
) -> CountingWorker:
    config = SharedWorkerConfig(
        services=specs,
        device=scenario.device,
        device_mib=mib,
        copy_mib_per_s=scenario.copy_mib_per_s,
        strategy=strategy,
        shares=shares,
    )
    return CountingWorker(config, threads=scenario.threads, limit_s=LIMIT_S, command=WORKER_COMMAND)


def _create_scheduler(scenario: SharingScenario) -> BatchScheduler:
    return BatchScheduler(
        batch_tokens=BATCH_TOKENS, max_inflight_tokens=8 * BATCH_TOKENS, model_swap_delay_s=scenario.model_swap_delay_s
    )


def _make_item(number: int, tokens: int) -> dict[str, Any]:
    """Return an item that depends only on its number, so that all strategies get the same items."""
    return {"token_ids": np.random.default_rng(number).integers(0, 50_000, tokens).tolist()}


if __name__ == "__main__":
    json.dump(asdict(asyncio.run(run_sharing(SharingScenario(**json.load(sys.stdin))))), sys.stdout)

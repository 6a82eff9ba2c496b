"""A benchmark of twelve reward services on a device that fits three: the number of copies, and the waiting times.

The same requests run at the same times through the manager's loop and a worker (`arl_bench.gpu.trace_replay`), once
for each eviction policy: ours; least recently used by count with requests in order, like Ray Serve's multiplexing; and
first in, first out. The two baselines also compute all queued requests of a service in one batch, which saves copies.
"""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Any

from arl_wire.errors import Unavailable

__all__ = ["ResidencyBenchConfig", "run_residency"]

MODEL = "minilm"
DEVICE_MIB = 290
"""Device memory: three times the 87 MiB of a service, but not four times."""
BATCH_TOKENS = 2048
TOLERANCE = 1e-4
MAX_ERROR = 2.0
"""Maximum difference of two cosines."""
TIMEOUT_S = 600

TimedScoreRequest = tuple[float, str, list[tuple[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyBenchConfig:
    """The load: bursts of requests of one item, as the rollouts of one prompt end one after the other."""

    repeats: int = 3
    seconds: float = 30.0
    services: int = 12
    bursts_per_s: float = 1.5
    burst_requests: int = 16
    burst_s: float = 4.0
    skew: float = 1.0
    """Zipf's exponent: how much more often the first service is requested than the others."""
    copy_mib_per_s: float = 800.0
    """Bus speed in proportion to the small weights: 0.11 s per service, as 5 GB take on PCIe 5."""
    model_swap_delay_s: float = 1.5


@dataclass(frozen=True, slots=True)
class _EvictionPolicy:
    suffix: str
    eviction: str
    waits_for_swap: bool


OUR_POLICY, LRU_POLICY, FIFO_POLICY = (
    _EvictionPolicy("", "cost", True),
    _EvictionPolicy("_lru", "lru", False),
    _EvictionPolicy("_fifo", "fifo", False),
)
POLICIES = (OUR_POLICY, LRU_POLICY, FIFO_POLICY)


@dataclass(frozen=True, slots=True)
class _ResidencyRun:
    requests: Sequence[TimedScoreRequest]
    result: dict[str, Any]

    @property
    def swaps(self) -> int:
        return len(self.result["restored_s"])


def run_residency(
    config: ResidencyBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples. Raises `Unavailable` if the model is not installed."""
    rows: dict[str, list[_ResidencyRun]] = {policy.suffix: [] for policy in POLICIES}
    for repeat in range(config.repeats):
        requests = _generate_requests(config, seed=repeat)
        for policy in POLICIES:
            report_progress(f"repeat {repeat + 1} of {config.repeats}: {len(requests)} requests, {policy.eviction}")
            rows[policy.suffix].append(_ResidencyRun(requests, _replay(config, requests, policy)))
    report_progress("the same items without a device")
    return _figures(rows), {policy.eviction: [_to_sample(row) for row in rows[policy.suffix]] for policy in POLICIES}


def _generate_requests(config: ResidencyBenchConfig, *, seed: int) -> list[TimedScoreRequest]:
    """Generate requests in order of time."""
    rng = random.Random(seed)
    names = [f"reward-{number:02d}" for number in range(config.services)]
    weights = [1 / (rank + 1) ** config.skew for rank in range(config.services)]
    found: list[TimedScoreRequest] = []
    begins = rng.expovariate(config.bursts_per_s)
    while begins < config.seconds:
        [name] = rng.choices(names, weights)
        times = (begins + rng.uniform(0, config.burst_s) for _ in range(config.burst_requests))
        found += [(at, name, [_make_pair(seed, rng.randrange(10**6))]) for at in times]
        begins += rng.expovariate(config.bursts_per_s)
    return sorted(found)


def _make_pair(seed: int, number: int) -> tuple[str, str]:
    return f"The sum of both terms is {number}, in try {seed}.", f"{number} is the right answer."


def _replay(
    config: ResidencyBenchConfig, requests: Sequence[TimedScoreRequest], policy: _EvictionPolicy
) -> dict[str, Any]:
    asked = {
        "model": MODEL,
        "services": [f"reward-{number:02d}" for number in range(config.services)],
        "requests": requests,
        "device_mib": DEVICE_MIB,
        "copy_mib_per_s": config.copy_mib_per_s,
        "eviction": policy.eviction,
        "model_swap_delay_s": config.model_swap_delay_s if policy.waits_for_swap else 0.0,
        "batch_tokens": BATCH_TOKENS,
    }
    found: dict[str, Any] = _run_module("arl_bench.gpu.trace_replay", [], asked)
    return found


def _run_module(module: str, arguments: Sequence[str], payload: Any) -> Any:
    command = [sys.executable, "-P", "-m", module, *arguments]
    done = subprocess.run(
        command, input=json.dumps(payload), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise Unavailable(done.stderr.strip())
    return json.loads(done.stdout)


def _figures(rows: dict[str, list[_ResidencyRun]]) -> dict[str, float]:
    errors = _errors([row for each in rows.values() for row in each])
    figures: dict[str, float] = {
        "wrong_answers": float(sum(error > TOLERANCE for error in errors)),
        "max_abs_error": max(errors, default=MAX_ERROR),
        "lost": float(sum(row.result["lost"] for each in rows.values() for row in each)),
    }
    for suffix, found in rows.items():
        waits = [sorted(row.result["wait_s"]) for row in found]
        figures[f"swaps{suffix}"] = median(row.swaps for row in found)
        figures[f"p99_wait_s{suffix}"] = round(median(quantiles(wait, n=100)[98] for wait in waits), 3)
        figures[f"mean_wait_s{suffix}"] = round(median(fmean(wait) for wait in waits), 3)
    figures["prefetches"] = median(row.result["prefetched"] for row in rows[OUR_POLICY.suffix])
    for peer in (LRU_POLICY, FIFO_POLICY):
        ratios = [ours.swaps / its.swaps for ours, its in zip(rows[OUR_POLICY.suffix], rows[peer.suffix], strict=True)]
        figures[f"swaps_over{peer.suffix}"] = round(median(ratios), 3)
    return figures


def _errors(rows: Sequence[_ResidencyRun]) -> list[float]:
    """Return the error of every score compared with a direct forward. A missing score has the maximum error."""
    pairs = {pair for row in rows for _, _, asked in row.requests for pair in asked}
    ordered = sorted(pairs)
    right = dict(zip(ordered, _run_module("arl_bench.gpu.direct_scores", [MODEL], ordered), strict=True))
    scored = (
        (pair, score)
        for row in rows
        for (_, _, asked), scores in zip(row.requests, row.result["scores"], strict=True)
        for pair, score in zip(asked, scores, strict=True)
    )
    return [abs(score - right[pair]) if score is not None else MAX_ERROR for pair, score in scored]


def _to_sample(row: _ResidencyRun) -> dict[str, Any]:
    found = row.result
    return {
        "requests": len(row.requests),
        "swaps": row.swaps,
        "evictions": found["evicted"],
        "prefetches": found["prefetched"],
        "restore_s": round(fmean(found["restored_s"]), 4) if found["restored_s"] else None,
        "wait_s": [round(cut, 3) for cut in quantiles(found["wait_s"], n=20)],
    }

"""Twelve reward services on a device that has room for three: how often one has to be copied there, and who waits.

The same requests at the same times through the manager's loop and a worker (`arl_gpu.replay`), once for each way to
choose who leaves: ours; the least recently used by count with requests in their order, which is what Ray Serve's
multiplexing does; and whoever came first. The two that we compare with compute all that waits for a service in one
batch, too, which spares them copies.
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

__all__ = ["Sizes", "run_residency"]

MODEL = "minilm"
DEVICE_MIB = 290
"""Three times its 87 MiB, and not four times."""
BATCH_TOKENS = 2048
TOLERANCE = 1e-4
MOST_WRONG = 2.0
"""Of two cosines."""
LIMIT_S = 600

Request = tuple[float, str, list[tuple[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The load: bursts of requests of one item, as the rollouts of one prompt end one after the other."""

    repeats: int = 3
    seconds: float = 30.0
    services: int = 12
    bursts_per_s: float = 1.5
    burst_requests: int = 16
    burst_s: float = 4.0
    skew: float = 1.0
    """Zipf's exponent: how much more often the first service is asked than the others."""
    copy_mib_per_s: float = 800.0
    """A bus in proportion to these small weights: 0.11 s a service, as 5 GB take on PCIe 5."""
    swap_wait_s: float = 1.5


@dataclass(frozen=True, slots=True)
class _Policy:
    suffix: str
    eviction: str
    waits: bool


OURS, LRU, FIFO = _Policy("", "cost", True), _Policy("_lru", "lru", False), _Policy("_fifo", "fifo", False)
POLICIES = (OURS, LRU, FIFO)


@dataclass(frozen=True, slots=True)
class _Row:
    requests: Sequence[Request]
    found: dict[str, Any]

    @property
    def swaps(self) -> int:
        return len(self.found["restored_s"])


def run_residency(sizes: Sizes, say: Callable[[str], None]) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures and samples. Raises `Unavailable` where the model is not installed."""
    rows: dict[str, list[_Row]] = {policy.suffix: [] for policy in POLICIES}
    for repeat in range(sizes.repeats):
        requests = _requests(sizes, seed=repeat)
        for policy in POLICIES:
            say(f"repeat {repeat + 1} of {sizes.repeats}: {len(requests)} requests, {policy.eviction}")
            rows[policy.suffix].append(_Row(requests, _replayed(sizes, requests, policy)))
    say("the same items without a device")
    return _figures(rows), {policy.eviction: [_sample(row) for row in rows[policy.suffix]] for policy in POLICIES}


def _requests(sizes: Sizes, *, seed: int) -> list[Request]:
    """In order of their times."""
    rng = random.Random(seed)
    names = [f"reward-{number:02d}" for number in range(sizes.services)]
    weights = [1 / (rank + 1) ** sizes.skew for rank in range(sizes.services)]
    found: list[Request] = []
    begins = rng.expovariate(sizes.bursts_per_s)
    while begins < sizes.seconds:
        [name] = rng.choices(names, weights)
        times = (begins + rng.uniform(0, sizes.burst_s) for _ in range(sizes.burst_requests))
        found += [(at, name, [_pair(seed, rng.randrange(10**6))]) for at in times]
        begins += rng.expovariate(sizes.bursts_per_s)
    return sorted(found)


def _pair(seed: int, number: int) -> tuple[str, str]:
    return f"The sum of both terms is {number}, in try {seed}.", f"{number} is the right answer."


def _replayed(sizes: Sizes, requests: Sequence[Request], policy: _Policy) -> dict[str, Any]:
    asked = {
        "model": MODEL,
        "services": [f"reward-{number:02d}" for number in range(sizes.services)],
        "requests": requests,
        "device_mib": DEVICE_MIB,
        "copy_mib_per_s": sizes.copy_mib_per_s,
        "eviction": policy.eviction,
        "swap_wait_s": sizes.swap_wait_s if policy.waits else 0.0,
        "batch_tokens": BATCH_TOKENS,
    }
    found: dict[str, Any] = _asked("arl_gpu.replay", [], asked)
    return found


def _asked(module: str, arguments: Sequence[str], given: Any) -> Any:
    command = [sys.executable, "-P", "-m", module, *arguments]
    done = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise Unavailable(done.stderr.strip())
    return json.loads(done.stdout)


def _figures(rows: dict[str, list[_Row]]) -> dict[str, float]:
    errors = _errors([row for each in rows.values() for row in each])
    figures: dict[str, float] = {
        "wrong_answers": float(sum(error > TOLERANCE for error in errors)),
        "max_abs_error": max(errors, default=MOST_WRONG),
        "lost": float(sum(row.found["lost"] for each in rows.values() for row in each)),
    }
    for suffix, found in rows.items():
        waits = [sorted(row.found["wait_s"]) for row in found]
        figures[f"swaps{suffix}"] = median(row.swaps for row in found)
        figures[f"p99_wait_s{suffix}"] = round(median(quantiles(wait, n=100)[98] for wait in waits), 3)
        figures[f"mean_wait_s{suffix}"] = round(median(fmean(wait) for wait in waits), 3)
    figures["prefetches"] = median(row.found["prefetched"] for row in rows[OURS.suffix])
    for peer in (LRU, FIFO):
        ratios = [ours.swaps / its.swaps for ours, its in zip(rows[OURS.suffix], rows[peer.suffix], strict=True)]
        figures[f"swaps_over{peer.suffix}"] = round(median(ratios), 3)
    return figures


def _errors(rows: Sequence[_Row]) -> list[float]:
    """Of every score, beside a forward without a device; what is none is as wrong as can be."""
    pairs = {pair for row in rows for _, _, asked in row.requests for pair in asked}
    ordered = sorted(pairs)
    right = dict(zip(ordered, _asked("arl_gpu.direct", [MODEL], ordered), strict=True))
    scored = (
        (pair, score)
        for row in rows
        for (_, _, asked), scores in zip(row.requests, row.found["scores"], strict=True)
        for pair, score in zip(asked, scores, strict=True)
    )
    return [abs(score - right[pair]) if score is not None else MOST_WRONG for pair, score in scored]


def _sample(row: _Row) -> dict[str, Any]:
    found = row.found
    return {
        "requests": len(row.requests),
        "swaps": row.swaps,
        "evictions": found["evicted"],
        "prefetches": found["prefetched"],
        "restore_s": round(fmean(found["restored_s"]), 4) if found["restored_s"] else None,
        "wait_s": [round(cut, 3) for cut in quantiles(found["wait_s"], n=20)],
    }

"""A benchmark of four strategies to share a device among twelve services that do not fit at once, under one load.

The strategies are ours, copying out and in like engines in sleep mode, reading from files, and a twelfth of a device
that fits all services. All four use the manager's own loop and planner, so only restores and evictions differ. The
weights are synthetic, with the sizes of models from 0.6 to 8 billion parameters. On the CPU device they are smaller,
in proportion to its slower copies and products.
"""

import json
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median, quantiles
from typing import Any

from arl_bench.harness.process_usage import summarize_error
from arl_wire.errors import Unavailable

__all__ = ["STRATEGIES", "DeviceSharingBenchConfig", "report_load", "run_device_sharing"]

MODEL_BILLIONS = (8.0, 4.0, 4.0, 1.7, 1.7, 1.7, 1.7, 0.6, 0.6, 0.6, 0.6, 0.6)
"""Billions of parameters of 2 bytes each: 52 GB in total."""
MIB_PER_BILLION = 1907.35
STRATEGIES = ("keep", "sleep", "reload", "share")
OUR_STRATEGY = "keep"
TOLERANCE = 0.2
"""Tolerated difference between batches in bfloat16, divided by the square root of the number of averaged tokens. In 11
of 100 cases another service's score differs by less.
"""
CPU_TOLERANCE = 1e-4
TIMEOUT_S = 1800

TimedSequenceRequest = tuple[float, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSharingBenchConfig:
    """The load: bursts of sequences for one service, as the rollouts of one prompt end one after the other."""

    device: str = "cpu"
    strategies: Sequence[str] = STRATEGIES
    repeats: int = 1
    seconds: float = 40.0
    room: float = 0.5
    """Fraction of all weights that fit on the device at once."""
    bursts_per_s: float = 1.0
    burst_requests: int = 12
    burst_s: float = 4.0
    skew: float = 1.0
    """Zipf's exponent: how much more often the first service is requested than the others."""
    model_swap_delay_s: float = 1.5
    seed: int = 0
    directory: str = field(default_factory=tempfile.gettempdir)
    """A directory on a real disk for files that are read again."""

    @property
    def is_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def mib(self) -> dict[str, int]:
        """Return the weights of each service in MiB. On the CPU device, 8 billion parameters are 64 MiB."""
        of_a_billion = MIB_PER_BILLION if self.is_gpu else 8.0
        return {f"{size}b-{number:02d}": max(1, int(of_a_billion * size)) for number, size in enumerate(MODEL_BILLIONS)}

    @property
    def tokens(self) -> tuple[int, int]:
        """Return the median and the maximum number of tokens of a sequence."""
        return (1024, 4096) if self.is_gpu else (24, 96)

    @property
    def copy_mib_per_s(self) -> float | None:
        """Return the simulated bus speed of the CPU device: 64 MiB in 0.3 s, proportional to 16 GB on PCIe 5."""
        return None if self.is_gpu else 213.0


def run_device_sharing(
    config: DeviceSharingBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples. Raises `Unavailable` if the device is missing or too small."""
    rows: dict[str, list[dict[str, Any]]] = {strategy: [] for strategy in config.strategies}
    for repeat in range(config.repeats):
        requests = _generate_requests(config, seed=config.seed + repeat)
        for strategy in config.strategies:
            report_progress(f"repeat {repeat + 1} of {config.repeats}: {len(requests)} requests, {strategy}")
            rows[strategy].append(_run_strategy(config, requests, strategy))
    return _figures(config, rows), {strategy: [_to_sample(row) for row in found] for strategy, found in rows.items()}


def _generate_requests(config: DeviceSharingBenchConfig, *, seed: int) -> list[TimedSequenceRequest]:
    """Generate requests in order of time. Larger services are requested less often, like teachers of many domains."""
    rng = random.Random(seed)
    names = [*reversed(config.mib)]
    weights = [1 / (rank + 1) ** config.skew for rank in range(len(names))]
    usual, most = config.tokens
    found: list[TimedSequenceRequest] = []
    begins = rng.expovariate(config.bursts_per_s)
    while begins < config.seconds:
        [name] = rng.choices(names, weights)
        times = (begins + rng.uniform(0, config.burst_s) for _ in range(config.burst_requests))
        found += [(at, name, min(most, max(1, int(usual * rng.lognormvariate(0, 0.6))))) for at in times]
        begins += rng.expovariate(config.bursts_per_s)
    return sorted(found)


def _run_strategy(
    config: DeviceSharingBenchConfig, requests: Sequence[TimedSequenceRequest], strategy: str
) -> dict[str, Any]:
    asked = {
        "mib": config.mib,
        "requests": requests,
        "strategy": strategy,
        "device": config.device,
        "device_mib": max(max(config.mib.values()), int(config.room * sum(config.mib.values()))),
        "copy_mib_per_s": config.copy_mib_per_s,
        "model_swap_delay_s": config.model_swap_delay_s,
        "directory": config.directory,
    }
    command = [sys.executable, "-P", "-m", "arl_bench.gpu.sharing_driver"]
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise Unavailable(summarize_error(done.stderr))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _figures(config: DeviceSharingBenchConfig, rows: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    figures: dict[str, float] = {"lost": float(sum(row["lost"] for found in rows.values() for row in found))}
    figures["wrong_answers"] = float(_count_wrong(config, rows))
    for strategy, found in rows.items():
        figures[f"act_mean_s_{strategy}"] = round(median(fmean(row["act_s"]) for row in found), 4)
        figures[f"act_p99_s_{strategy}"] = round(median(quantiles(row["act_s"], n=100)[98] for row in found), 4)
        figures[f"restores_{strategy}"] = median(len(row["restored_s"]) for row in found)
        if OUR_STRATEGY in rows and strategy != OUR_STRATEGY:
            pairs = zip(found, rows[OUR_STRATEGY], strict=True)
            figures[f"act_over_ours_{strategy}"] = round(
                median(fmean(a["act_s"]) / fmean(b["act_s"]) for a, b in pairs), 3
            )
    return figures


def _count_wrong(config: DeviceSharingBenchConfig, rows: dict[str, list[dict[str, Any]]]) -> int:
    """Count requests whose scores differ between strategies: then another service's weights were used."""
    wrong = 0
    for repeat in range(config.repeats):
        requests = _generate_requests(config, seed=config.seed + repeat)
        answers = zip(*(found[repeat]["scores"] for found in rows.values()), strict=True)
        wrong += sum(
            not _is_consistent(config, each, tokens) for each, (_, _, tokens) in zip(answers, requests, strict=True)
        )
    return wrong


def _is_consistent(config: DeviceSharingBenchConfig, answers: Sequence[float | None], tokens: int) -> bool:
    """Return True if all scores are finite and agree within the tolerance."""
    found = [each for each in answers if each is not None and math.isfinite(each)]
    tolerance = TOLERANCE / math.sqrt(tokens) if config.is_gpu else CPU_TOLERANCE
    return len(found) == len(answers) and max(found) - min(found) <= tolerance


def _to_sample(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "act_s": [round(cut, 4) for cut in quantiles(row["act_s"], n=20)],
        "restore_s": [round(took, 4) for took in row["restored_s"]],
        "evictions": row["evicted"],
        "prepared_s": round(row["prepared_s"], 2),
    }


def report_load(config: DeviceSharingBenchConfig) -> dict[str, Any]:
    """Return the load for the document."""
    return asdict(config) | {"mib": config.mib, "copy_mib_per_s": config.copy_mib_per_s}

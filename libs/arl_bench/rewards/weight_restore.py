"""A benchmark of restores compared with a plain copy of the same size, on a GPU or a CPU device."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from arl_bench.harness.process_usage import summarize_error
from arl_wire.errors import Unavailable

__all__ = ["WeightRestoreBenchConfig", "run_weight_restore"]

TIMEOUT_S = 1800
SMALL_MIB = 1200
"""MiB of 0.6 billion parameters in bfloat16."""
LARGE_MIB = 15_317
"""MiB of 8.03 billion parameters in bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRestoreBenchConfig:
    """Sizes of the synthetic weights in MiB, by their names in the figures."""

    device: str = "cuda:0"
    repeats: int = 5
    small_mib: int = SMALL_MIB
    large_mib: int = LARGE_MIB


def run_weight_restore(
    config: WeightRestoreBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and samples. Raises `Unavailable` if the device is missing or too small."""
    figures: dict[str, float] = {}
    samples: dict[str, Any] = {}
    for name, mib in (("0_6b", config.small_mib), ("8b", config.large_mib)):
        report_progress(f"{mib} MiB of synthetic weights on {config.device}, {config.repeats} times")
        samples[name] = _measure(config, mib)
        figures |= {f"{figure}_{name}": value for figure, value in _figures(samples[name], mib).items()}
    return figures, samples


def _measure(config: WeightRestoreBenchConfig, mib: int) -> dict[str, list[float]]:
    command = [sys.executable, "-P", "-m", "arl_bench.gpu.copy_speed", config.device, str(mib), str(config.repeats)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise Unavailable(summarize_error(done.stderr))
    found: dict[str, list[float]] = json.loads(done.stdout)["seconds"]
    return found


def _figures(seconds: dict[str, list[float]], mib: int) -> dict[str, float]:
    gigabytes = mib * (1 << 20) / 1e9
    pairs = zip(seconds["plain_s"], seconds["restore_s"], strict=True)
    return {
        "restore_gb_per_s": round(gigabytes / median(seconds["restore_s"]), 2),
        "plain_gb_per_s": round(gigabytes / median(seconds["plain_s"]), 2),
        "restore_over_plain": round(median(plain / restored for plain, restored in pairs), 3),
        "restore_s": round(median(seconds["restore_s"]), 4),
        "evict_ms": round(1000 * median(seconds["evict_s"]), 3),
        "first_score_s": round(median(seconds["score_s"]), 4),
        "register_s": round(median(seconds["register_s"]), 3),
    }

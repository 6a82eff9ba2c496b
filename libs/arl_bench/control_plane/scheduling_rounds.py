"""`tangram bench rounds`: the cost of a scheduling round on the scheduler's index, without Postgres and nodes.

It also measures how long a new leader takes to read the longest of these queues from Postgres.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from arl_bench.control_plane.leader_recovery import run_leader_recovery

__all__ = ["SchedulingRoundBenchConfig", "run_scheduling_rounds"]


@dataclass(frozen=True, slots=True)
class SchedulingRoundBenchConfig:
    waiting: tuple[int, ...] = (100_000, 1_000_000)
    nodes: int = 100
    cores: int = 64
    classes: int = 256
    tasks: int = 8
    rounds: int = 300
    repeats: int = 3

    @classmethod
    def short(cls) -> "SchedulingRoundBenchConfig":
        return cls(waiting=(10_000, 30_000), rounds=100, repeats=1)


def run_scheduling_rounds(
    config: SchedulingRoundBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return medians over the repeats, and the samples: CPU seconds and grants of each round."""
    samples: dict[str, Any] = {}
    figures: dict[str, float] = {}
    for waiting in config.waiting:
        runs = []
        for repeat in range(config.repeats):
            report_progress(f"{waiting} waiting, repeat {repeat + 1} of {config.repeats}")
            runs.append(_run_driver(config, waiting))
        name = _short_count(waiting)
        found = [_figures(run, waiting) for run in runs]
        figures |= {f"{each}_{name}": round(median(one[each] for one in found), 3) for each in found[0]}
        samples[name] = [{"round_s": run["round_s"], "granted": run["granted"]} for run in runs]
    rebuilt, samples["rebuild"] = run_leader_recovery(config.waiting[-1], report_progress)
    return figures | {f"{name}_{_short_count(config.waiting[-1])}": value for name, value in rebuilt.items()}, samples


def _short_count(waiting: int) -> str:
    """Format a queue length as 1e5 or 1e6."""
    return f"{waiting:.0e}".replace("e+0", "e")


def _run_driver(config: SchedulingRoundBenchConfig, waiting: int) -> dict[str, Any]:
    given = {key: value for key, value in asdict(config).items() if key != "repeats"} | {"waiting": waiting}
    done = subprocess.run(
        [sys.executable, "-m", "arl_bench.micro.rounds"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _figures(run: dict[str, Any], waiting: int) -> dict[str, float]:
    taken: Sequence[float] = sorted(run["round_s"])
    return {
        "round_p50_ms": 1000 * median(taken),
        "round_p99_ms": 1000 * taken[int(0.99 * (len(taken) - 1))],
        "decisions_per_s": sum(run["granted"]) / sum(taken),
        "admit_us": 1e6 * run["admit_s"] / waiting,
        "bytes_per_waiting": run["bytes_waiting"] / waiting,
    }

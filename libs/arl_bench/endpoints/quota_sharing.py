"""A benchmark of an API quota that one broker shares among all jobs, compared with jobs that limit themselves.

The API is a separate program that enforces its quota. Several jobs submit many calls at once, then think, without
synchronisation. Four policies run alternately under the same load: `broker` (the SDK) and `through` (plain clients
with the gateway's address) are ours. `backoff` sends all calls and retries after a 429; `split` gives each job a part
of the quota. The API itself counts the requests and those beyond the quota.
"""

import asyncio
import json
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from statistics import fmean, median, quantiles
from typing import Any

import aiohttp

from arl_bench.control_plane.overhead import BenchRate, measure_cost
from arl_bench.endpoints.call_load import CallJob, EndpointBenchConfig, generate_jobs, ideal_completion_times
from arl_bench.endpoints.call_strategies import (
    ENDPOINT,
    CallBatch,
    CallResult,
    backoff_calls,
    broker_calls,
    proxy_calls,
    split_quota_calls,
)
from arl_bench.endpoints.quota_api import quota_api
from arl_bench.harness.bench_system import BenchSystem, bench_system

__all__ = ["OUR_STRATEGIES", "EndpointBenchConfig", "run_calls"]

STRATEGIES = ("broker", "backoff", "through", "split")
OUR_STRATEGIES = ("broker", "through")
DEFAULT_RETRIES = 2
"""Default number of retries of the clients of OpenAI and Anthropic."""
SETTLE_S = 2.0
"""Seconds between two runs, in which every bucket refills."""
GRID_STEP_S = 0.01
MEDIAN_FIGURES = (
    "act_mean_s",
    "act_p50_s",
    "act_p99_s",
    "makespan_s",
    "quota_used",
    "busy",
    "slowdown_mean",
    "slowdown_most",
)
SUMMED_FIGURES = ("failed", "persistent", "requests", "throttled")


@dataclass(frozen=True, slots=True)
class _StrategyRun:
    """The result of all jobs under one policy."""

    results_by_job: Mapping[int, Sequence[CallResult]]
    """Results by job number."""
    makespan_s: float
    cost: BenchRate
    api_stats: Mapping[str, Any]
    """Statistics of the API."""

    @property
    def act_times_s(self) -> list[float]:
        return [each.act_s for each in self._all_results]

    @property
    def failed(self) -> int:
        return sum(not each.succeeded for each in self._all_results)

    @property
    def throttled(self) -> int:
        return int(self.api_stats["beyond_slots"]) + len(self.api_stats["early_s"])

    @property
    def many_retries(self) -> int:
        """Return the number of calls that took more retries than clients make by default."""
        return sum(each.retries > DEFAULT_RETRIES for each in self._all_results)

    def system_ms(self) -> float:
        return 1000 * sum(seconds for name, seconds in self.cost.cpu_s.items() if name != "client")

    def quota_used(self, config: EndpointBenchConfig) -> float:
        """Return the used part of the quota while a call waited: the larger part of slots or of requests per second."""
        begun = {key: began for key, began, _ in reversed(self.api_stats["served"])}
        wanted = sorted(each.requested_at for each in self._all_results)
        waited = sorted(begun.get(each.key, each.ended) for each in self._all_results)
        began, ended = sorted(begun.values()), sorted(end for _, _, end in self.api_stats["served"])
        found = []
        for step in range(int((max(waited) - wanted[0]) / GRID_STEP_S)):
            now = wanted[0] + step * GRID_STEP_S
            if bisect_right(wanted, now) > bisect_right(waited, now):
                slots = (bisect_right(began, now) - bisect_right(ended, now)) / config.concurrency
                requests = (bisect_right(began, now) - bisect_right(began, now - 1)) / config.per_s
                found.append(min(1.0, max(slots, requests)))
        return fmean(found or [1.0])

    @property
    def _all_results(self) -> Iterable[CallResult]:
        return (each for called in self.results_by_job.values() for each in called)


def run_calls(
    config: EndpointBenchConfig, report_progress: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Run the benchmark on a separate system. Figures are medians of the repeats; counts are totals."""
    with quota_api(config) as url, bench_system(driver="simulated", environment=_environment(config, url)) as system:
        rows = asyncio.run(_measure(config, url, system, report_progress))
    free = [_ideal_run(config, generate_jobs(config, repeat)) for repeat in range(config.repeats)]
    samples = {
        way: [_to_sample(turn, config) | _slowdowns(turn, each) for turn, each in zip(turns, free, strict=True)]
        for way, turns in rows.items()
    }
    return _figures(rows, samples, free), samples | {"without_overhead": [asdict(each) for each in free]}


def _environment(config: EndpointBenchConfig, url: str) -> dict[str, str]:
    endpoint = {"url": url, "concurrency": config.concurrency, "rate_per_s": config.per_s, "burst": config.burst}
    return {"TANGRAM_ENDPOINTS": json.dumps({ENDPOINT: endpoint})}


async def _measure(
    config: EndpointBenchConfig, url: str, system: BenchSystem, report_progress: Callable[[str], None]
) -> dict[str, list[_StrategyRun]]:
    rows: dict[str, list[_StrategyRun]] = {way: [] for way in STRATEGIES}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(system.client())
        connector, patience = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=patience))
        api_key = (system.directory / "api_key").read_text()
        ways: dict[str, Callable[[], CallBatch]] = {
            "broker": lambda: broker_calls(client),
            "backoff": lambda: backoff_calls(session, url, config),
            "through": lambda: proxy_calls(session, system.service_url("gateway"), api_key),
            "split": lambda: split_quota_calls(session, url, config),
        }
        for way in OUR_STRATEGIES:  # opens connections, creates tasks
            await asyncio.gather(*(ways[way]()(job, [f"warm-{way}-{job}"]) for job in range(config.jobs)))
        for repeat in range(config.repeats):
            for way, begin in ways.items():
                report_progress(f"repeat {repeat + 1} of {config.repeats}: {way}")
                await asyncio.sleep(SETTLE_S)
                rows[way].append(await _run_strategy(generate_jobs(config, repeat), begin(), system, session, url))
    return rows


async def _run_strategy(
    jobs: Sequence[CallJob], call_batch: CallBatch, system: BenchSystem, session: aiohttp.ClientSession, url: str
) -> _StrategyRun:
    async with session.post(f"{url}/begin") as begun:
        begun.raise_for_status()
    called: dict[int, list[CallResult]] = {number: [] for number in range(len(jobs))}

    async def go_on(number: int, job: CallJob) -> int:
        for phase in job:
            await asyncio.sleep(phase.think_s)
            called[number] += await call_batch(number, phase.keys)
        return len(called[number])

    async def all_jobs() -> int:
        return sum(await asyncio.gather(*(go_on(number, job) for number, job in enumerate(jobs))))

    began = time.monotonic()
    cost = await measure_cost(system, all_jobs())
    makespan_s = max(each.ended for job in called.values() for each in job) - began
    async with session.get(f"{url}/seen") as seen:
        return _StrategyRun(called, makespan_s, cost, await seen.json())


@dataclass(frozen=True, slots=True)
class _IdealRun:
    """The result of an ideal policy without overhead that serves calls in order of submission."""

    act_mean_s: float
    makespan_s: float
    alone_s: Sequence[float]
    """Mean completion time of each job if it has the API exclusively."""


def _ideal_run(config: EndpointBenchConfig, jobs: Sequence[CallJob]) -> _IdealRun:
    acts, makespan_s = ideal_completion_times(config, dict(enumerate(jobs)))
    alone = (ideal_completion_times(config, {number: job})[0][number] for number, job in enumerate(jobs))
    mean_s = fmean(act for each in acts.values() for act in each)
    return _IdealRun(round(mean_s, 4), round(makespan_s, 2), [round(fmean(each), 4) for each in alone])


def _slowdowns(run: _StrategyRun, ideal: _IdealRun) -> dict[str, float]:
    """Return the slowdown of jobs compared with exclusive use of the API."""
    means = (fmean(each.act_s for each in called) for _, called in sorted(run.results_by_job.items()))
    found = [mean / alone for mean, alone in zip(means, ideal.alone_s, strict=True)]
    return {"slowdown_mean": round(fmean(found), 3), "slowdown_most": round(max(found), 3)}


def _to_sample(run: _StrategyRun, config: EndpointBenchConfig) -> dict[str, Any]:
    acts, cuts = run.act_times_s, quantiles(run.act_times_s, n=100)
    served = len(run.api_stats["served"])
    cpu = {name: round(1000 * seconds / len(acts), 3) for name, seconds in run.cost.cpu_s.items()}
    return {
        "calls": len(acts),
        "act_mean_s": round(fmean(acts), 4),
        "act_p50_s": round(cuts[49], 4),
        "act_p99_s": round(cuts[98], 4),
        "makespan_s": round(run.makespan_s, 2),
        "failed": run.failed,
        "persistent": run.many_retries,
        "requests": served + run.throttled,
        "throttled": run.throttled,
        "beyond_slots": run.api_stats["beyond_slots"],
        "most_early_s": round(max(run.api_stats["early_s"], default=0.0), 4),
        "most_in_flight": run.api_stats["most_in_flight"],
        "busy": round(served / (config.per_s * run.makespan_s), 3),
        "quota_used": round(run.quota_used(config), 3),
        "cpu_ms_call": cpu,
        "act_mean_s_by_job": [
            round(fmean(each.act_s for each in called), 4) for _, called in sorted(run.results_by_job.items())
        ],
        "requests_in_second": run.api_stats["requests_in_second"],
    }


def _figures(
    rows: Mapping[str, Sequence[_StrategyRun]],
    samples: Mapping[str, Sequence[Mapping[str, Any]]],
    ideal_runs: Sequence[_IdealRun],
) -> dict[str, float]:
    figures: dict[str, float] = {"calls": sum(sample["calls"] for sample in samples[STRATEGIES[0]])}
    for way, found in samples.items():
        for name in MEDIAN_FIGURES:
            figures[f"{name}_{way}"] = median(sample[name] for sample in found)
        for name in SUMMED_FIGURES:
            figures[f"{name}_{way}"] = sum(sample[name] for sample in found)
        figures[f"most_in_flight_{way}"] = max(sample["most_in_flight"] for sample in found)
        figures[f"client_cpu_ms_call_{way}"] = median(sample["cpu_ms_call"]["client"] for sample in found)
        if way in OUR_STRATEGIES:
            figures[f"cpu_ms_call_{way}"] = round(median(t.system_ms() / t.cost.done for t in rows[way]), 3)
        if way != STRATEGIES[0]:
            pairs = zip(found, samples[STRATEGIES[0]], strict=True)
            ratios = [theirs["act_mean_s"] / ours["act_mean_s"] for theirs, ours in pairs]
            figures[f"act_ratio_{way}"] = round(median(ratios), 3)
    idle = [
        turn.system_ms() / turn.cost.wall_s
        for way, turns in rows.items()
        if way not in OUR_STRATEGIES
        for turn in turns
    ]
    return figures | {
        "act_mean_s_without_overhead": median(each.act_mean_s for each in ideal_runs),
        "makespan_s_without_overhead": median(each.makespan_s for each in ideal_runs),
        "idle_cpu_ms_per_s": round(median(idle), 3),
    }

"""What it brings that all jobs share one broker for an external API's quota, beside each job minding its own.

The API is a program of its own that holds to its quota. Several jobs want many calls at once, then think, out of step
with each other. Four policies take turns under the same demand: `broker` (the SDK) and `through` (plain clients with
another address) are ours; `backoff` sends all and retries what got a 429; `split` gives each job its part of the quota.
How many requests came, and how many were too many, is the API's own count.
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

from arl_tangram.bench.calls_api import api_of
from arl_tangram.bench.calls_load import Job, Sizes, acts_without_overhead, jobs_of
from arl_tangram.bench.calls_ways import ENDPOINT, Asked, Called, back_off, by_broker, split, through
from arl_tangram.bench.overhead import Rate, costed
from arl_tangram.bench.own_system import OwnSystem, own_system

__all__ = ["OURS", "Sizes", "run_calls"]

WAYS = ("broker", "backoff", "through", "split")
OURS = ("broker", "through")
USUAL_RETRIES = 2
"""Of the clients of OpenAI and Anthropic, unless one says otherwise."""
SETTLE_S = 2.0
"""Between two turns: every bucket is full again."""
GRID_S = 0.01
MIDDLE = ("act_mean_s", "act_p50_s", "act_p99_s", "makespan_s", "quota_used", "busy", "slowdown_mean", "slowdown_most")
COUNTED = ("failed", "persistent", "requests", "throttled")


@dataclass(frozen=True, slots=True)
class _Turn:
    """All jobs by one policy."""

    called: Mapping[int, Sequence[Called]]
    """By job."""
    makespan_s: float
    cost: Rate
    seen: Mapping[str, Any]
    """What the API saw."""

    @property
    def acts(self) -> list[float]:
        return [each.act_s for each in self._all]

    @property
    def failed(self) -> int:
        return sum(not each.answered for each in self._all)

    @property
    def throttled(self) -> int:
        return int(self.seen["beyond_slots"]) + len(self.seen["early_s"])

    @property
    def persistent(self) -> int:
        """Calls that took more retries than clients have by themselves."""
        return sum(each.retries > USUAL_RETRIES for each in self._all)

    def system_ms(self) -> float:
        return 1000 * sum(seconds for name, seconds in self.cost.cpu_s.items() if name != "client")

    def used(self, sizes: Sizes) -> float:
        """Of the quota, while a call waited for it: the larger of the parts of the slots and of a second's requests."""
        begun = {key: began for key, began, _ in reversed(self.seen["served"])}
        wanted = sorted(each.wanted for each in self._all)
        waited = sorted(begun.get(each.key, each.ended) for each in self._all)
        began, ended = sorted(begun.values()), sorted(end for _, _, end in self.seen["served"])
        found = []
        for step in range(int((max(waited) - wanted[0]) / GRID_S)):
            now = wanted[0] + step * GRID_S
            if bisect_right(wanted, now) > bisect_right(waited, now):
                slots = (bisect_right(began, now) - bisect_right(ended, now)) / sizes.concurrency
                requests = (bisect_right(began, now) - bisect_right(began, now - 1)) / sizes.per_s
                found.append(min(1.0, max(slots, requests)))
        return fmean(found or [1.0])

    @property
    def _all(self) -> Iterable[Called]:
        return (each for called in self.called.values() for each in called)


def run_calls(sizes: Sizes, say: Callable[[str], None]) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures and samples, on a system of its own. Medians of the repeats; what is counted, of all together."""
    with api_of(sizes) as url, own_system(driver="simulated", environment=_environment(sizes, url)) as system:
        rows = asyncio.run(_measure(sizes, url, system, say))
    free = [_free(sizes, jobs_of(sizes, repeat)) for repeat in range(sizes.repeats)]
    samples = {
        way: [_sample(turn, sizes) | _slowdowns(turn, each) for turn, each in zip(turns, free, strict=True)]
        for way, turns in rows.items()
    }
    return _figures(rows, samples, free), samples | {"without_overhead": [asdict(each) for each in free]}


def _environment(sizes: Sizes, url: str) -> dict[str, str]:
    endpoint = {"url": url, "concurrency": sizes.concurrency, "per_s": sizes.per_s, "burst": sizes.burst}
    return {"TANGRAM_ENDPOINTS": json.dumps({ENDPOINT: endpoint})}


async def _measure(sizes: Sizes, url: str, system: OwnSystem, say: Callable[[str], None]) -> dict[str, list[_Turn]]:
    rows: dict[str, list[_Turn]] = {way: [] for way in WAYS}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(system.client())
        connector, patience = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=patience))
        api_key = (system.directory / "api_key").read_text()
        ways: dict[str, Callable[[], Asked]] = {
            "broker": lambda: by_broker(client),
            "backoff": lambda: back_off(session, url, sizes),
            "through": lambda: through(session, system.url_of("gateway"), api_key),
            "split": lambda: split(session, url, sizes),
        }
        for way in OURS:  # every connection is open, every task is there
            await asyncio.gather(*(ways[way]()(job, [f"warm-{way}-{job}"]) for job in range(sizes.jobs)))
        for repeat in range(sizes.repeats):
            for way, begin in ways.items():
                say(f"repeat {repeat + 1} of {sizes.repeats}: {way}")
                await asyncio.sleep(SETTLE_S)
                rows[way].append(await _turn(jobs_of(sizes, repeat), begin(), system, session, url))
    return rows


async def _turn(jobs: Sequence[Job], ask: Asked, system: OwnSystem, session: aiohttp.ClientSession, url: str) -> _Turn:
    async with session.post(f"{url}/begin") as begun:
        begun.raise_for_status()
    called: dict[int, list[Called]] = {number: [] for number in range(len(jobs))}

    async def go_on(number: int, job: Job) -> int:
        for phase in job:
            await asyncio.sleep(phase.think_s)
            called[number] += await ask(number, phase.keys)
        return len(called[number])

    async def all_jobs() -> int:
        return sum(await asyncio.gather(*(go_on(number, job) for number, job in enumerate(jobs))))

    began = time.monotonic()
    cost = await costed(system, all_jobs())
    makespan_s = max(each.ended for job in called.values() for each in job) - began
    async with session.get(f"{url}/seen") as seen:
        return _Turn(called, makespan_s, cost, await seen.json())


@dataclass(frozen=True, slots=True)
class _Free:
    """What would be if a policy took no time, and calls went in the order in which they are wanted."""

    act_mean_s: float
    makespan_s: float
    alone_s: Sequence[float]
    """Each job's mean, had it the API to itself."""


def _free(sizes: Sizes, jobs: Sequence[Job]) -> _Free:
    acts, makespan_s = acts_without_overhead(sizes, dict(enumerate(jobs)))
    alone = (acts_without_overhead(sizes, {number: job})[0][number] for number, job in enumerate(jobs))
    mean_s = fmean(act for each in acts.values() for act in each)
    return _Free(round(mean_s, 4), round(makespan_s, 2), [round(fmean(each), 4) for each in alone])


def _slowdowns(turn: _Turn, free: _Free) -> dict[str, float]:
    """Of each job, beside what it would have alone."""
    means = (fmean(each.act_s for each in called) for _, called in sorted(turn.called.items()))
    found = [mean / alone for mean, alone in zip(means, free.alone_s, strict=True)]
    return {"slowdown_mean": round(fmean(found), 3), "slowdown_most": round(max(found), 3)}


def _sample(turn: _Turn, sizes: Sizes) -> dict[str, Any]:
    acts, cuts = turn.acts, quantiles(turn.acts, n=100)
    served = len(turn.seen["served"])
    cpu = {name: round(1000 * seconds / len(acts), 3) for name, seconds in turn.cost.cpu_s.items()}
    return {
        "calls": len(acts),
        "act_mean_s": round(fmean(acts), 4),
        "act_p50_s": round(cuts[49], 4),
        "act_p99_s": round(cuts[98], 4),
        "makespan_s": round(turn.makespan_s, 2),
        "failed": turn.failed,
        "persistent": turn.persistent,
        "requests": served + turn.throttled,
        "throttled": turn.throttled,
        "beyond_slots": turn.seen["beyond_slots"],
        "most_early_s": round(max(turn.seen["early_s"], default=0.0), 4),
        "most_in_flight": turn.seen["most_in_flight"],
        "busy": round(served / (sizes.per_s * turn.makespan_s), 3),
        "quota_used": round(turn.used(sizes), 3),
        "cpu_ms_call": cpu,
        "act_mean_s_by_job": [
            round(fmean(each.act_s for each in called), 4) for _, called in sorted(turn.called.items())
        ],
        "requests_in_second": turn.seen["requests_in_second"],
    }


def _figures(
    rows: Mapping[str, Sequence[_Turn]], samples: Mapping[str, Sequence[Mapping[str, Any]]], free: Sequence[_Free]
) -> dict[str, float]:
    figures: dict[str, float] = {"calls": sum(sample["calls"] for sample in samples[WAYS[0]])}
    for way, found in samples.items():
        for name in MIDDLE:
            figures[f"{name}_{way}"] = median(sample[name] for sample in found)
        for name in COUNTED:
            figures[f"{name}_{way}"] = sum(sample[name] for sample in found)
        figures[f"most_in_flight_{way}"] = max(sample["most_in_flight"] for sample in found)
        figures[f"client_cpu_ms_call_{way}"] = median(sample["cpu_ms_call"]["client"] for sample in found)
        if way in OURS:
            figures[f"cpu_ms_call_{way}"] = round(median(t.system_ms() / t.cost.done for t in rows[way]), 3)
        if way != WAYS[0]:
            pairs = zip(found, samples[WAYS[0]], strict=True)
            ratios = [theirs["act_mean_s"] / ours["act_mean_s"] for theirs, ours in pairs]
            figures[f"act_ratio_{way}"] = round(median(ratios), 3)
    idle = [turn.system_ms() / turn.cost.wall_s for way, turns in rows.items() if way not in OURS for turn in turns]
    return figures | {
        "act_mean_s_without_overhead": median(each.act_mean_s for each in free),
        "makespan_s_without_overhead": median(each.makespan_s for each in free),
        "idle_cpu_ms_per_s": round(median(idle), 3),
    }

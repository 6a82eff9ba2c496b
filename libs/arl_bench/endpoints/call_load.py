"""Calls that jobs make to an external API, and the service time of each. All policies get the same random values."""

import heapq
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from arl_core.control.rate_limits import RateLimit, TokenBucket

__all__ = ["CallJob", "CallPhase", "EndpointBenchConfig", "generate_jobs", "ideal_completion_times", "service_time_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointBenchConfig:
    """Parameters of the jobs, and of an API with its quota."""

    repeats: int = 3
    jobs: int = 4
    phases: int = 6
    """Number of phases per job. A phase submits its calls at once; the job waits for all responses before it thinks."""
    calls: tuple[int, int] = (20, 60)
    think_s: tuple[float, float] = (2.0, 6.0)
    concurrency: int = 12
    per_s: float = 40.0
    burst: int = 20
    median_s: float = 0.15
    """Median of the lognormal service time of a request, in seconds."""
    spread: float = 0.6
    retry_after_s: float | None = 1.0
    """Seconds in the `Retry-After` header of a 429."""
    retries: int = 8
    """Maximum number of retries of a client that limits itself."""
    seed: int = 0

    @classmethod
    def short(cls) -> "EndpointBenchConfig":
        return cls(repeats=1, phases=2, calls=(10, 30), think_s=(0.5, 2.0))

    @property
    def rate(self) -> RateLimit:
        return RateLimit(self.per_s, self.burst)


@dataclass(frozen=True, slots=True)
class CallPhase:
    think_s: float
    """Seconds of thinking before the phase."""
    keys: tuple[str, ...]
    """Keys of the phase's calls."""


CallJob = tuple[CallPhase, ...]


def generate_jobs(config: EndpointBenchConfig, repeat: int) -> tuple[CallJob, ...]:
    """Generate the jobs of a repeat. Their first thinking times differ, so the jobs are not synchronised."""
    rng = random.Random(f"{config.seed} {repeat}")
    return tuple(
        tuple(
            CallPhase(
                rng.uniform(*config.think_s),
                tuple(f"{repeat}-{job}-{phase}-{n}" for n in range(rng.randint(*config.calls))),
            )
            for phase in range(config.phases)
        )
        for job in range(config.jobs)
    )


def service_time_s(config: EndpointBenchConfig, key: str) -> float:
    """Return the seconds that the API takes for this call, independent of its client and time."""
    return random.Random(f"{config.seed} {key}").lognormvariate(math.log(config.median_s), config.spread)


def ideal_completion_times(
    config: EndpointBenchConfig, jobs: Mapping[int, CallJob]
) -> tuple[dict[int, list[float]], float]:
    """Return completion times by job, and the makespan. The policy is ideal: in order, at the quota, no overhead."""
    bucket = TokenBucket(config.rate, now=0.0)
    slots = [0.0] * config.concurrency
    acts: dict[int, list[float]] = {number: [] for number in jobs}
    waiting = [(job[0].think_s, number, 0) for number, job in jobs.items()]
    heapq.heapify(waiting)
    last = 0.0
    while waiting:
        wanted, number, phase = heapq.heappop(waiting)
        ends = [_ideal_end_s(config, key, wanted, slots, bucket) for key in jobs[number][phase].keys]
        acts[number] += [end - wanted for end in ends]
        last = max(last, *ends)
        if phase + 1 < len(jobs[number]):
            heapq.heappush(waiting, (max(ends) + jobs[number][phase + 1].think_s, number, phase + 1))
    return acts, last


def _ideal_end_s(
    config: EndpointBenchConfig, key: str, requested_at: float, slots: list[float], bucket: TokenBucket
) -> float:
    """Return the end of a call. `slots` is a heap of the times at which each slot becomes free."""
    begins = bucket.available_at(1, now=max(requested_at, slots[0]))
    bucket.take(1, now=begins)
    ends = begins + service_time_s(config, key)
    heapq.heapreplace(slots, ends)
    return ends

"""What jobs want of an external API, and how long each answer takes it: drawn once, and the same for every policy."""

import heapq
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from arl_core.control.rate_limits import RateLimit, TokenBucket

__all__ = ["CallJob", "CallPhase", "EndpointBenchConfig", "generate_jobs", "ideal_completion_times", "service_time_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointBenchConfig:
    """The jobs, and an API with its quota."""

    repeats: int = 3
    jobs: int = 4
    phases: int = 6
    """Of each job: calls that it wants all at once. It has all answers before it thinks."""
    calls: tuple[int, int] = (20, 60)
    think_s: tuple[float, float] = (2.0, 6.0)
    concurrency: int = 12
    per_s: float = 40.0
    burst: int = 20
    median_s: float = 0.15
    """Of the time that a request takes, which is lognormal."""
    spread: float = 0.6
    retry_after_s: float | None = 1.0
    """What a 429 says."""
    retries: int = 8
    """Of a client that minds its own quota."""
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
    """Before it."""
    keys: tuple[str, ...]
    """Of its calls."""


CallJob = tuple[CallPhase, ...]


def generate_jobs(config: EndpointBenchConfig, repeat: int) -> tuple[CallJob, ...]:
    """The first thinking of each sets them apart."""
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
    """How long this call takes the API, whoever sends it and when."""
    return random.Random(f"{config.seed} {key}").lognormvariate(math.log(config.median_s), config.spread)


def ideal_completion_times(
    config: EndpointBenchConfig, jobs: Mapping[int, CallJob]
) -> tuple[dict[int, list[float]], float]:
    """Completion times by job, and the makespan, if these had the quota, came in turn, and nothing took any time."""
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
    """When its answer is there. `slots` is a heap of when each is free."""
    begins = bucket.available_at(1, now=max(requested_at, slots[0]))
    bucket.take(1, now=begins)
    ends = begins + service_time_s(config, key)
    heapq.heapreplace(slots, ends)
    return ends

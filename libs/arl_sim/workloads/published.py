"""Workloads from published statistics: coding agents in sandboxes, searches, and many concurrent reward models.

Numbers of actions, thinking times and durations of coding agents follow the quantiles of SWE-rebench runs (arXiv
2602.09345). No durations of reward models or search APIs in training have been published, so these are assumptions. The
parallel fraction of test suites is an assumption too.
"""

import math
from collections.abc import Callable
from enum import StrEnum

import numpy as np

from arl_sim.workload import ActionWork, ResourceKind, SimTrajectory, SimWorkload, TrajectoryAction
from arl_sim.workloads.synthetic_step import SERVICES

__all__ = ["PublishedWorkload", "published_workload"]

DEFAULT_TRAJECTORIES = 256
GROUP_SIZE = 8
"""Rollouts of one prompt, which start at the same time."""
BURST_S = 30.0
"""Seconds within which the groups of a step begin."""
AGENT_TIMEOUT_S = 120.0
SUITE_CHOICES = (1, 2, 4)


class PublishedWorkload(StrEnum):
    CODING = "coding"
    DEEPSEARCH = "deepsearch"
    MOPD = "mopd"
    MIXED = "mixed"  # all three concurrently


def published_workload(name: PublishedWorkload, seed: int, *, trajectories: int = DEFAULT_TRAJECTORIES) -> SimWorkload:
    """Return one step; a mixed one has half as many searching and scoring trajectories as coding ones."""
    draw = _PublishedSampler(seed)
    shares = {
        PublishedWorkload.CODING: (trajectories, 0, 0),
        PublishedWorkload.DEEPSEARCH: (0, trajectories, 0),
        PublishedWorkload.MOPD: (0, 0, trajectories),
        PublishedWorkload.MIXED: (trajectories, trajectories // 2, trajectories // 2),
    }[name]
    kinds = zip((draw.coding, draw.search, draw.scoring), shares, strict=True)
    found = [rollout for make, count in kinds for rollout in draw.groups(make, count)]
    return SimWorkload(tuple(found), {service.name: service for service, _ in SERVICES})


class _PublishedSampler:
    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        popularity = 1 / np.arange(1, len(SERVICES) + 1) ** 0.8
        self._popularity = popularity / popularity.sum()
        self._score_s = self._rng.lognormal(math.log(4), 0.6, len(SERVICES)).clip(0.8, 12)

    def groups(self, make: Callable[[int, float], SimTrajectory], count: int) -> list[SimTrajectory]:
        found: list[SimTrajectory] = []
        for group in range(math.ceil(count / GROUP_SIZE)):
            starts_s = float(self._rng.uniform(0, BURST_S))
            found += [make(group, starts_s) for _ in range(min(GROUP_SIZE, count - len(found)))]
        return found

    def coding(self, group: int, starts_s: float) -> SimTrajectory:
        """Return a coding trajectory with a median of 26 actions and 2.8 s of thinking, then its repository's tests."""
        count = int(self._lognormal(26, 77, 0.99, low=3, high=200))
        turns = [TrajectoryAction(self._gap_s(), self._command()) for _ in range(count)]
        turns.append(TrajectoryAction(self._gap_s(), self._suite(group)))
        return SimTrajectory("ai-coding", tuple(turns), starts_s)

    def search(self, group: int, starts_s: float) -> SimTrajectory:
        count = int(self._lognormal(8, 25, 0.99, low=2, high=60))
        turns = [TrajectoryAction(self._gap_s(), self._lookup()) for _ in range(count)]
        turns.append(TrajectoryAction(self._gap_s(), self._score(group)))
        return SimTrajectory("deep-search", tuple(turns), starts_s)

    def scoring(self, group: int, starts_s: float) -> SimTrajectory:
        """Return a scoring trajectory; its thinking time is the generation of the answer."""
        think_s = self._lognormal(45, 120, 0.95, low=5, high=240)
        return SimTrajectory("mopd", (TrajectoryAction(think_s, self._score(group)),), starts_s)

    def _command(self) -> ActionWork:
        """Return an edit, a command, a build with tests of one file, or a command that the agent's timeout ends."""
        kind = self._rng.random()
        if kind < 0.35:
            return ActionWork(cls="edit", resource_kind=ResourceKind.CPU, seconds=0.05)
        if kind < 0.90:
            return ActionWork(
                cls="shell", resource_kind=ResourceKind.CPU, seconds=self._lognormal(1.2, 5.6, 0.95, low=0.05, high=30)
            )
        if kind < 0.98:
            return ActionWork(
                cls="build",
                resource_kind=ResourceKind.CPU,
                seconds=float(np.exp(self._rng.uniform(math.log(3), math.log(30)))),
            )
        return ActionWork(cls="shell", resource_kind=ResourceKind.CPU, seconds=AGENT_TIMEOUT_S)

    def _suite(self, repository: int) -> ActionWork:
        """Return a test suite; half of the repositories run their tests in parallel."""
        its = np.random.default_rng(repository)
        usual_s = float(np.clip(its.lognormal(math.log(8), 1.0), 1, 120))
        seconds = float(np.clip(usual_s * self._rng.lognormal(0, 0.3), 0.5, 240))
        parallel = bool(its.random() < 0.5)
        return ActionWork(
            cls=f"suite{repository}",
            resource_kind=ResourceKind.CPU,
            seconds=seconds,
            parallel_fraction=float(its.uniform(0.6, 0.95)) if parallel else 0.0,
            choices=SUITE_CHOICES if parallel else (1,),
            fixed_units=4 if parallel else 1,
        )

    def _lookup(self) -> ActionWork:
        return ActionWork(
            cls="search", resource_kind=ResourceKind.API, seconds=self._lognormal(0.8, 5.0, 0.99, low=0.1, high=30)
        )

    def _score(self, group: int) -> ActionWork:
        number = int(np.random.default_rng(group).choice(len(SERVICES), p=self._popularity))
        service, degrees = SERVICES[number]
        seconds = float(np.clip(self._score_s[number] * self._rng.lognormal(0, 0.4), 0.5, 20))
        return ActionWork(
            cls=service.name,
            resource_kind=ResourceKind.GPU,
            seconds=seconds,
            parallel_fraction=0.9,
            choices=degrees,
            fixed_units=4,
            service=service.name,
        )

    def _gap_s(self) -> float:
        return self._lognormal(2.8, 7.0, 0.9, low=0.2, high=60)

    def _lognormal(self, median: float, other: float, q: float, *, low: float, high: float) -> float:
        """Return a clipped log-normal value with this median and this other quantile."""
        sigma = math.log(other / median) / _NORMAL_QUANTILES[q]
        return float(np.clip(self._rng.lognormal(math.log(median), sigma), low, high))


_NORMAL_QUANTILES = {0.9: 1.2816, 0.95: 1.6449, 0.99: 2.3263}

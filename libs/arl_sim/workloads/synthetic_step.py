"""Synthetic step used to find the scheduling rules: concurrent coding, search and reward models.

A seed gives the same draws as the prototype of those experiments, so results can be compared with its tables.
"""

import math

import numpy as np

from arl_core.domain.model import ExclusiveService
from arl_sim.workload import ActionWork, ResourceKind, SimTrajectory, SimWorkload, TrajectoryAction

__all__ = ["CPU_CHOICES", "SERVICES", "synthetic_step"]

CPU_CHOICES = (1, 2, 4, 8, 16)
TRAJECTORIES_PER_GROUP = 8
"""Rollouts of one prompt, which share a repository or a reward model."""
REPOSITORIES = 64
LONGEST_SHELL_S = 2.0


def _service(number: int) -> tuple[ExclusiveService, tuple[int, ...]]:
    """Return one of 12 models of 14 to 130 GB, restored at 12 GB/s per device; the large ones need two devices."""
    small = number < 8
    size_gb = 14 + 2 * number if small else 70 + 20 * (number - 8)
    return ExclusiveService(f"rm{number}", fixed_s=0.5, device_s=size_gb / 12.0), (1, 2, 4, 8) if small else (2, 4, 8)


SERVICES = tuple(_service(number) for number in range(12))


def synthetic_step(
    seed: int, *, coding: int = 256, search: int = 128, scoring: int = 256, stragglers: float = 0.0
) -> SimWorkload:
    """Return one step of three tasks; `stragglers` is the fraction of actions that take 10 to 40 times as long."""
    draw = _StepSampler(seed, stragglers)
    rollouts = [*_coding(draw, coding), *_search(draw, search), *_scoring(draw, scoring)]
    return SimWorkload(tuple(rollouts), {service.name: service for service, _ in SERVICES})


class _StepSampler:
    """The random numbers, in the order of the prototype."""

    def __init__(self, seed: int, stragglers: float) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self._stragglers = stragglers
        self._suite_s = np.clip(np.exp(rng.normal(math.log(25), 0.8, REPOSITORIES)), 5, 120)
        self._suite_fraction = rng.uniform(0.6, 0.95, REPOSITORIES)
        popularity = 1 / np.arange(1, len(SERVICES) + 1) ** 0.8
        self._popularity = popularity / popularity.sum()
        self._ranked = rng.permutation(len(SERVICES))
        self._score_s = np.clip(np.exp(rng.normal(math.log(4), 0.6, len(SERVICES))), 0.8, 12)

    def think_s(self, low: float, high: float, median: float) -> float:
        return self._lognormal(median, 0.5, low, high)

    def action_count(self, median: float, low: int, high: int) -> int:
        return int(self._lognormal(median, 0.5, low, high))

    def repository(self) -> int:
        return int(self.rng.integers(REPOSITORIES))

    def service(self) -> int:
        return int(self._ranked[int(self.rng.choice(len(SERVICES), p=self._popularity))])

    def shell_work(self) -> ActionWork:
        seconds = self._with_stragglers(self._lognormal(0.3, 0.9, 0.05, LONGEST_SHELL_S))
        return ActionWork(cls="shell", resource_kind=ResourceKind.CPU, seconds=seconds)

    def test_work(self, repository: int) -> ActionWork:
        suite_s = float(self._suite_s[repository])
        seconds = float(np.clip(suite_s * np.exp(self.rng.normal(0, 0.35)), 3, 150))
        return ActionWork(
            cls=f"test{repository}",
            resource_kind=ResourceKind.CPU,
            seconds=self._with_stragglers(seconds),
            parallel_fraction=float(self._suite_fraction[repository]),
            choices=CPU_CHOICES,
            fixed_units=4,
        )

    def score_work(self, number: int) -> ActionWork:
        service, degrees = SERVICES[number]
        seconds = float(np.clip(self._score_s[number] * np.exp(self.rng.normal(0, 0.4)), 0.5, 20))
        return ActionWork(
            cls=service.name,
            resource_kind=ResourceKind.GPU,
            seconds=self._with_stragglers(seconds),
            parallel_fraction=0.9,
            choices=degrees,
            fixed_units=4,
            service=service.name,
        )

    def call_work(self) -> ActionWork:
        return ActionWork(
            cls="api", resource_kind=ResourceKind.API, seconds=self._with_stragglers(self._lognormal(0.8, 0.7, 0.2, 5))
        )

    def _lognormal(self, median: float, sigma: float, low: float, high: float) -> float:
        return float(np.clip(np.exp(self.rng.normal(math.log(median), sigma)), low, high))

    def _with_stragglers(self, seconds: float) -> float:
        if self._stragglers and self.rng.random() < self._stragglers:
            return seconds * float(self.rng.uniform(10, 40))
        return seconds


def _coding(sampler: _StepSampler, count: int) -> list[SimTrajectory]:
    rollouts = []
    repository = 0
    for number in range(count):
        if number % TRAJECTORIES_PER_GROUP == 0:
            repository = sampler.repository()
        turns = [_coding_action(sampler, repository) for _ in range(sampler.action_count(10, 3, 30))]
        turns.append(TrajectoryAction(sampler.think_s(5, 60, 12), sampler.test_work(repository)))
        rollouts.append(SimTrajectory("ai-coding", tuple(turns)))
    return rollouts


def _coding_action(sampler: _StepSampler, repository: int) -> TrajectoryAction:
    think_s = sampler.think_s(5, 60, 12)
    return TrajectoryAction(
        think_s, sampler.test_work(repository) if sampler.rng.random() < 0.2 else sampler.shell_work()
    )


def _search(sampler: _StepSampler, count: int) -> list[SimTrajectory]:
    rollouts = []
    for _ in range(count):
        turns = [
            TrajectoryAction(sampler.think_s(5, 40, 10), sampler.call_work())
            for _ in range(sampler.action_count(8, 2, 25))
        ]
        think_s = sampler.think_s(5, 30, 10)
        turns.append(TrajectoryAction(think_s, sampler.score_work(sampler.service())))
        rollouts.append(SimTrajectory("deep-search", tuple(turns)))
    return rollouts


def _scoring(sampler: _StepSampler, count: int) -> list[SimTrajectory]:
    rollouts = []
    service = 0
    for number in range(count):
        if number % TRAJECTORIES_PER_GROUP == 0:
            service = sampler.service()
        think_s = sampler.think_s(15, 120, 45)
        rollouts.append(SimTrajectory("mopd", (TrajectoryAction(think_s, sampler.score_work(service)),)))
    return rollouts

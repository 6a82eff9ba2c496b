"""Open-loop workload with submission times that do not depend on earlier actions, as clairvoyant bounds require."""

import math

import numpy as np

from arl_sim.workload import ActionWork, ResourceKind, SimTrajectory, SimWorkload, TrajectoryAction
from arl_sim.workloads.synthetic_step import CPU_CHOICES

__all__ = ["bursts"]

SPAN_S = 60.0
BURSTS = 6
REPOSITORIES = 24
SHELL_FRACTION = 0.6


def bursts(seed: int, *, actions: int) -> SimWorkload:
    """Return commands and test suites for one node in 6 bursts within a minute; each is its own trajectory."""
    rng = np.random.default_rng(seed)
    return SimWorkload(tuple(_arrival(rng) for _ in range(actions)))


def _arrival(rng: np.random.Generator) -> SimTrajectory:
    at_s = float(rng.integers(BURSTS)) * SPAN_S / BURSTS + float(rng.exponential(2.0))
    work = _shell(rng) if rng.random() < SHELL_FRACTION else _suite(rng)
    return SimTrajectory("ai-coding", (TrajectoryAction(0.0, work),), starts_s=at_s)


def _shell(rng: np.random.Generator) -> ActionWork:
    seconds = float(np.clip(np.exp(rng.normal(math.log(0.3), 0.9)), 0.05, 2))
    return ActionWork(cls="shell", resource_kind=ResourceKind.CPU, seconds=seconds)


def _suite(rng: np.random.Generator) -> ActionWork:
    repository = int(rng.integers(REPOSITORIES))
    its = np.random.default_rng(repository)
    fraction = float(its.uniform(0.6, 0.95))
    usual_s = np.exp(its.normal(math.log(25), 0.8))
    seconds = float(np.clip(usual_s * np.exp(rng.normal(0, 0.35)), 3, 150))
    return ActionWork(
        cls=f"test{repository}",
        resource_kind=ResourceKind.CPU,
        seconds=seconds,
        parallel_fraction=fraction,
        choices=CPU_CHOICES,
        fixed_units=4,
    )

"""Comparison with the best of all schedules without resizing, found by exhaustive search."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from arl_core.policies.policy import SchedulingPolicy
from arl_core.policies.reference import ReferencePolicy
from arl_core.policies.spar import SparPolicy
from arl_sim.bounds import BoundJob, lagrangian_bound_s, speed_bound_s
from arl_sim.cluster import DemandMode, SimActionClasses, SimCluster
from arl_sim.duration_models import ClairvoyantDurations
from arl_sim.engine import START_S, WorkloadSimulation
from arl_sim.workload import ActionWork, ResourceKind, SimTrajectory, SimWorkload, TrajectoryAction

UNITS = 4
INSTANCES = 24


def an_instance(seed: int) -> list[ActionWork]:
    """Return 4 actions that arrive together; most can use up to 4 cores."""
    rng = np.random.default_rng(seed)
    return [
        ActionWork(
            cls="any",
            resource_kind=ResourceKind.CPU,
            seconds=float(np.exp(rng.normal(1, 1))),
            parallel_fraction=float(rng.uniform(0.5, 0.98)),
            choices=(1, 2, 4) if rng.random() < 0.7 else (1,),
        )
        for _ in range(4)
    ]


def best_of_all_s(works: Sequence[ActionWork]) -> float:
    """Return the mean ACT of the best order and parallelism; each action starts as soon as it fits."""
    return min(
        scheduled_s([(works[at], widths[at]) for at in order])
        for widths in itertools.product(*(work.choices for work in works))
        for order in itertools.permutations(range(len(works)))
    )


def scheduled_s(order: Sequence[tuple[ActionWork, int]]) -> float:
    placed: list[tuple[float, float, int]] = []
    for work, width in order:
        takes_s = work.duration_s(width)
        starts = sorted([0.0] + [end for _, end, _ in placed])
        start = next(at for at in starts if fits(placed, at, at + takes_s, width))
        placed.append((start, start + takes_s, width))
    return sum(end for _, end, _ in placed) / len(placed)


def fits(placed: Sequence[tuple[float, float, int]], start: float, end: float, width: int) -> bool:
    moments = [start] + [other for other, _, _ in placed if start < other < end]
    return all(sum(k for s, e, k in placed if s <= at < e - 1e-12) + width <= UNITS for at in moments)


def simulated_s(policy: SchedulingPolicy, works: Sequence[ActionWork]) -> float:
    site = SimCluster(cpu_nodes=(UNITS,), gpu_nodes=(), api_calls=1)
    rollouts = tuple(SimTrajectory("ai-coding", (TrajectoryAction(0.0, work),)) for work in works)
    classes = SimActionClasses(site, {}, DemandMode.ELASTIC, is_separate=True)
    result = WorkloadSimulation(SimWorkload(rollouts), site, policy, classes, ClairvoyantDurations()).run()
    return sum(record.act_s - START_S for record in result.records) / len(works)


@pytest.mark.parametrize("seed", range(6))
def test_bound_is_never_above_the_best_schedule(seed: int) -> None:
    works = an_instance(seed)
    jobs = [BoundJob(work, 0.0) for work in works]
    best_s = best_of_all_s(works)
    bound_s = lagrangian_bound_s(jobs, UNITS, achieved_s=best_s * 1.001, grid_s=0.25)
    assert speed_bound_s(jobs) <= best_s + 1e-9
    assert 0.8 * best_s <= bound_s <= best_s + 1e-9


@pytest.mark.parametrize(
    ("policy", "mean", "worst"),
    [(SparPolicy(), 1.10, 1.5), (SparPolicy(is_resizing=True), 1.10, 1.5), (ReferencePolicy(), 1.20, 2.0)],
    ids=["spar", "spar_m", "reference"],
)
def test_policies_are_close_to_the_best_schedule(policy: SchedulingPolicy, mean: float, worst: float) -> None:
    ratios = [simulated_s(policy, works) / best_of_all_s(works) for works in map(an_instance, range(INSTANCES))]
    assert sum(ratios) / len(ratios) <= mean, ratios
    assert max(ratios) <= worst, ratios
